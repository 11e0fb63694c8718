"""The windows of a job that may have to be published: those that are not final, and those that changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from elf.jobmaster.log.job_state import WindowKey
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.messages import Micros


class Unsettled:
    """The starts of such windows, by version. unfinal: not final in the log. changed: changed since they were last read.
    is_news: one was added to `changed` since somebody cleared this. Only its methods add to the sets."""

    def __init__(self) -> None:
        self.is_news = False
        self.unfinal: dict[str, set[Micros]] = {}
        self.changed: dict[str, set[Micros]] = {}
        # All starts of both sets in order, and some that left them: a backlog has too many to sort them each time.
        self._order: dict[str, list[Micros]] = {}
        self._added: dict[str, list[Micros]] = {}

    def __bool__(self) -> bool:
        return any(self.changed.values()) or any(self.unfinal.values())

    def begin(self, version: str) -> None:
        """Add a version."""
        self.changed.setdefault(version, set())
        self.unfinal.setdefault(version, set())

    def touch(self, key: WindowKey, is_final: bool) -> None:
        """The window's lines changed."""
        self.is_news = True
        self._add(key, self.changed)
        if not is_final:
            self._add(key, self.unfinal)

    def mark(self, key: WindowKey, has_changed: bool = True) -> None:
        """Record that the window has to be read; without `has_changed`, that it was read."""
        self.is_news |= has_changed
        if has_changed:
            self._add(key, self.changed)
        else:
            self.changed.setdefault(key[0], set()).discard(key[1])

    def _add(self, key: WindowKey, to: dict[str, set[Micros]]) -> None:
        version, start = key
        starts = to.setdefault(version, set())
        if start not in starts:
            starts.add(start)
            self._added.setdefault(version, []).append(start)

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

    def in_order(self, version: str, more: Collection[Micros] = ()) -> Iterator[Micros]:
        """The starts that a version has, and `more`, each once, in time order; those that are added meanwhile may be left out."""
        unfinal, changed = self.unfinal[version], self.changed[version]
        order = self._order.get(version, [])
        if len(order) > 2 * (len(unfinal) + len(changed)):
            order = [start for start in order if start in unfinal or start in changed]
        if added := self._added.pop(version, None):
            order = sorted([*order, *sorted(added)])  # O(n): two ordered runs
        self._order[version] = order
        last: Micros | None = None
        for start in sorted({*self.of(version), *more}) if more else order:
            if start != last and (more or start in unfinal or start in changed):
                last = start
                yield start

    def keep_only(self, versions: Collection[str]) -> None:
        for sets in (self.changed, self.unfinal, self._order, self._added):
            for version in sets.keys() - versions:
                del sets[version]

    def leave_out(
        self,
        is_gone: Callable[[str, Micros], bool],
        before: Callable[[str], Micros] = lambda version: AFTER_ALL,
    ) -> None:
        """Forget windows that are gone. before: of a version, none is gone that starts at this time or later."""
        for sets in (self.changed, self.unfinal):
            for version, starts in sets.items():
                until = before(version)
                gone = [start for start in starts if start < until and is_gone(version, start)]
                starts.difference_update(gone)
