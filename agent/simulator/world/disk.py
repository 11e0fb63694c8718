"""A node's virtual disk: records by key, durable after a while, with full disks, lost and torn last writes.

`Disk` holds the records themselves, and loses pending writes. `JournalDisk`, for meshes over bytes, holds the bytes of an agent's
journal: there a pending write is torn, and a restart finds what the journal's own code reads.
"""

from __future__ import annotations

from random import Random
from typing import Any

from elf.agent.disk.journal import FILE_HEAD, frame_of, whole_frames
from elf.jobmaster.log.log_order import InOrder, part_of
from elf.jobmaster.log.record_codec import RecordEncoder, gathered, head_of
from elf.srt.messages.effects import Write

Key = tuple[str, bytes]


class Disk:
    """Records that survive a crash, and pending writes.

    Writes become durable in order. On a full disk they wait until there is room. A crash loses the pending writes, except for a
    random number of the first ones, which were durable though not yet reported as such.
    """

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
        """A record that an agent waits for before it starts: durable at once, with all pending writes."""
        is_full, self.is_full = self.is_full, False
        self.write(key, record, True)
        self.sync(self.pending)
        self.is_full = is_full

    def sync(self, count: int) -> int:
        """Make the oldest `count` writes durable, unless the disk is full. Returns how many were."""
        if self.is_full:
            return 0
        done, self._pending = self._pending[:count], self._pending[count:]
        for write in done:
            self._apply(write)
        return len(done)

    def crash(self, rng: Random) -> None:
        """The power fails."""
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


class JournalDisk(Disk):
    """Durable records are a journal's file, never rewritten, as runs are short. torn: how many frames crashes have torn."""

    def __init__(self) -> None:
        super().__init__()
        self.torn = 0
        self._encoded: list[bytes] = []  # of the pending writes
        self._restart(FILE_HEAD)

    def write(self, key: Key, record: Any, replace: bool, encoded: bytes = b"") -> None:
        super().write(key, record, replace)
        self._encoded.append(encoded or self.encoder.encode(Write(key, record, replace)))

    def read(self, job: bytes) -> dict[Key, list[Any]]:
        records, _ = whole_frames(memoryview(bytes(self._file)), "a virtual disk")
        found = gathered(data for data in records if head_of(data)[0][1] == job)
        return {key: each.counting() for key, each in found.items()}

    def sync(self, count: int) -> int:
        done = super().sync(count)
        if done:
            self._file += frame_of(self._encoded[:done], len(self._file))
            del self._encoded[:done]
        return done

    def crash(self, rng: Random) -> None:
        """The pending writes were being written as one frame; a piece of it is in the file."""
        super().crash(rng)
        tail = b""
        if self._encoded and not self.is_full:
            tail = torn(frame_of(self._encoded, len(self._file)), rng)
            self.torn += 1
        self._encoded = []
        self._restart(self._file + tail)

    def wipe(self) -> None:
        super().wipe()
        self._encoded = []
        self._restart(FILE_HEAD)

    def copy(self) -> Disk:
        new = super().copy()
        assert isinstance(new, JournalDisk)
        new._restart(self._file)
        return new

    def _restart(self, content: bytes | bytearray) -> None:
        """Read the file as an agent does: the next life appends after the last whole frame, with rosters of its own."""
        records, end = whole_frames(memoryview(content), "a virtual disk")
        self._file = bytearray(content[:end])
        self._records = gathered(records)
        self.encoder = RecordEncoder()


def torn(frame: bytes, rng: Random) -> bytes:
    """What a crash may leave of a frame: its beginning, that and zeros, or all with one bit flipped."""
    at = rng.randrange(len(frame))
    match rng.randrange(3):
        case 0:
            return frame[:at]
        case 1:
            return frame[:at] + bytes(len(frame) - at)
        case _:
            return frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1 :]
