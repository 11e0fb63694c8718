"""Formats of shape REGEX: named groups found line by line with `re`, as spans that the kernel converts like any others."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elf.errors import FormatError
from elf.jobmaster.plan import backtracking

NO_MATCH = -2


def compile_regex(pattern: str, name: str) -> re.Pattern[bytes]:
    """The compiled pattern, over bytes. Raises FormatError for a broken pattern (with the place), or one of exponential time."""
    try:
        found = re.compile(pattern.encode())
        reason = backtracking.refusal(pattern.encode())
    except re.error as error:
        place = f" at position {error.pos}" if error.pos is not None else ""
        raise FormatError(f"format {name}: the regular expression is broken{place}: {error.msg}") from error
    except (UnicodeEncodeError, OverflowError, RecursionError) as error:
        raise FormatError(f"format {name}: {error}; check the pattern") from error
    if reason is not None:
        raise FormatError(f"format {name}: the regular expression has {reason}")
    return found


def group_spans(
    pattern: re.Pattern[bytes], block: bytes | memoryview, groups: Sequence[str], line_max: int
) -> NDArray[np.int32]:
    """The begin and end of each group within each line of the block: int32 (lines, groups, 2).

    A group that took no part is (-1, -1); a line that the pattern does not match whole begins with -2. Lines over `line_max` are
    not matched. O(bytes) if the pattern itself takes linear time.
    """
    lines = bytes(block).split(b"\n")
    if not lines[-1]:
        lines.pop()
    none = [NO_MATCH] * (2 * len(groups))
    spans: list[int] = []
    for line in lines:
        text = line.removesuffix(b"\r")
        match = pattern.fullmatch(text) if len(text) <= line_max else None
        if match is None:
            spans += none
        else:
            for group in groups:
                spans += match.span(group)
    return np.array(spans, dtype=np.int32).reshape(len(lines), len(groups), 2)
