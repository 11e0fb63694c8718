"""Tables with a bound, which drop their oldest entries."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def put_last(table: dict[K, V], key: K, value: V, count_max: int) -> None:
    """Put or move an entry to the end of a table; if that is full, drop its oldest ones. O(1)."""
    table.pop(key, None)
    while len(table) >= count_max:
        del table[next(iter(table))]
    table[key] = value
