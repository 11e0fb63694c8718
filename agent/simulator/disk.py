"""A node's virtual disk: records by key, durable after a while, with full disks and lost last writes."""

from __future__ import annotations

from random import Random
from typing import Any

Key = tuple[str, bytes]


class Disk:
    """What survives a crash, and what was on its way there.

    Writes become durable in order. `full` ones wait until there is room. A crash loses the writes that were not durable, except
    for a random first few of them, which had reached the platter without anybody knowing.
    """

    def __init__(self) -> None:
        self.records: dict[Key, list[Any]] = {}
        self.is_full = False
        self.writes = 0
        self._pending: list[tuple[Key, Any, bool]] = []

    @property
    def pending(self) -> int:
        return len(self._pending)

    def write(self, key: Key, record: Any, replace: bool) -> None:
        """Begin a write; `sync` makes it durable."""
        self.writes += 1
        self._pending.append((key, record, replace))

    def sync(self, count: int) -> int:
        """The oldest `count` writes become durable, unless the disk is full; returns how many did."""
        if self.is_full:
            return 0
        done, self._pending = self._pending[:count], self._pending[count:]
        for write in done:
            self._apply(write)
        return len(done)

    def crash(self, rng: Random) -> None:
        """Power is gone."""
        if self._pending and not self.is_full:
            self.sync(rng.randrange(len(self._pending) + 1))
        self._pending = []

    def wipe(self) -> None:
        """A new, empty disk."""
        self.records, self._pending = {}, []

    def _apply(self, write: tuple[Key, Any, bool]) -> None:
        key, record, replace = write
        if replace:
            self.records[key] = [record]
        else:
            self.records.setdefault(key, []).append(record)
