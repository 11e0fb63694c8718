"""A node's virtual disk: records by key, durable after a delay; the disk may be full, and a crash may
lose last writes."""

from __future__ import annotations

from random import Random
from typing import Any

from elf.jobmaster.log.log_order import InOrder, part_of
from elf.jobmaster.log.record_codec import RecordEncoder

Key = tuple[str, bytes]


class Disk:
    """Records that survive a crash, and pending writes.

    Writes become durable in order. On a full disk they wait until there is room. A crash loses the pending writes, except for a
    random number of the first ones, which were durable though not yet reported as such.
    """

    encoder: RecordEncoder | None = None
    """Encodes the records of one life, for disks that hold bytes."""

    def __init__(self) -> None:
        self._records: dict[Key, InOrder[Any]] = {}
        self.is_full = False
        self.writes = 0
        self._pending: list[tuple[Key, Any, bool]] = []

    @property
    def records(self) -> dict[Key, list[Any]]:
        """The durable records."""
        return {key: each.counting() for key, each in self._records.items()}

    @property
    def pending(self) -> int:
        return len(self._pending)

    def write(self, key: Key, record: Any, replace: bool, encoded: bytes = b"") -> None:
        """Begin a write; `sync` makes it durable. encoded: the record as bytes, if the caller has them."""
        self.writes += 1
        self._pending.append((key, record, replace))

    def begin(self, key: Key, record: Any) -> None:
        """Write a record that an agent waits for before it starts: it is durable at once, with all pending writes."""
        is_full, self.is_full = self.is_full, False
        self.write(key, record, True)
        self.sync(self.pending)
        self.is_full = is_full

    def sync(self, count: int) -> int:
        """Make the oldest `count` writes durable, unless the disk is full. Returns how many became durable."""
        if self.is_full:
            return 0
        done, self._pending = self._pending[:count], self._pending[count:]
        for write in done:
            self._apply(write)
        return len(done)

    def crash(self, rng: Random) -> None:
        """The host crashes: the pending writes are lost, except for a random number of the first ones."""
        if self._pending and not self.is_full:
            self.sync(rng.randrange(len(self._pending) + 1))
        self._pending = []

    def read(self, job: bytes) -> dict[Key, list[Any]]:
        """The durable records of a job."""
        return {key: list(known) for key, known in self.records.items() if key[1] == job}

    def wipe(self) -> None:
        """A new, empty disk."""
        self._records, self._pending = {}, []

    def copy(self) -> Disk:
        """Another disk with the durable records of this one."""
        new = type(self)()
        new._records = {key: records.copy() for key, records in self._records.items()}
        return new

    def _apply(self, write: tuple[Key, Any, bool]) -> None:
        key, record, replace = write
        self._records.setdefault(key, InOrder()).note(part_of(record), record, replace)
