"""The windows of a job at its master: which changed, which are due, and what they hold.

    panes change --> changed --emit interval--> open, told once (nothing is logged)
                                   |
                                   +-- due --> FINAL proposed (rows kept) --committed--> final or revised, told until held

A window is due when everyone expected is done with it; or when more than half is, and has been for `hold_us_max`, and more than
half of the roster has reported under this ballot. A final window that changes, or whose coverage grows to the whole, is proposed
again. What a sink holds from before this log began (it was rebuilt) is told there again only with whole coverage (`outbox`), and
not told to watchers before; it is due with less only when nobody will come any more who has not.

A change of the schedule may leave windows that were told without a version that speaks for them: they are withdrawn, by a word of
their own at a higher revision, also those that only a sink's ledger knows of.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from elf.cbt.budget import Budget
from elf.jobmaster.delivery.outbox import LATER
from elf.jobmaster.log.entries import Accept, Final, Revision
from elf.jobmaster.log.job_state import JobState, Published, WindowKey
from elf.jobmaster.log.schedule import AFTER_ALL, BEFORE_ALL
from elf.jobmaster.master.contents import Contents
from elf.jobmaster.master.elsewhere import Elsewhere
from elf.jobmaster.master.unsettled import Unsettled
from elf.jobmaster.master.window_rule import Coverage, Progress
from elf.jobmaster.windows.reading import Content
from elf.jobmaster.windows.result import Lines, Window
from elf.jobmaster.windows.windows import starts_of
from elf.srt.messages.ids import JobId
from elf.srt.messages.messages import Ballot, Micros
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import NO_ROWS, WITHDRAWN, PaneParts, Put


class Ready(msgspec.Struct, frozen=True):
    """A window's result as it was read at entry `at`."""

    key: WindowKey
    covers: tuple[Micros, Micros]
    status: str
    revision: Revision
    coverage: Coverage
    rows: Sequence[tuple[Any, ...]]
    lines: Lines
    digest: int
    at: int
    panes: tuple[PaneParts, ...] = ()

    @property
    def entry(self) -> Final:
        version, start = self.key
        about = (self.revision, self.digest, *self.coverage, self.at, self.covers, self.status != "final")
        return Final(version, start, *about)


