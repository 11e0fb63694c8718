"""A virtual disk that holds the bytes of an agent's journal: crashes tear pending writes, and a restart finds what the journal
reads."""

from __future__ import annotations

from random import Random
from typing import Any

from elf.agent.disk.journal import FILE_HEAD, frame_of, walk
from elf.agent.simulator.world.disk import Disk, Key
from elf.jobmaster.log.record_codec import RecordEncoder, gathered, head_of
from elf.srt.messages.effects import Write


class JournalDisk(Disk):
    """Durable records are a journal's file, never rewritten, as runs are short. torn: how many frames crashes have torn."""

    encoder: RecordEncoder

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
    """A frame as a crash may leave it: its beginning; its beginning and zeros; or the whole with one bit flipped."""
    at = rng.randrange(len(frame))
    match rng.randrange(3):
        case 0:
            return frame[:at]
        case 1:
            return frame[:at] + bytes(len(frame) - at)
        case _:
            return frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1 :]


def whole_frames(content: memoryview, where: object) -> tuple[list[bytes], int]:
    """All records of a file's whole frames, and where those end: the rest is a torn tail.

    Raises StateError, which names the file as `where`, if another frame follows a broken one.
    """
    records: list[bytes] = []
    end = walk(
        lambda at, length: content[at : at + length],
        len(content),
        where,
        lambda at, record: records.append(bytes(record)),
    )
    return records, end
