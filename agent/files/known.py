"""The files of one source that it knows of, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elf.agent.files.follow import Followed, Inode
from elf.agent.files.identity import FileState, real_path
from elf.agent.files.listing import Seen, reason

OPEN_MAX = 64
"""Descriptors held by one source. An open file is one whose inode number cannot be reused and which can be read when deleted."""
GONE_MAX = 64
"""Files that are read and gone from disk, remembered in case they come back compressed."""
NOTICES_MAX = 256


class Known:
    """The followed files by generation, which counts them as they were found."""

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
        """Files that their writer may still have open by name."""

    def notice(self, text: str) -> None:
        if len(self.notices) < NOTICES_MAX:
            self.notices.append(f"{self.name}: {text}")

    def new(self, one: Seen, now: float) -> Followed:
        """A file that was not known."""
        self.generation += 1
        file = Followed(FileState(self.generation, 0, one.path, *one.inode), now)
        file.place(one.path, one.inode, one.status, now)
        self.files[self.generation] = file
        return file

    def displace(self, file: Followed) -> None:
        """What stands in its place is another file."""
        self.notice(f"{file.path}: emptied, cut short or replaced after byte {file.state.offset} was read")
        file.displace()

    def deny(self, file: Followed, error: Exception) -> None:
        """It cannot be read now."""
        self.notice(f"{file.path}: {reason(error)} at byte {file.state.offset}; waiting until it can be read")
        file.close()
        file.denied = True

    def has_room(self) -> bool:
        """Whether one more may be open."""
        return sum(file.content is not None for file in self.files.values()) < OPEN_MAX

    def retire(self, now: float) -> None:
        """Note since when each is rotated."""
        for file in self.files.values():
            if file.inode in self.writable:
                file.retired_at = None
            elif file.retired_at is None:
                file.retired_at = now

    def forget_gone(self) -> None:
        """Those of which nothing is left to read, but for the last `GONE_MAX`."""
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
