"""The parser of wrapped lines: the envelope is taken off, then the inner format's parser reads what was inside.

block -> Unwrapper -> lines inside -> Parser of the inner format -> Batch
                   -> envelopes    -> Parser of the envelope     -> the envelope's columns, if asked
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.agent.formats.batch import Batch, Reject
from elf.agent.formats.envelopes._unwrap import BARE, OTHER, Unwrapper
from elf.agent.formats.envelopes.kinds import EXAMPLES, OBJECTS, TEXTS, envelope_format
from elf.agent.formats.envelopes.years import with_years
from elf.agent.formats.fields import KEYED, Format, Reason
from elf.agent.formats.parser import LINE_MAX, Parser
from elf.jobmaster.values.sql_types import SqlType
from elf.jobmaster.values.vector import Vector

SAMPLE_BYTES = 4096
Rows = NDArray[np.intp]


def make_parser(format: Format, columns: Collection[str], **options: Any) -> Parser | WrappedParser:
    """The parser of a format, in an envelope or not. options: those of `Parser`."""
    return (WrappedParser if format.envelope else Parser)(format, columns, **options)


def layers(format: Format, head: bytes) -> list[tuple[Format, bytes, tuple[str, ...]]]:
    """The lines of `head` with the format that has their keys: the lines inside, and the envelopes where only these have keys;
    and the keys that hold a line inside."""
    if not format.envelope:
        return [(format, head, ())]
    unwrapper = Unwrapper(format.envelope, LINE_MAX, tuple(name.encode() for name in format.programs))
    unwrapper.unwrap(head[: head.rfind(b"\n") + 1])
    layers: list[tuple[Format, bytes, tuple[str, ...]]] = [(format, bytes(unwrapper.lines()), ())]
    if has_keys(format) and format.shape not in KEYED:
        layers.append((envelope_format(format), head, TEXTS))
    return layers


def has_keys(format: Format) -> bool:
    """Whether the lines name their values, inside or outside."""
    return format.shape in KEYED or format.envelope in OBJECTS


class WrappedParser:
    """As `Parser`, for a format in an envelope. A block must hold all parts of its lines, as the blocks of `elf.agent.files` do.

    A line without the envelope is rejected. So is, if the format names the programs that write it, a line of another program that
    does not fit, with a reason of its own.
    """

    header = b""

    def __init__(
        self,
        format: Format,
        columns: Collection[str],
        *,
        timezone: str = "UTC",
        line_max: int = LINE_MAX,
        types: Mapping[str, SqlType] = {},
        **options: Any,
    ) -> None:
        outer = envelope_format(format)
        inside = {column for field in format.fields for column in field.columns}
        # Keys of the envelope are columns too, where the lines inside have none.
        keys = types if has_keys(format) and format.shape not in KEYED else {}
        own = [name for name in keys if name not in outer.columns()]
        asked = [column for column in (*outer.columns(), *own) if column in columns and column not in inside]
        # A time without its year takes it from the line's own time.
        self._dated = "log_time" in asked and format.envelope == "syslog"
        self._wants_time = "time" in columns
        mine = (set(columns) - set(asked)) | ({"time"} if self._dated else set())
        options |= {"timezone": timezone, "line_max": line_max}
        self._format, self._timezone = format, timezone
        self._inner = Parser(
            format,
            [column for column in columns if column in mine] + ["time"] * self._dated,
            types={} if keys else types,
            **options,
        )
        self._judge = Parser(format, (), **options)
        self._outer = Parser(outer, asked, types=keys, **options) if asked else None
        programs = tuple(name.encode() for name in format.programs)
        self._unwrapper = Unwrapper(format.envelope, line_max, programs, bool(asked))

    def begin(self, header: bytes = b"") -> None:
        """As `Parser.begin`; an inner format has no header."""

    def full(self) -> bool:
        """As `Parser.full`."""
        return self._inner.full() or (self._outer is not None and self._outer.full())

    def clear(self) -> None:
        """As `Parser.clear`."""
        self._inner.clear()
        if self._outer is not None:
            self._outer.clear()

    @property
    def nbytes(self) -> int:
        """As `Parser.nbytes`."""
        return self._inner.nbytes + self._unwrapper.nbytes + (self._outer.nbytes if self._outer else 0)

    def parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each line of the last block begins, and its further parts (`Unwrapper.further`)."""
        lines = range(len(self._unwrapper.flags()))
        begins = np.array([self._unwrapper.place(line)[0] for line in lines], dtype=np.int64)
        return begins, self._unwrapper.further()

    def parse(self, block: bytes | memoryview) -> Batch:
        """As `Parser.parse`. Raises MemoryError."""
        self._unwrapper.unwrap(block)
        batch = self._inner.parse(self._unwrapper.lines())
        flags = self._unwrapper.flags()
        rejected = _rejected(batch)
        columns = dict(batch.columns)
        if self._outer is not None:
            kept = np.ones(len(flags), dtype=np.bool_)
            kept[rejected] = False
            found, lost = self._envelopes(self._outer, kept)
            columns |= found
            batch.lost, batch.lost_samples = (
                {**batch.lost, **lost.lost},
                batch.lost_samples + lost.lost_samples,
            )
            if self._dated:
                columns["log_time"] = with_years(columns["log_time"], columns["time"], self._timezone)
            if not self._wants_time:
                columns.pop("time", None)
        return msgspec.structs.replace(
            batch,
            columns=columns,
            rejects=self._reasons(batch, rejected, flags),
            samples=tuple(
                self._sample(sample, block, line, int(flags[line]))
                for sample, line in zip(batch.samples, rejected.tolist(), strict=False)
            ),
        )

    def _envelopes(self, outer: Parser, kept: NDArray[np.bool_]) -> tuple[dict[str, Vector], Batch]:
        """The envelope's columns for the lines that are kept, NULL throughout where the envelope's own time cannot be read; and
        the envelopes' batch, with its lost values at the rows of these lines."""
        batch = outer.parse(self._unwrapper.heads())
        read = np.ones(len(kept), dtype=np.bool_)
        read[_rejected(batch)] = False
        rows = np.where(read, np.cumsum(read) - 1, -1)[kept]
        columns = {column: _picked(vector, rows) for column, vector in batch.columns.items()}
        row_of = np.where(kept, np.cumsum(kept) - 1, -1)[read]
        lost = {column: at[at >= 0] for column, at in ((name, row_of[of]) for name, of in batch.lost.items())}
        return columns, msgspec.structs.replace(batch, lost=lost)

    def _reasons(self, batch: Batch, rejected: Rows, flags: NDArray[np.uint8]) -> dict[Reason, int]:
        """The rejects by reason. A line without an envelope was an empty one to the inner parser."""
        reasons = Counter(batch.rejects)
        mine = flags[rejected]
        bare, others = int(np.count_nonzero(mine == BARE)), rejected[mine == OTHER]
        reasons.subtract({Reason.EMPTY: bare})
        if len(others):
            reasons.subtract(self._judge.parse(self._unwrapper.some(others.astype(np.int64))).rejects)
        reasons.update({Reason.ENVELOPE: bare, Reason.PROGRAM: len(others)})
        return {reason: n for reason, n in reasons.items() if n}

    def _sample(self, sample: Reject, block: bytes | memoryview, line: int, flag: int) -> Reject:
        """The sample with the whole line, its envelope included."""
        begin, size, at = self._unwrapper.place(line)
        raw = bytes(block[begin : begin + min(size, SAMPLE_BYTES)])
        kind = self._format.envelope
        if flag == BARE:
            return Reject(Reason.ENVELOPE, raw, 0, f"a line like {EXAMPLES[kind]}", "")
        if flag == OTHER:
            names = " or ".join(self._format.programs)
            return Reject(Reason.PROGRAM, raw, min(at, len(raw)), f"a line of {names}, or of its format", "")
        offset = _undecoded(raw, at, sample.offset) if kind in OBJECTS else at + sample.offset
        return msgspec.structs.replace(sample, line=raw, offset=min(offset, len(raw)))


