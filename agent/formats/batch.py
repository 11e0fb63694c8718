"""A batch: the columns parsed from one block of whole lines, and the reasons for rejected lines."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.agent.formats.fields import Reason
from elf.jobmaster.values.vector import Vector


class Reject(msgspec.Struct, frozen=True):
    """A sample of a rejected line: `offset` is the byte within the line where the first mismatch is."""

    reason: Reason
    line: bytes  # at most the first 4 KiB
    offset: int
    expected: str  # "a separator '\" '", "digits", "a time like 17/May/2015:10:05:03 +0000"
    field: str  # the name of the field being read, "" before the first


class Lost(msgspec.Struct, frozen=True):
    """A sample of a value that did not convert to its column's type; the column is NULL in that row."""

    column: str
    type: str
    value: str
    line: bytes  # at most the first 4 KiB
    offset: int  # of the value within the line


class Batch(msgspec.Struct):
    """The result of one block.

    rows: parsed lines. columns: the requested columns that the format can fill, each a `Vector` of `rows` values.
    lines: lines read, without comments and headers. rejects: count by reason. reject_rows: for each rejected line the index
    of the next parsed row (0..rows), ascending: int32. samples: the first few rejects. invalid_utf8: lines with bytes that
    are not UTF-8. lost: for each column with values that did not convert, their rows, ascending: int64; lost_samples: the first
    few. keyed: the requested columns besides `time` of which some line had a key; None where lines have no keys, or
    none is asked.
    """

    rows: int
    columns: Mapping[str, Vector]
    lines: int
    rejects: Mapping[Reason, int]
    reject_rows: NDArray[np.int32]
    samples: tuple[Reject, ...] = ()
    invalid_utf8: int = 0
    lost: Mapping[str, NDArray[np.int64]] = msgspec.field(default_factory=dict)
    lost_samples: tuple[Lost, ...] = ()
    keyed: frozenset[str] | None = None
