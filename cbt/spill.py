"""The spill file: holds compressed fragments that are seldom read, and others when memory is short. One per process; it ends with
the process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from sortedcontainers import SortedDict

_BLOCK_BYTES = 4096


class Extent(msgspec.Struct):
    """A place in the spill file. `length` bytes are used, rounded up to blocks."""

    offset: int
    length: int

    @property
    def size(self) -> int:
        return -(-self.length // _BLOCK_BYTES) * _BLOCK_BYTES


class SpillFile:
    """Blocks of one unnamed temporary file, so that nothing is left behind, even after a kill.

    Freed space is reused, first fit; adjacent free ranges are joined; a free end of the file is truncated.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._fd, self._end = folder, -1, 0
        # Offset -> size of the free ranges, of which no two are adjacent; a sorted dict once there is a file.
        self._free: SortedDict[int, int] = {}
        self.used = 0

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return self._end

    def write(self, data: bytes) -> Extent:
        """Write some bytes. Raises OSError if the disk is full, and then changes nothing. O(free ranges)."""
        if self._fd < 0:
            self._fd = self._open()
        extent = Extent(0, len(data))
        extent.offset = self._find(extent.size)
        view, at = memoryview(data), extent.offset
        try:
            while view:
                written = os.pwrite(self._fd, view, at)
                view, at = view[written:], at + written
        except OSError:
            self._give_back(extent)
            raise
        self.used += extent.size
        return extent

    def read(self, extent: Extent) -> bytes:
        """The bytes of an extent. Raises OSError."""
        parts, at, left = [], extent.offset, extent.length
        while left:
            part = os.pread(self._fd, left, at)
            if not part:
                raise OSError("the spill file is shorter than what was written to it")
            parts.append(part)
            at, left = at + len(part), left - len(part)
        return b"".join(parts)

    def free(self, extent: Extent) -> None:
        """Free an extent; does nothing if the file is closed. O(log free ranges)."""
        if self._fd < 0:
            return
        self.used -= extent.size
        self._give_back(extent)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._end, self.used, self._free = -1, 0, 0, {}

    def check(self) -> None:
        """Raise AssertionError unless free and used blocks make up the file."""
        assert self.used + sum(self._free.values()) == self._end
        end = -1
        for offset, size in self._free.items():
            assert offset > end, "adjacent free ranges"
            end = offset + size
            assert size > 0
            assert end < self._end

    def _open(self) -> int:
        # Late: most runs never spill.
        from sortedcontainers import SortedDict

        path = os.path.join(self._folder or _temporary_folder(), f"elf-spill-{os.urandom(8).hex()}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        self._free = SortedDict()
        return fd

    def _find(self, size: int) -> int:
        for offset, room in self._free.items():
            if room >= size:
                del self._free[offset]
                if room > size:
                    self._free[offset + size] = room - size
                return int(offset)
        self._end += size
        return self._end - size

    def _give_back(self, extent: Extent) -> None:
        offset, size = extent.offset, extent.size
        after = self._free.pop(offset + size, 0)
        size += after
        at = self._free.bisect_left(offset)
        if at:
            before, room = self._free.peekitem(at - 1)
            if before + room == offset:
                del self._free[before]
                offset, size = before, size + room
        if offset + size == self._end:
            self._end = offset
            os.ftruncate(self._fd, offset)
        else:
            self._free[offset] = size


def _temporary_folder() -> str:
    # Late: an agent names its folder, and need not load the modules behind this one.
    from tempfile import gettempdir

    return gettempdir()