def _rejected(batch: Batch) -> Rows:
    """The numbers of the rejected lines among all lines."""
    return np.asarray(batch.reject_rows.astype(np.intp) + np.arange(len(batch.reject_rows)), dtype=np.intp)


def _picked(vector: Vector, rows: Rows) -> Vector:
    """The values at `rows`; NULL at -1."""
    there = rows >= 0
    if vector.strings is not None:
        values = np.full(len(rows), -1, dtype=np.int32)
        values[there] = vector.values[rows[there]]
        return Vector(vector.type, values, strings=vector.strings)
    numbers, valid = np.zeros(len(rows), dtype=vector.values.dtype), there.copy()
    numbers[there] = vector.values[rows[there]]
    if vector.valid is not None:
        valid[there] = vector.valid[rows[there]]
    return Vector(vector.type, numbers, None if valid.all() else valid)


def _undecoded(raw: bytes, at: int, offset: int) -> int:
    """Where byte `offset` of the text decoded from the JSON string at `at` is written in `raw`."""
    while offset > 0 and at < len(raw):
        size = 1
        if raw[at : at + 1] == b"\\":
            size = 6 if raw[at + 1 : at + 2] == b"u" else 2
        code = int(raw[at + 2 : at + 6], 16) if size == 6 and raw[at + 2 : at + 6].isalnum() else 0
        offset -= 1 if code < 0x80 else 2 if code < 0x800 or 0xD800 <= code < 0xE000 else 3
        at += size
    return at
