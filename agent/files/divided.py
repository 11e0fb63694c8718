"""Lines in parts that a rotation divides: a file ends within a line, and the file after it in the same log has the rest.

The last parts of the first file then belong to the second one: they come before its own first line, and are no longer read with
the first. That a file was divided is decided once, when it is complete, and is saved with both files.
"""

from __future__ import annotations

import os

from elf.agent.files import names
from elf.agent.files._parts import clean_end, is_part
from elf.agent.files.content import exactly, reading
from elf.errors import SourceError


def same_log(one: str, other: str) -> bool:
    """Whether two files are of one log, by their names."""
    return os.path.dirname(one) == os.path.dirname(other) and names.family(one) == names.family(other)


def ends_open(data: memoryview | bytes) -> bool:
    """Whether lines, the rest of a file from a clean place on, end with a part that is not the last one of its line."""
    size = len(data)
    return size > 0 and data[size - 1] == ord("\n") and clean_end(data, 0, size, size, size) < size


def takes(path: str, rest: memoryview | bytes, line_max: int) -> bool:
    """Whether `rest` may belong before the first line of the file at `path`, which must be a part. Reads that line."""
    room = line_max - len(rest)
    if room <= 0:
        return False
    try:
        with reading(path) as content:
            head = exactly(content, memoryview(bytearray(room)))
    except (OSError, SourceError):
        return False
    line, newline, _ = head.partition(b"\n")
    return bool(newline) and is_part(line)
