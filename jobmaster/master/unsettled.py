"""The windows of a job that may have to be published: those that are not final, and those that changed."""

from __future__ import annotations

from collections.abc import Callable, Collection

from elf.jobmaster.log.job_state import WindowKey
from elf.srt.messages.messages import Micros


class Unsettled:
    """The starts of such windows, by version. unfinal: not final in the log. changed: changed since they were last read.
    is_news: one was added to `changed` since somebody cleared this."""

    def __init__(self) -> None:
        self.is_news = False
        self.unfinal: dict[str, set[Micros]] = {}
        self.changed: dict[str, set[Micros]] = {}

    def __bool__(self) -> bool:
        return any(self.changed.values()) or any(self.unfinal.values())

    def begin(self, version: str) -> None:
        """Add a version."""
        self.changed.setdefault(version, set())
        self.unfinal.setdefault(version, set())

    def touch(self, key: WindowKey, is_final: bool) -> None:
        """The window's lines changed."""
        self.is_news = True
        self.changed[key[0]].add(key[1])
        if not is_final:
            self.unfinal[key[0]].add(key[1])

    def mark(self, key: WindowKey, has_changed: bool = True) -> None:
        """Record that the window has to be read; without `has_changed`, that it was read."""
        self.is_news |= has_changed
        changed = self.changed.setdefault(key[0], set())
        (changed.add if has_changed else changed.discard)(key[1])

    def mark_unfinal(self) -> None:
        """Record that all windows that are not final have to be read."""
        self.is_news = True
        for version, starts in self.unfinal.items():
            self.changed.setdefault(version, set()).update(starts)

    def final(self, key: WindowKey) -> None:
        """The window's FINAL is in the log."""
        self.unfinal.get(key[0], set()).discard(key[1])

    def discard(self, key: WindowKey) -> None:
        """The window will not be published."""
        for sets in (self.unfinal, self.changed):
            sets.get(key[0], set()).discard(key[1])

    def has_changed(self, key: WindowKey) -> bool:
        return key[1] in self.changed[key[0]]

    def of(self, version: str) -> set[Micros]:
        return self.unfinal[version] | self.changed[version]

    def keep_only(self, versions: Collection[str]) -> None:
        for sets in (self.changed, self.unfinal):
            for version in sets.keys() - versions:
                del sets[version]

    def leave_out(self, is_gone: Callable[[str, Micros], bool]) -> None:
        for sets in (self.changed, self.unfinal):
            for version, starts in sets.items():
                starts.difference_update([start for start in starts if is_gone(version, start)])
