"""Which of a log's records are valid, and in which order to read them back: a state in pieces is valid only when it is complete.

    written   Base  More  Base 1  Rows 1.0  More  Rows 1.1  More  Whole 1  More
    read back       Base 1  Rows 1.0  Rows 1.1  Whole 1   More  More  More          the first two are obsolete
    before Whole 1  Base  More  More  More                                          pieces are left out

Works for records in any form: values, or places in a file.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from elf.errors import StateError
from elf.jobmaster.log.job_log import Base, Rows, Whole

T = TypeVar("T")


class Part(NamedTuple):
    """A record's part in a state in pieces. number: the state's; 0: the record belongs to none. of: the number of the piece in a
    `Rows` record, the count of pieces in a `Whole` record."""

    kind: str = ""
    number: int = 0
    of: int = 0


BASE, ROWS, WHOLE = "base", "rows", "whole"
NONE = Part()


def part_of(record: Any) -> Part:
    """The part of a decoded record."""
    if isinstance(record, Base) and record.number:
        return Part(BASE, record.number)
    if isinstance(record, Rows):
        return Part(ROWS, record.number, record.at)
    return Part(WHOLE, record.number, record.count) if isinstance(record, Whole) else NONE


class InOrder(Generic[T]):
    """The records of one key. A process numbers its states from 1, so a new `Base` or first `Rows` discards an earlier process's
    incomplete state of that number."""

    __slots__ = ("_rest", "_state")

    def __init__(self) -> None:
        self._state: list[T] = []  # the records of the last complete state in pieces
        self._rest: list[tuple[Part, T]] = []

    def copy(self) -> InOrder[T]:
        """A copy with the same records."""
        new = InOrder[T]()
        new._state, new._rest = [*self._state], [*self._rest]
        return new

    def note(self, part: Part, record: T, replaces: bool = False) -> None:
        """Add the next record. O(1), or O(records) where a state begins or ends. Raises StateError for a `Whole` record whose
        pieces are missing."""
        if replaces:
            self._state, self._rest = [], []
        elif part.kind == WHOLE:
            self._complete(part, record)
            return
        elif part.kind == BASE or (part.kind == ROWS and not part.of):
            self._rest = [each for each in self._rest if each[0][:2] != part[:2]]
        self._rest.append((part, record))

    def _complete(self, whole: Part, record: T) -> None:
        """The state of that number is complete: records before its `Base` are obsolete."""
        bases = [at for at, (part, _) in enumerate(self._rest) if part[:2] == (BASE, whole.number)]
        rows = [each for part, each in self._rest if part[:2] == (ROWS, whole.number)]
        if not bases or len(rows) != whole.of:
            raise StateError(
                f"state: only {len(rows)} of {whole.of} pieces of a job's log are there; restore it from a backup"
            )
        self._state = [self._rest[bases[-1]][1], *rows, record]
        self._rest = [
            each
            for at, each in enumerate(self._rest)
            if each[0].number != whole.number and (at > bases[-1] or each[0].kind == ROWS)
        ]

    def counting(self) -> list[T]:
        """The records to read back."""
        return [*self._state, *(record for part, record in self._rest if not part.number)]

    def needed(self) -> list[T]:
        """The records to read back, and those of incomplete states."""
        return [*self._state, *(record for _, record in self._rest)]
