"""The text of an alert, with values of a row: `{path} had {hits} errors`. Nothing else is replaced, and nothing is evaluated.

Values come from log lines, so they are hostile: controls become escapes, a long one is cut. `{{` and `}}` are braces. Filling a
text never raises: whatever cannot be filled stays as it is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

FILLED_CHARS_MAX = 1_000
VALUE_CHARS_MAX = 200
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


def names_in(text: str) -> list[str]:
    """The names in braces, in their order."""
    return [found[1] for found in _PART.finditer(text) if found[1] is not None]


def place_of(text: str, name: str) -> tuple[int, int]:
    """Line and column of the first {name}, from 1."""
    found = next((each for each in _PART.finditer(text) if each[1] == name), None)
    at = found.start() if found is not None else 0
    return text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1


def stray_brace(text: str) -> int | None:
    """The index of a brace that neither names a value nor is written twice; None without one."""
    rest = _PART.sub(lambda found: " " * len(found[0]), text)
    return next((at for at, letter in enumerate(rest) if letter in "{}"), None)


def filled(text: str, value: Callable[[str], str | None]) -> str:
    """The text with `value(name)` in the place of each {name}; one that is None stays."""

    def part(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0][0]
        known = value(found[1])
        return found[0] if known is None else known

    return _PART.sub(part, text)[:FILLED_CHARS_MAX]


def of_row(text: str, names: Sequence[str], row: Sequence[Any], types: Sequence[str]) -> str:
    """The text filled with the values of a row, whose columns have these names and types."""
    places = {name.lower(): at for at, name in enumerate(names)}

    def value(name: str) -> str | None:
        at = places.get(name.lower())
        return None if at is None else shown(row[at], types[at])

    return filled(text, value)


def shown(value: Any, type: str) -> str:
    """One value of a row as text: bounded, without controls."""
    if value is None:
        return "NULL"
    if type == "timestamp":
        return time_text(value)
    if isinstance(value, tuple) and len(value) == 2:
        return f"{time_text(value[0])} – {time_text(value[1])}"
    text = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    if len(text) > VALUE_CHARS_MAX:
        text = text[: VALUE_CHARS_MAX - 1] + "…"
    return "".join(map(_letter, text))


def _letter(letter: str) -> str:
    return letter if letter.isprintable() else f"\\u{ord(letter):04x}"


def time_text(time_us: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC; the number itself outside the years that have one."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    except OverflowError:
        return str(time_us)
    return moment.isoformat().replace("+00:00", "Z")