class Publication:
    """What a master publishes. `lateness_us`, `keep_us` as the job says."""

    def __init__(
        self,
        state: JobState,
        ballot: Ballot,
        parameters: Parameters,
        budget: Budget,
        *,
        lateness_us: Micros,
        keep_us: Micros,
        emit_us: Micros | None = None,
        stores_states: bool = False,
    ) -> None:
        self.state, self.ballot, self.lateness_us, self.keep_us = state, ballot, lateness_us, keep_us
        self._parameters = parameters
        self._contents = Contents(state, budget, stores_states)
        self.elsewhere = Elsewhere(ballot, parameters.lagging_us)
        self._unsettled = Unsettled()
        self._counts: dict[WindowKey, int] = {}
        self._pending: dict[WindowKey, Ready] = {}
        self._held_since: dict[WindowKey, int] = {}
        self._partial: set[WindowKey] = set()
        self._forced: set[WindowKey] = set()
        self._before: set[WindowKey] = set()  # published before this log began
        self._unlogged: set[WindowKey] = set()  # published since, by a log of which this one is an older copy
        self._better: set[WindowKey] = set()  # of these, whose first panes are not in this log
        self.has_ledgers = True
        """Whether every durable sink has told its ledger."""
        self._patience = -(-parameters.transfer_us_max // (emit_us or parameters.emit_us))
        """In so many emit intervals from now on nothing is retired that a sink may lack."""
        self._emitted_at = 0  # how far the log was then
        self._final_until: Micros | None = None
        self._settled_us: Micros = BEFORE_ALL
        """Nobody will tell of a window that ends before it, also where there was no line, or where the job has no windows."""
        self._opened: dict[WindowKey, Micros] = {}  # told as open and not final yet, and their ends
        self._withdrawn: dict[WindowKey, Put] = {}
        self._rests: dict[WindowKey, int] = {}
        """Large open windows -> for how many emit intervals they are not read."""

    # ---- what changed ----

    def resume(self) -> None:
        """Look at the state as it is: every window that is not final, or has changed since."""
        for version, touched in self.state.touched.items():
            self.touch(version, touched)
        finals = self.state.finals
        for key, published in finals.items():
            self._note_final(key, published)
            self._unsettled.mark(key, self._changed_since(key, published))
        self._leave_out_past()

    def _changed_since(self, key: WindowKey, published: Published) -> bool:
        version, start = key
        if published.covers != self.state.covers(version, start):
            return True
        size = self.state.shape(version).size_us
        touched = self.state.touched[version]
        return any(at > published.at for pane, at in touched.items() if start <= pane < start + size)

    def touch(self, version: str, panes: Iterable[Micros]) -> None:
        """Panes of a version changed. Entries behind may already have ended that version."""
        if version not in self.state.touched:
            return
        shape = self.state.shape(version)
        self._unsettled.begin(version)
        finals, reading = self.state.finals, self._contents.reading
        for pane in panes:
            for start in starts_of(pane, shape.size_us, shape.slide_us) if shape.pane_us else (0,):
                key = (version, start)
                if reading is not None and reading.key == key:
                    reading.is_stale = True
                if (
                    key not in self._better
                    and not self.state.is_past(*key)
                    and not self.state.is_withdrawn(*key)
                ):
                    self._unsettled.touch(key, is_final=key in finals)

    def accepted(self, index: int, entry: Accept) -> None:
        """A bundle's panes changed; the lines that came past retention are counted in another one."""
        retained = self.state.positions.retained_us
        for version, part in entry.parts.items():
            panes = part.rows[1].pane.tolist()
            self.touch(version, panes)
            if panes and panes[0] < retained:
                self._touch_since(index)

    def _touch_since(self, index: int) -> None:
        for version, touched in self.state.touched.items():
            self.touch(version, [pane for pane, at in touched.items() if at >= index])

    def _note_final(self, key: WindowKey, published: Published) -> None:
        version, start = key
        self._unsettled.final(key)
        self._opened.pop(key, None)
        self._held_since.pop(key, None)
        self._rests.pop(key, None)
        whole = published.passed == published.expected
        (self._partial.discard if whole else self._partial.add)(key)
        end = self.state.covers(version, start)[1]
        self._final_until = end if self._final_until is None else max(end, self._final_until)

    def schedule_changed(self, index: int) -> tuple[list[Put], list[Put]]:
        """CONTROL at `index`: versions that are gone have no windows; those whose panes were given up have changed. Returns what
        is withdrawn: (of windows that were final, of those that were told as open)."""
        known = self.state.touched
        self._contents.reading = None
        self._unsettled.keep_only(self.state.touched.keys())
        self._pending = {key: ready for key, ready in self._pending.items() if key[0] in known}
        self._partial &= self.state.finals.keys()
        self._unsettled.leave_out(self.state.is_withdrawn)
        self._touch_since(index)
        for version, start in self.state.finals:
            if self.state.finals[version, start].covers != self.state.covers(version, start):
                self._unsettled.mark((version, start))
        self._unsettled.mark_unfinal()
        opened = {key: end for key, end in self._opened.items() if self.state.is_withdrawn(*key)}
        for key in opened:
            del self._opened[key]
        return (
            [self._withdraw(key, end) for key, end in self.state.withdrawn.items()],
            [self._withdraw(key, end) for key, end in opened.items()],
        )

    def _withdraw(self, key: WindowKey, end: Micros, held: Revision = (0, b"", 0)) -> Put:
        """The word that a window is no result any more, above all that was told of it. held: what a sink has of it."""
        if held[:2] == self.ballot:
            self._counts[key] = max(self._counts.get(key, 0), held[2])
        version, start = key
        about = (WITHDRAWN, self.next_revision(key), NO_ROWS, 0, 0, (0, 0, 0, 0))
        put = Put(self.state.job, self.ballot, version, start, end, (start, start), *about)
        self._withdrawn[key] = put
        return put

    def withdrawn(self, key: WindowKey) -> Put | None:
        """That word once more, unless the window has come back since."""
        return self._withdrawn.get(key)

    def retired(self) -> None:
        """Panes are gone: so are the windows that began there."""
        self._rests = {key: rest for key, rest in self._rests.items() if not self._is_over(key)}
        reading = self._contents.reading
        if reading is not None and self._is_over(reading.key):
            self._contents.reading = None
        self._unsettled.keep_only(self.state.touched.keys())
        self._leave_out_past()
        told: tuple[dict[WindowKey, Any], ...] = (self._counts, self._opened, self._withdrawn)
        for each in told:
            for key in [key for key in each if self._is_over(key)]:
                del each[key]
        self._contents.keep_only(self.state.touched.keys())

    def _leave_out_past(self) -> None:
        """Windows that nobody can read any more."""
        is_past = self.state.is_past
        self._unsettled.leave_out(is_past)
        for keys in (self._partial, self._forced, self._before, self._unlogged, self._better):
            keys.difference_update([key for key in keys if is_past(*key)])
        for key in [key for key in self._held_since if is_past(*key)]:
            del self._held_since[key]

    def _is_over(self, key: WindowKey) -> bool:
        """Whether nobody will tell of a window again: a version that went may come back, and its revisions go on."""
        if key[0] in self.state.touched:
            return self.state.is_past(*key)
        return key[1] < self.state.positions.retained_us - self._longest_us

    def ledger_reported(
        self, entries: Sequence[tuple[WindowKey, Revision, int]], is_late: bool = False
    ) -> list[Put]:
        """A durable sink's ledger: what differs there is logged and published once more, what is no result is withdrawn (which
        is returned). is_late: the sink has come since this master began, so it was not told what this one published before."""
        told = {key: (revision, digest) for key, revision, digest in entries}
        results = {key: held for key, held in told.items() if held[1] != NO_ROWS}
        for key, (revision, _) in results.items():
            if self.is_before(revision) and not self.state.is_past(*key):
                self._before.add(key)
                if key not in self.state.finals:
                    self._leave_to_the_sink(key)
            elif key not in self.state.finals and revision[:2] != self.ballot:
                self._unlogged.add(key)
        for key, published in self.state.finals.items():
            is_others = is_late or published.revision[:2] != self.ballot
            is_better = (
                key in results and self.is_before(results[key][0]) and published.passed < published.expected
            )
            if is_others and not is_better and self.ledger_differs(published, told.get(key)):
                self._forced.add(key)
                self._unsettled.mark(key)
        shapes = self.state.positions.shapes
        return [
            self._withdraw(key, key[1] + (shapes[key[0]].size_us if key[0] in shapes else 0), revision)
            for key, (revision, _) in results.items()
            if self.state.is_withdrawn(*key)
        ]

    def _leave_to_the_sink(self, key: WindowKey) -> None:
        """A window that began before this log, which has only its end: the sink holds a better one."""
        if key[1] < self.state.positions.since_us:
            self._better.add(key)
            self._unsettled.discard(key)

    def ledger_differs(self, published: Published, held: tuple[Revision, int] | None) -> bool:
        """Sinks*: whether a sink lacks what the log says is final, or holds something else: other rows, or the same as another
        master told them, who may have called them less than whole."""
        return held is None or held != (published.revision, published.digest)

    # ---- what is due ----

    @property
    def has_work(self) -> bool:
        """Whether an emit interval may have something to say."""
        return bool(self._unsettled) or bool(self._partial)

    def emit(
        self, now: int, has_majority: bool, finals_max: int, with_open: bool = True
    ) -> tuple[list[Ready], list[Ready]]:
        """(windows to log as final, at most so many; windows to tell as open), in time order for each version. Without
        `with_open` those that are open are not read: nobody wants them."""
        progress = self.settle()
        # A log that stands still keeps ledgers waiting that are behind it.
        if self.state.index != self._emitted_at:
            self._emitted_at = self.state.index
            self._patience -= 1
        self._contents.look()
        due: list[Ready] = []
        opened: list[Ready] = []
        for version in list(self._unsettled.unfinal):
            for start in sorted(self._unsettled.of(version) | self._incomplete(version)):
                key = (version, start)
                if key in self._pending:
                    continue
                if len(due) >= finals_max:
                    return self._awaiting_log(due), opened
                ready = self._final(key, progress, now, has_majority)
                if isinstance(ready, Ready):
                    due.append(ready)
                elif (
                    ready is None
                    and with_open
                    and key not in self.state.finals
                    and self._unsettled.has_changed(key)
                    and self.may_be_partial(key)
                ):
                    opened += self._open(key, progress)
        return self._awaiting_log(due), opened

    def _open(self, key: WindowKey, progress: Progress) -> list[Ready]:
        """A large one is read for a quarter of the time at most."""
        if self._rests.get(key):
            self._rests[key] -= 1
            return []
        ready = self._read(key, "open", progress.of_open(*self.state.covers(*key)))
        if not isinstance(ready, Ready):
            return []
        self._opened[key] = key[1] + self.state.shape(key[0]).size_us
        return [ready]

    def _awaiting_log(self, due: list[Ready]) -> list[Ready]:
        """They are not told, and not read again, before the log has them."""
        for ready in due:
            self._pending[ready.key] = ready
        return due

    def _incomplete(self, version: str) -> set[Micros]:
        return {start for of, start in self._partial if of == version}

    def _final(
        self, key: WindowKey, progress: Progress, now: int, has_majority: bool
    ) -> Ready | Literal["later"] | None:
        version, start = key
        covers = self.state.covers(version, start)
        if not self.state.shape(version).pane_us or covers[1] + self.lateness_us > progress.highest:
            return None
        coverage = progress.of_final(*covers)
        known = self.state.finals.get(key)
        if known is None:
            if not self._is_due(key, progress, coverage, now, has_majority):
                return None
            if self.state.served != self.ballot:
                return LATER  # what others may have called final is in the log with the entry that this master serves
            return self._read(key, self._first_status(key), coverage)
        is_due = self._is_due(key, progress, coverage, now, has_majority)
        if not self._unsettled.has_changed(key) and not self._is_filled(key, coverage, is_due):
            return None
        if self._is_worse(coverage, known) and not is_due:
            return None
        ready = self._read(key, "revised", coverage)
        if not isinstance(ready, Ready):
            return LATER
        same = (ready.digest, ready.covers, *coverage) == (
            known.digest,
            known.covers,
            known.passed,
            known.expected,
        )
        if same and key not in self._forced:
            return None
        self._forced.discard(key)
        return ready

    def _first_status(self, key: WindowKey) -> str:
        """Rule Final*: what is told as final for the first time in this log may be a revision of what readers have."""
        due_us = self.state.covers(*key)[1] + self.lateness_us
        has_ledgers = key in self._before or key in self._unlogged
        is_known = has_ledgers or self.state.was_final(key) or self.elsewhere.may_have(due_us)
        return "revised" if is_known else "final"

    def _is_worse(self, coverage: Coverage, known: Published) -> bool:
        """Lines that a lane will bring again are waited for, as long as for a window that was not final yet."""
        return coverage.passed * known.expected < known.passed * coverage.expected

    def _is_filled(self, key: WindowKey, coverage: Coverage, is_due: bool) -> bool:
        """Whether more have come since the window was published with less, and nobody else for a while."""
        return key in self._partial and coverage.passed > self.state.finals[key].passed and is_due

    def _is_due(
        self, key: WindowKey, progress: Progress, coverage: Coverage, now: int, has_majority: bool
    ) -> bool:
        if coverage.is_whole:
            return True
        is_settled = progress.is_settled(*self.state.covers(*key))
        is_waited_for = not is_settled and (
            not self.may_be_partial(key) or not progress.is_of_most(*self.state.covers(*key))
        )
        if is_waited_for or self._may_be_older(key):
            self._held_since.pop(key, None)
            return False
        if progress.have_all_passed(*self.state.covers(*key)):
            return has_majority
        since = self._held_since[key] = min(now, self._held_since.get(key, now))
        return now - since >= self._parameters.hold_us_max and has_majority

    def is_before(self, revision: Revision) -> bool:
        """Whether that was published before this log began."""
        return revision[:2] < self.state.ballot

    def may_be_partial(self, key: WindowKey) -> bool:
        """Rule 8*: what was published before the log was rebuilt is published again only when every member has replayed it. When
        nobody will come any more who has not, it is final in the log all the same: for sinks that do not hold it, and for
        retention."""
        return key not in self._before

    def _may_be_older(self, key: WindowKey) -> bool:
        """Whether a sink that has not told its ledger may hold the window from before this log began. It began with the oldest
        pane that was retained then (`changes.first_entry`), so when that was is known to two windows' lengths."""
        size = self.state.shape(key[0]).size_us
        span = self.keep_us + self.lateness_us + 2 * size
        return not self.has_ledgers and key[1] + size <= self.state.positions.since_us + span

    def _read(self, key: WindowKey, status: str, coverage: Coverage) -> Ready | Literal["later"]:
        """`LATER`: it is large, and being read; or another one is."""
        is_open = status == "open"
        found = self._contents.of(key, exact=not is_open, with_panes=not is_open)
        if found is None:
            return LATER
        content, reading = found
        if is_open and reading.taken > 1:
            self._rests[key] = reading.taken
        if not reading.is_stale:
            self._unsettled.mark(key, has_changed=False)
        self._withdrawn.pop(key, None)
        return self._ready(key, status, self.next_revision(key), coverage, content, self.state.index)

    def _ready(
        self, key: WindowKey, status: str, revision: Revision, coverage: Coverage, read: Content, at: int
    ) -> Ready:
        covers = self.state.covers(*key)
        about = (key, covers, status, revision, coverage)
        return Ready(*about, read.rows, read.lines, read.digest, at, read.panes)

    # ---- reading ----

    @property
    def is_reading(self) -> bool:
        """Whether `read_on` has something to do."""
        reading = self._contents.reading
        return reading is not None and reading.is_under_way

    def read_on(self) -> None:
        """One step of the large window that is being read."""
        self._contents.read_on()

    def next_revision(self, key: WindowKey) -> Revision:
        """Windows*: a revision is (epoch, node, n), compared in order: what a later master says counts, whatever it counted."""
        n = self._counts[key] = self._counts.get(key, 0) + 1
        return (*self.ballot, n)

    @property
    def _longest_us(self) -> Micros:
        return max((shape.size_us for shape in self.state.positions.shapes.values()), default=0)

    def committed(self, entry: Final) -> Ready | None:
        """FINAL is in the log: the rows that were read for it may be published now."""
        key = (entry.version, entry.start)
        if key in self.state.finals:
            self._note_final(key, self.state.finals[key])
        ready = self._pending.get(key)
        if ready is None or ready.revision != entry.revision:
            return None
        del self._pending[key]
        return ready if entry.version in self.state.touched else None  # CONTROL, or its end, came before it

    def reread(self, key: WindowKey) -> Ready | Literal["later"] | None:
        """A window that is final, read once more as the log has it; `LATER` while it is being read; None if its panes have
        changed since: then it is published anew, whether or not that would have been worth it."""
        known = self.state.finals.get(key)
        if known is None or self.state.is_past(*key) or key in self._pending:
            return None
        found = self._contents.of(key, exact=True, with_panes=True)
        if found is None:
            return LATER
        content, covers = found[0], self.state.covers(*key)
        if (content.digest, covers) != (known.digest, known.covers):
            self._forced.add(key)
            self._unsettled.mark(key)
            return None
        coverage = Coverage(known.passed, known.expected)
        return self._ready(key, known.status, known.revision, coverage, content, known.at)

    def newest_finals(self, since_us: Micros, back: int) -> list[WindowKey]:
        """Final windows that start at `since_us` or later, and so many of the newest before, in order of time. O(n log n)."""
        told = (
            key
            for key, known in self.state.finals.items()
            if known.passed == known.expected or self.may_be_partial(key)
        )
        finals = sorted(told, key=lambda key: (key[1], key[0]))
        before = bisect_left(finals, since_us, key=lambda key: key[1])
        return finals[max(0, before - back) :]

    def republish_open(self) -> None:
        """Windows that are not final are told at the next emit interval, though they have not changed: somebody is new."""
        self._unsettled.mark_unfinal()

    # ---- in the words of others ----

    def as_put(self, job: JobId, ready: Ready) -> Put:
        version, start = ready.key
        size = self.state.shape(version).size_us
        lines = (ready.lines.read, ready.lines.parsed, ready.lines.rejected, ready.lines.late)
        return Put(
            job,
            self.ballot,
            version,
            start,
            start + size,
            ready.covers,
            ready.status,
            ready.revision,
            ready.digest,
            *ready.coverage,
            lines,
            ready.rows,
            ready.panes,
        )

    def as_window(self, ready: Ready) -> Window:
        """For the local watcher. The node of a revision is its id as a number."""
        version, start = ready.key
        epoch, node, n = ready.revision
        windowed = bool(self.state.shape(version).size_us)
        made = self._contents.publisher(version).window(
            start if windowed else None,
            ready.rows,
            ready.lines,
            ready.status,
            (epoch, int.from_bytes(node), n),
        )
        return msgspec.structs.replace(
            made, agents_reporting=ready.coverage.passed, agents_expected=ready.coverage.expected
        )

    # ---- retention ----

    def settle(self) -> Progress:
        """See how far everybody has come. O(workers)."""
        progress = Progress(self.state, self.lateness_us)
        self._settled_us = progress.lowest - self.lateness_us
        return progress

    def retire_at(self, unsent_us: Micros = AFTER_ALL) -> Micros | None:
        """Up to where panes and positions may go: final for `keep_us` (where there are no windows, or none with lines: everyone
        is past it for as long), and before all that is not final; and before what has changed since, is to be read again, or
        waits for a sink (from `unsent_us` on), unless that has not been done for as long once more."""
        done = max(self._settled_us, BEFORE_ALL if self._final_until is None else self._final_until)
        if not 0 <= done < AFTER_ALL >> 1:
            return None
        bounds = [done - self.keep_us, max(unsent_us, done - 2 * self.keep_us)]
        for version, starts in self._unsettled.unfinal.items():
            if starts and self.state.shape(version).pane_us:
                bounds.append(min(starts))
        for version, starts in self._unsettled.changed.items():
            if starts and self.state.shape(version).pane_us:
                bounds.append(max(min(starts), done - 2 * self.keep_us))
        bounds += [start for _, start in self._pending]
        if self._patience > 0:
            bounds += [start for _, start in self._forced] if self.has_ledgers else [BEFORE_ALL]
        if self.state.positions.lane is not None:
            bounds.append(max(self.state.positions.lane.from_us, done - 2 * self.keep_us))
        return min(bounds)

    def oldest_open(self, now: Micros) -> Micros:
        """Start of the oldest window that is not final, in the newest version; of the present one if there is none. What was
        final before the log began anew still is, though it is not whole again yet."""
        version = self.state.schedule[-1].version
        shape = self.state.shape(version)
        if not shape.pane_us:
            return self.state.positions.since_us
        known = self.state.finals.keys() | self._before
        behind = [start + shape.slide_us for of, start in known if of == version]
        unfinal = {
            start
            for start in self._unsettled.unfinal.get(version, set())
            if (version, start) not in self._before
        }
        low = min(unfinal, default=now - now % shape.slide_us)
        return min(low, max(behind)) if behind else low

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        for version, starts in self._unsettled.unfinal.items():
            assert all((version, start) not in self.state.finals for start in starts)
        assert all(ready.revision[:2] == self.ballot for ready in self._pending.values())
        assert self._partial <= self.state.finals.keys()
