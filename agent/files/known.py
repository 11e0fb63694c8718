"""The known files of one source, and notices about them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elf.agent.files.follow import Followed, Inode
from elf.agent.files.identity import FileState, real_path
from elf.agent.files.listing import Seen, reason

OPEN_MAX = 64
"""Descriptors held by one source. An open file keeps its inode number, and can be read after it is deleted."""
GONE_MAX = 64
"""Files that were read and are gone from disk, remembered in case they reappear compressed."""
NOTICES_MAX = 256


class Known:
    """The followed files by generation, a counter in the order in which they were found."""

    def __init__(self, name: str, generation: int, saved: Iterable[FileState]) -> None:
        self.name, self.generation = name, generation
        self.files = {
            state.generation: Followed(
                msgspec.structs.replace(state, path=real_path(state.path), marks=list(state.marks)), 0.0
            )
            for state in saved
        }
        self.notices: list[str] = []
        self.writable: set[Inode] = set()
        """Files that their writer may still open by name."""

    def notice(self, text: str) -> None:
        if len(self.notices) < NOTICES_MAX:
            self.notices.append(f"{self.name}: {text}")

    def new(self, one: Seen, now: float) -> Followed:
        """Add a new file."""
        self.generation += 1
        file = Followed(FileState(self.generation, 0, one.path, *one.inode), now)
        file.place(one.path, one.inode, one.status, now)
        self.files[self.generation] = file
        return file

    def displace(self, file: Followed) -> None:
        """Record that another file took its place."""
        self.notice(f"{file.path}: emptied, cut short or replaced after byte {file.state.offset} was read")
        file.displace()

    def deny(self, file: Followed, error: Exception) -> None:
        """Record that the file cannot be read now."""
        self.notice(f"{file.path}: {reason(error)} at byte {file.state.offset}; waiting until it can be read")
        file.close()
        file.denied = True

    def has_room(self) -> bool:
        """Whether one more may be open."""
        return sum(file.content is not None for file in self.files.values()) < OPEN_MAX

    def retire(self, now: float) -> None:
        """Note since when each file is rotated."""
        for file in self.files.values():
            if file.inode in self.writable:
                file.retired_at = None
            elif file.retired_at is None:
                file.retired_at = now

    def forget_gone(self) -> None:
        """Drop files with nothing left to read, except for the last `GONE_MAX`."""
        empty = [n for n, file in self.files.items() if file.is_lost and not file.state.head_size]
        for generation in empty:
            del self.files[generation]
        gone = [
            file.state.generation for file in self.files.values() if file.state.done and file.inode is None
        ]
        for generation in gone[: max(len(gone) - GONE_MAX, 0)]:
            del self.files[generation]

    def close(self) -> None:
        for file in self.files.values():
            file.close()
