"""One value as text: times in ISO 8601 UTC, decimals exactly, and no characters that control a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from functools import lru_cache
from math import isfinite, isnan
from typing import Any

import msgspec

from elf.jobmaster.values.sql_types import WINDOW_TYPE, scale_of
from elf.jobmaster.windows.result import ColumnInfo, Window

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Convert = Callable[[Any], Any]


class _Shown:
    """zone: of all times that this process shows."""

    zone: tzinfo = UTC


def show_in(zone: str) -> None:
    """Show times in this time zone, with their offsets; in UTC with 'Z'. For the whole process."""
    window_json.cache_clear()
    _Shown.zone = UTC
    if zone != "UTC":
        from zoneinfo import ZoneInfo  # a hundredth of a second, which a plain run does not need

        _Shown.zone = ZoneInfo(zone)


def is_utc() -> bool:
    return _Shown.zone is UTC


def moment(us: int) -> datetime | None:
    """Microseconds since 1970 as a datetime in the zone shown; None outside the years 1 to 9999."""
    try:
        return (EPOCH + timedelta(microseconds=us)).astimezone(_Shown.zone)
    except OverflowError:
        return None


def local(us: int) -> int:
    """Microseconds since 1970 as those of the calendar in the zone shown."""
    at = moment(us)
    return us if at is None else us + (at.utcoffset() or timedelta()) // timedelta(microseconds=1)


def iso(us: int) -> str:
    """ISO 8601 in the zone shown, with 'Z' for UTC, and a fraction of six digits unless it is 0."""
    at = moment(us)
    if at is None:
        import numpy as np

        return f"{np.datetime64(us, 'us')}Z"
    return at.isoformat() if not is_utc() else at.replace(tzinfo=None).isoformat() + "Z"


def number(value: float) -> float | str:
    """A float for JSON, which has no NaN and infinities: they become Spark's names for them."""
    if isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def element_type(kind: str) -> str:
    """The type of an array's elements: `bigint` of `array<bigint>`; any other type itself."""
    return kind[6:-1] if kind.startswith("array<") else kind


def escape(text: str) -> str:
    """`text` with all characters that could control a terminal, such as controls and bidirectional marks, as escapes. O(n)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _spell(ord(c)) for c in text)


def escape_lines(text: str) -> str:
    """As `escape`, but newlines stay: for a whole block of output."""
    return "\n".join(escape(line) for line in text.split("\n"))


def _spell(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000  # as a surrogate pair, so that JSON stays JSON
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def json_cell(kind: str) -> Convert | None:
    """The function that prepares a value of SQL type `kind` for the JSON encoder; None if the encoder takes it as it is."""
    if kind.startswith("array<"):
        inner = json_cell(element_type(kind))
        return None if inner is None else lambda v: None if v is None else [inner(item) for item in v]
    if kind == "timestamp":
        return lambda v: None if v is None else iso(v)
    if kind == "double":
        return lambda v: None if v is None else number(v)
    if _needs_plain(kind):
        return lambda v: None if v is None else msgspec.Raw(plain(v))
    if kind == WINDOW_TYPE:
        return lambda v: None if v is None else msgspec.Raw(window_json(v))
    return None


@lru_cache(maxsize=64)
def window_json(value: tuple[int, int]) -> str:
    return f'{{"start":"{iso(value[0])}","end":"{iso(value[1])}"}}'


def _needs_plain(kind: str) -> bool:
    """Whether str() of a Decimal of this type may have an exponent, as it does below 10^-6."""
    return kind.startswith("decimal") and scale_of(kind) > 6


def plain(value: Decimal) -> str:
    """All digits, no exponent."""
    return format(value, "f")


def json_text(kind: str) -> Callable[[Any], str]:
    """An array as JSON text."""
    ready = json_cell(kind) or (lambda v: v)
    encode = msgspec.json.Encoder(decimal_format="number").encode
    return lambda v: encode(ready(v)).decode()


def unique_names(columns: Sequence[ColumnInfo]) -> list[str]:
    """The columns' names; a repeated name gets the suffix _2, _3 and so on."""
    used: set[str] = set()
    names = []
    for column in columns:
        name, n = column.name, 2
        while name in used:
            name, n = f"{column.name}_{n}", n + 1
        used.add(name)
        names.append(name)
    return names


class Changes:
    """Which rows of a window to print on a stream: of an open window those that changed, of a final one all.

    Keeps hashes of the printed rows of open windows, at most `LIMIT` (8 MB or so); a larger result is printed only when it is
    final. O(rows) for each window.
    """

    LIMIT = 100_000
    SETTLED = 4_096

    def __init__(self) -> None:
        self._printed: dict[tuple[str, str, int | None], set[int]] = {}
        self._settled: dict[tuple[str, str, int | None], tuple[int, int, int]] = {}

    def rows(self, window: Window) -> Iterable[tuple[Any, ...]]:
        """The rows of `window` to print now."""
        key = (window.job, window.version, window.start)
        if window.status == "open":
            return self._news(key, window.rows)
        return window.rows if self.is_new(window) else ()

    def is_new(self, window: Window) -> bool:
        """Whether a window that is not open has not been printed yet, in this revision; it is from now on."""
        key = (window.job, window.version, window.start)
        self._printed.pop(key, None)
        if self._settled.get(key, (-1, -1, -1)) >= window.revision:
            return False
        if len(self._settled) >= self.SETTLED:
            self._settled.pop(next(iter(self._settled)))
        self._settled[key] = window.revision
        return True

    def _news(
        self, key: tuple[str, str, int | None], rows: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]:
        others = sum(len(printed) for at, printed in self._printed.items() if at != key)
        if others + len(rows) > self.LIMIT:
            return []
        before = self._printed.get(key, set())
        hashes = [hash(_frozen(row)) for row in rows]
        self._printed[key] = set(hashes)
        return [row for row, h in zip(rows, hashes, strict=True) if h not in before]


def _frozen(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """`row` with its arrays hashable."""
    if any(isinstance(value, list) for value in row):
        return tuple(tuple(value) if isinstance(value, list) else value for value in row)
    return row
