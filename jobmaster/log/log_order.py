"""Which of a log's records count, and in which order they are read back: a state in pieces counts only when it is whole.

    written   Base  More  Base 1  Rows 1.0  More  Rows 1.1  More  Whole 1  More
    read back       Base 1  Rows 1.0  Rows 1.1  Whole 1   More  More  More          the first two are forgotten
    before Whole 1  Base  More  More  More                                          pieces are left out

For whoever keeps records, whatever form they have there: values, or places in a file.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from elf.errors import StateError
from elf.jobmaster.log.job_log import Base, Rows, Whole

T = TypeVar("T")


class Part(NamedTuple):
    """What a record is to a state in pieces: number 0 is nothing. of: which piece, or how many there are."""

    kind: str = ""
    number: int = 0
    of: int = 0


BASE, ROWS, WHOLE = "base", "rows", "whole"
NONE = Part()


def part_of(record: Any) -> Part:
    """Of a value."""
    if isinstance(record, Base) and record.number:
        return Part(BASE, record.number)
    if isinstance(record, Rows):
        return Part(ROWS, record.number, record.at)
    return Part(WHOLE, record.number, record.count) if isinstance(record, Whole) else NONE


class InOrder(Generic[T]):
    """The records of one key. Numbers are those of one life: what begins again has nothing to do with an earlier life's."""

    __slots__ = ("_rest", "_state")

    def __init__(self) -> None:
        self._state: list[T] = []  # in pieces, and whole
        self._rest: list[tuple[Part, T]] = []

    def copy(self) -> InOrder[T]:
        """Another one with the same records."""
        new = InOrder[T]()
        new._state, new._rest = [*self._state], [*self._rest]
        return new

    def note(self, part: Part, record: T, replaces: bool = False) -> None:
        """The next record. O(1); where a state begins or ends O(records). Raises StateError: a whole one that is not."""
        if replaces:
            self._state, self._rest = [], []
        elif part.kind == WHOLE:
            self._count(part, record)
            return
        elif part.kind == BASE or (part.kind == ROWS and not part.of):
            self._rest = [each for each in self._rest if each[0][:2] != part[:2]]
        self._rest.append((part, record))

    def _count(self, whole: Part, record: T) -> None:
        """The state of that number is there: what was written before its `Base` is not needed any more."""
        bases = [at for at, (part, _) in enumerate(self._rest) if part[:2] == (BASE, whole.number)]
        rows = [each for part, each in self._rest if part[:2] == (ROWS, whole.number)]
        if not bases or len(rows) != whole.of:
            raise StateError(f"state: {len(rows)} of {whole.of} pieces of a log; restore it from a backup")
        self._state = [self._rest[bases[-1]][1], *rows, record]
        self._rest = [
            each
            for at, each in enumerate(self._rest)
            if each[0].number != whole.number and (at > bases[-1] or each[0].kind == ROWS)
        ]

    def counting(self) -> list[T]:
        """What is read back."""
        return [*self._state, *(record for part, record in self._rest if not part.number)]

    def needed(self) -> list[T]:
        """That, and what is under way."""
        return [*self._state, *(record for _, record in self._rest)]
