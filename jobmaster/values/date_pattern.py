"""Spark's patterns of date_format, such as `yyyy-MM-dd HH:mm:ss`: a timestamp as text, in UTC, with English names.

Refused, with a reason: what Spark refuses (weeks, five or more letters of a name, `{ } #`), its rare letters (F, G, O, V, q, and
the long names of zones), and optional sections in square brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from elf.jobmaster.values.conversion import DAY_US, date_of, days_of

MONTHS = tuple(
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)
WEEKDAYS = ("Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday")
"""From 1970-01-01 on."""


class Instant:
    """A timestamp's fields."""

    def __init__(self, micros: int) -> None:
        self.days, rest = divmod(micros, DAY_US)
        self.year, self.month, self.day = date_of(self.days)
        seconds, self.micros = divmod(rest, 1_000_000)
        self.hour, self.minute, self.second = seconds // 3600, seconds // 60 % 60, seconds % 60

    def day_of_year(self) -> int:
        return self.days - (days_of(self.year, 1, 1) or 0) + 1


Part = Callable[[Instant], str]


def _padded(value: Callable[[Instant], int], most: int = 2) -> Callable[[int], Part | None]:
    def part(count: int) -> Part | None:
        return (lambda at: str(value(at)).zfill(count)) if count <= most else None

    return part


def _year(count: int) -> Part | None:
    if count == 2:
        return lambda at: f"{at.year % 100:02d}"
    if count > 6:
        return None

    def part(at: Instant) -> str:
        digits = str(abs(at.year)).zfill(count)
        sign = "-" if at.year < 0 else "+" if count > 3 and len(digits) > count else ""
        return sign + digits

    return part


def _month(count: int) -> Part | None:
    if count > 2:
        end = 3 if count == 3 else None
        return (lambda at: MONTHS[at.month - 1][:end]) if count < 5 else None
    return _padded(lambda at: at.month)(count)


def _weekday(count: int) -> Part | None:
    end = 3 if count < 4 else None
    return (lambda at: WEEKDAYS[at.days % 7][:end]) if count < 5 else None


def _quarter(count: int) -> Part | None:
    before = "Q" if count == 3 else "0" if count == 2 else ""
    return (lambda at: f"{before}{(at.month + 2) // 3}") if count < 4 else None


def _fraction(count: int) -> Part | None:
    return (lambda at: f"{at.micros:06d}000"[:count]) if count < 10 else None


def _fixed(*texts: str) -> Callable[[int], Part | None]:
    """By the number of letters."""

    def part(count: int) -> Part | None:
        return (lambda at: texts[count - 1]) if count <= len(texts) else None

    return part


LETTERS: dict[str, Callable[[int], Part | None]] = {
    "y": _year,
    "M": _month,
    "L": _month,
    "d": _padded(lambda at: at.day),
    "D": _padded(Instant.day_of_year, 3),
    "E": _weekday,
    "Q": _quarter,
    "a": lambda count: (lambda at: "AM" if at.hour < 12 else "PM") if count == 1 else None,
    "H": _padded(lambda at: at.hour),
    "k": _padded(lambda at: at.hour or 24),
    "K": _padded(lambda at: at.hour % 12),
    "h": _padded(lambda at: at.hour % 12 or 12),
    "m": _padded(lambda at: at.minute),
    "s": _padded(lambda at: at.second),
    "S": _fraction,
    "z": _fixed("UTC", "UTC", "UTC"),
    "Z": _fixed("+0000", "+0000", "+0000"),
    "X": _fixed("Z", "Z", "Z"),
    "x": _fixed("+00", "+0000", "+00:00"),
}
_PIECE = re.compile(r"([A-Za-z])\1*|'(?:[^']|'')*'|[^A-Za-z'\[\]{}#]+")


@lru_cache(maxsize=64)
def parts(pattern: str) -> tuple[str | Part, ...]:
    """A pattern as texts and fields. Raises ValueError with the reason why it cannot be used."""
    out: list[str | Part] = []
    at = 0
    while at < len(pattern):
        found = _PIECE.match(pattern, at)
        if found is None:
            if pattern[at] == "'":
                raise ValueError("a quote ' has no end")
            raise ValueError(f"{pattern[at]!r} cannot be in a pattern; put it into single quotes")
        at = found.end()
        piece, letter = found[0], found[1]
        if not letter:
            out.append(_unquoted(piece))
            continue
        if letter not in LETTERS:
            raise ValueError(f"the letter {letter} is not supported; texts stand in single quotes")
        part = LETTERS[letter](len(piece))
        if part is None:
            raise ValueError(f"{piece} is not a field; {letter} repeats fewer times")
        out.append(part)
    return tuple(out)


def _unquoted(piece: str) -> str:
    if piece == "''":
        return "'"
    return piece[1:-1].replace("''", "'") if piece[0] == "'" else piece


def problem(pattern: str) -> str:
    """Why the pattern cannot be used, "" if it can."""
    try:
        parts(pattern)
    except ValueError as error:
        return str(error)
    return ""


def formatter(pattern: str) -> Callable[[int], str]:
    """Microseconds since 1970 UTC -> text. Raises ValueError."""
    pieces = parts(pattern)

    def run(micros: int) -> str:
        at = Instant(micros)
        return "".join(piece if isinstance(piece, str) else piece(at) for piece in pieces)

    return run
