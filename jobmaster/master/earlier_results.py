"""Results of earlier masters that sinks hold, according to their ledgers, and that this log may not have.

If this log was rebuilt, a window that was published before it began is published again only with whole coverage: until all
workers have read it again, the sink's result is the better one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from elf.jobmaster.log.entries import Revision
from elf.jobmaster.log.job_state import JobState, WindowKey
from elf.srt.messages.messages import Ballot, Micros


class EarlierResults:
    """What the master of `ballot` knows of them. state: that of its log. Memory: one entry per retained window of a ledger."""

    def __init__(self, state: JobState, ballot: Ballot) -> None:
        self._state, self._ballot = state, ballot
        self.before: set[WindowKey] = set()  # published before this log began
        self._unlogged: set[WindowKey] = (
            set()
        )  # published since, with a log of which this one is an older copy
        self._better: set[WindowKey] = set()  # of `before`: windows whose first panes are not in this log
        self._held: dict[WindowKey, Revision] = {}  # the highest revision of each that a sink holds

    def report(self, results: Mapping[WindowKey, tuple[Revision, int]]) -> list[WindowKey]:
        """A sink holds these results. Returns the windows that this log cannot improve, because it has only their end."""
        better: list[WindowKey] = []
        for key, (revision, _) in results.items():
            if self.is_before(revision) and not self._state.is_past(*key):
                self.before.add(key)
                if key not in self._state.finals and key[1] < self._state.positions.since_us:
                    better.append(key)
            elif key not in self._state.finals and revision[:2] != self._ballot:
                self._unlogged.add(key)
            else:
                continue
            self._held[key] = max(revision, self._held.get(key, revision))
        self._better.update(better)
        return better

    def take_withdrawn(self) -> dict[WindowKey, Revision]:
        """The windows that the schedule has no more, with the highest revision that a sink holds of each; once each. Readers may
        have had a final result of them, but no sink has one that is better than a later one. O(windows)."""
        gone = {key: held for key, held in self._held.items() if self._state.is_withdrawn(*key)}
        for key in gone:
            del self._held[key]
        self.before -= gone.keys()
        self._better -= gone.keys()
        self._unlogged |= gone.keys()
        return gone

    def is_before(self, revision: Revision) -> bool:
        """Whether the revision was published before this log began."""
        return revision[:2] < self._state.ballot

    def may_be_partial(self, key: WindowKey) -> bool:
        """Rule 8*: False for a window that was published before the log was rebuilt: it is published again only when all workers
        have read it again. If the missing workers can never do so, the log makes it final nevertheless, for sinks that lack it
        and for retention."""
        return key not in self.before

    def is_better(self, key: WindowKey) -> bool:
        """Whether a sink keeps its result of the window because this log has only the window's end."""
        return key in self._better

    def has(self, key: WindowKey) -> bool:
        """Whether a sink holds a result of the window that is not in this log."""
        return key in self.before or key in self._unlogged

    def leave_out(self, is_past: Callable[[str, Micros], bool]) -> None:
        """Forget windows whose panes are dropped."""
        for keys in (self.before, self._unlogged, self._better):
            keys.difference_update([key for key in keys if is_past(*key)])
        self._held = {key: held for key, held in self._held.items() if self.has(key)}
