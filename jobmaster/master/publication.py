"""The windows of a job at its master: which of them have changed, which are due, and their contents.

    panes change --> changed --emit interval--> open, published once (nothing is logged)
                                   |
                                   +-- due --> FINAL proposed (rows kept) --committed--> final or revised, sent until acknowledged

A window is due when all expected workers are done with it; or when more than half have been done for `hold_us_max`, and more than
half of the roster has reported under this ballot. A final window that changes, or that is due again with higher coverage, is
proposed again. If this log was rebuilt, a window that a sink holds from before is sent to that sink, and to watchers, only with
whole coverage (`outbox`); it is due with less only when no missing worker can still report.

A change of the schedule may leave published windows without a version that covers them. A message of its own, at a higher
revision, withdraws each of them, including those that only a sink's ledger has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from elf.cbt.budget import Budget
from elf.jobmaster.delivery.outbox import LATER
from elf.jobmaster.directory.job_spec import END
from elf.jobmaster.log.entries import Accept, Final, Revision
from elf.jobmaster.log.job_state import JobState, Published, WindowKey
from elf.jobmaster.log.schedule import AFTER_ALL, BEFORE_ALL
from elf.jobmaster.master.contents import Contents
from elf.jobmaster.master.earlier_results import EarlierResults
from elf.jobmaster.master.elsewhere import Elsewhere
from elf.jobmaster.master.held import Held
from elf.jobmaster.master.ready import Ready
from elf.jobmaster.master.unsettled import Unsettled
from elf.jobmaster.master.window_rule import Coverage, Progress
from elf.jobmaster.master.window_settings import WindowSettings
from elf.jobmaster.windows.reading import Content
from elf.jobmaster.windows.windows import starts_of
from elf.srt.messages.messages import Ballot, Micros
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import NO_ROWS, WITHDRAWN, Put


class Publication:
    """The windows that a master publishes. settings: which each has."""

    def __init__(
        self,
        state: JobState,
        ballot: Ballot,
        parameters: Parameters,
        budget: Budget,
        *,
        settings: WindowSettings,
        stores_states: bool = False,
    ) -> None:
        self.state, self.ballot, self.settings = state, ballot, settings
        self._parameters = parameters
        self.contents = Contents(state, budget, stores_states, settings.sample)
        self.earlier = EarlierResults(state, ballot)
        self.elsewhere = Elsewhere(ballot, parameters.lagging_us)
        self.unsettled = self._unsettled = Unsettled()
        self._counts: dict[WindowKey, int] = {}
        self._pending: dict[WindowKey, Ready] = {}
        self.held = Held(parameters.hold_us_max)
        self._partial: set[WindowKey] = set()
        self._at_rest: set[WindowKey] = set()
        """Windows of `_partial` whose coverage stays as it is for as long as `Progress.apart_from_watermarks` does."""
        self._known_apart: tuple[object, ...] = ()
        self._forced: set[WindowKey] = set()
        self.has_ledgers = True
        """Whether every durable sink has reported its ledger."""
        self._retire_wait_us = parameters.transfer_us_max
        """For how much longer windows that a sink may lack are not retired, while the log makes progress."""
        self._late_wait_us = 0
        """The same, for windows that a sink has not acknowledged, since one became final that had waited for workers."""
        self._emitted_at = -1  # the log's index at the last emission
        self._emitted_us: int | None = None
        self.is_unfinished = False
        """Whether the last emission left work, or something has changed that is in no entry."""
        self.is_behind = self.has_more = False
        """Whether the last emission left windows that are due; and whether because it had as many as it may log."""
        self._final_until: Micros | None = None
        self._settled_us: Micros = BEFORE_ALL
        """No worker will report lines before this time; also known without lines, and for jobs without windows."""
        self._opened: dict[
            WindowKey, Micros
        ] = {}  # windows published as open and not final yet -> their ends
        self._withdrawn: dict[WindowKey, Put] = {}
        self._rests: dict[WindowKey, int] = {}
        """Large open windows -> for how many more emit intervals they are not read."""

    @property
    def past_finals(self) -> Micros:
        """The first time past the beginnings of all windows that are final in the log, or proposed to be. O(windows)."""
        keys = [key for key in (*self.state.finals, *self._pending) if key[0] in self.state.touched]
        return max((self.state.covers(*key)[0] + 1 for key in keys), default=BEFORE_ALL)

    # ---- changes ----

    def resume(self) -> None:
        """Find the state's windows that are not final, or have changed since they were."""
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
        """Panes of a version changed. Later entries may have removed that version already. The job's end has no windows."""
        if version not in self.state.touched or version == END:
            return
        shape = self.state.shape(version)
        self._unsettled.begin(version)
        finals, reading = self.state.finals, self.contents.reading
        for pane in panes:
            for start in starts_of(pane, shape.size_us, shape.slide_us) if shape.pane_us else (0,):
                key = (version, start)
                if reading is not None and reading.key == key:
                    reading.is_stale = True
                if (
                    not self.earlier.is_better(key)
                    and not self.state.is_past(*key)
                    and not self.state.is_withdrawn(*key)
                ):
                    self._unsettled.touch(key, is_final=key in finals)

    def accepted(self, index: int, entry: Accept) -> None:
        """A bundle's panes changed, and, if it had lines past retention, the pane that counts them."""
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
        if self.held.drop(key):  # it may be older than what is kept, and sinks have just received it
            self._late_wait_us = self._parameters.transfer_us_max
        self._rests.pop(key, None)
        self._at_rest.discard(key)
        whole = published.passed == published.expected
        (self._partial.discard if whole else self._partial.add)(key)
        end = self.state.covers(version, start)[1]
        self._final_until = end if self._final_until is None else max(end, self._final_until)

    def schedule_changed(self, index: int) -> tuple[list[Put], list[Put]]:
        """CONTROL at `index`: removed versions have no windows; windows whose panes were dropped have changed. Returns two lists
        of withdrawals: of final windows, also those that only a sink's ledger has, and of windows that were published as open."""
        known = self.state.touched
        self.contents.reading = None
        self._unsettled.keep_only(self.state.touched.keys())
        self._at_rest.clear()
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
        finals = [self._withdraw(key, end) for key, end in self.state.withdrawn.items()]
        finals += [
            self._withdraw_held(key, held)
            for key, held in self.earlier.take_withdrawn().items()
            if key not in self.state.withdrawn
        ]
        return finals, [self._withdraw(key, end) for key, end in opened.items()]

    def _withdraw_held(self, key: WindowKey, held: Revision) -> Put:
        """A withdrawal of a window that a sink holds in that revision."""
        shape = self.state.positions.shapes.get(key[0])
        return self._withdraw(key, key[1] + (shape.size_us if shape is not None else 0), held)

    def _withdraw(self, key: WindowKey, end: Micros, held: Revision = (0, b"", 0)) -> Put:
        """A withdrawal of a window, at a revision above all that were published. held: the revision that a sink has."""
        if held[:2] == self.ballot:
            self._counts[key] = max(self._counts.get(key, 0), held[2])
        version, start = key
        about = (WITHDRAWN, self.next_revision(key), NO_ROWS, 0, 0, (0, 0, 0, 0))
        put = Put(self.state.job, self.ballot, version, start, end, (start, start), *about)
        self._withdrawn[key] = put
        return put

    def withdrawn(self, key: WindowKey) -> Put | None:
        """The window's withdrawal, unless the window has come back since."""
        return self._withdrawn.get(key)

    def retired(self) -> None:
        """Panes were dropped: forget the windows that began there."""
        self._rests = {key: rest for key, rest in self._rests.items() if not self._is_over(key)}
        reading = self.contents.reading
        if reading is not None and self._is_over(reading.key):
            self.contents.reading = None
        self._unsettled.keep_only(self.state.touched.keys())
        self._leave_out_past()
        published: tuple[dict[WindowKey, Any], ...] = (self._counts, self._opened, self._withdrawn)
        for each in published:
            for key in [key for key in each if self._is_over(key)]:
                del each[key]
        self.contents.keep_only(self.state.touched.keys())

    def _leave_out_past(self) -> None:
        """Forget windows whose panes are dropped."""
        is_past = self.state.is_past
        self._unsettled.leave_out(is_past, self.state.none_past_from)
        self.earlier.leave_out(is_past)
        for keys in (self._partial, self._at_rest, self._forced):
            keys.difference_update([key for key in keys if is_past(*key)])
        self.held.leave_out(is_past)

    def _is_over(self, key: WindowKey) -> bool:
        """Whether a window will never be published again. A removed version may come back; its revisions then continue."""
        if key[0] in self.state.touched:
            return self.state.is_past(*key)
        return key[1] < self.state.positions.retained_us - self.state.positions.longest_us

    def ledger_reported(
        self,
        entries: Sequence[tuple[WindowKey, Revision, int]],
        is_late: bool = False,
        takes: Callable[[WindowKey], bool] = lambda key: True,
    ) -> tuple[list[Put], list[WindowKey]]:
        """A durable sink reported its ledger: windows that differ there are logged and published again. Returns withdrawals of
        those that are no results, and the windows of which it lacks the last revision. takes: whether a window is for that sink.
        is_late: the sink was added after this master began, and lacks what was published before."""
        ledger = {key: (revision, digest) for key, revision, digest in entries}
        results = {key: held for key, held in ledger.items() if held[1] != NO_ROWS}
        for key in self.earlier.report(results):
            self._unsettled.discard(key)
        lacking: list[WindowKey] = []
        for key, published in self.state.finals.items():
            is_others = (is_late or published.revision[:2] != self.ballot) and takes(key)
            is_partial = published.passed < published.expected
            is_better = key in results and self.earlier.is_before(results[key][0]) and is_partial
            if not is_others or is_better or self.state.is_past(*key):
                continue
            if key not in ledger or ledger[key][0] < published.revision:
                lacking.append(key)
            elif self.ledger_differs(published, ledger[key]):
                self._forced.add(key)
                self._unsettled.mark(key)
        withdrawals = [
            self._withdraw_held(key, revision)
            for key, (revision, _) in results.items()
            if self.state.is_withdrawn(*key)
        ]
        return withdrawals, lacking

    def ledger_differs(self, published: Published, held: tuple[Revision, int]) -> bool:
        """Sinks*: whether a sink holds another revision than the log, and not an earlier one: other rows, or the same rows from
        another master, which may have had less coverage."""
        return held != (published.revision, published.digest)

    # ---- emission ----

    @property
    def has_work(self) -> bool:
        """Whether the next emission may publish a window: the log or a window has changed since the last one, or that one left
        work; but see `held`."""
        has_changed = self._unsettled.is_news or self.is_unfinished or self.state.index != self._emitted_at
        return has_changed and (bool(self._unsettled) or bool(self._partial))

    def emit(
        self,
        now: int,
        has_majority: bool,
        finals_max: int,
        backlog_max: int,
        with_open: bool,
    ) -> tuple[list[Ready], list[Ready]]:
        """Returns at most `finals_max` windows to log as final, `backlog_max` of those that ended before retention, and the
        windows to publish as open; each in time order for each version. Without `with_open`, open windows are not read."""
        progress = self.settle()
        if progress.apart_from_watermarks != self._known_apart:
            self._known_apart = progress.apart_from_watermarks
            self._at_rest.clear()
        # While the log makes no progress, reported ledgers wait too, so the wait must not run down.
        since, self._emitted_us = self._emitted_us, now
        if self.state.index != self._emitted_at:
            passed_us = self._parameters.emit_us if since is None else max(now - since, 0)
            passed_us = min(passed_us, self._parameters.transfer_us_max // 4)
            self._retire_wait_us -= passed_us
            self._late_wait_us -= passed_us
        self._emitted_at, self._unsettled.is_news = self.state.index, False
        self.contents.look()
        self.is_behind = self.has_more = False
        due: list[Ready] = []
        opened: list[Ready] = []
        backlog_us = now - self.settings.newest.keep_us
        for version in list(self._unsettled.unfinal):
            size = self.state.shape(version).size_us
            for start in self._unsettled.in_order(version, self._incomplete(version)):
                key = (version, start)
                if key in self._pending:
                    continue
                if len(due) >= min(finals_max, backlog_max if start + size < backlog_us else finals_max):
                    self.is_unfinished = self.is_behind = self.has_more = True
                    return self._keep_due(due), opened
                ready = self._final(key, progress, now, has_majority)
                if isinstance(ready, Ready):
                    due.append(ready)
                elif ready == LATER:
                    self.is_behind = True
                elif (
                    with_open
                    and key not in self.state.finals
                    and self._unsettled.has_changed(key)
                    and self.earlier.may_be_partial(key)
                ):
                    opened += self._open(key, progress)
        self.is_unfinished = self.contents.reading is not None or bool(self._rests)
        return self._keep_due(due), opened

    def _open(self, key: WindowKey, progress: Progress) -> list[Ready]:
        """Read an open window. A large one is then not read again for as many emit intervals as its reading took steps."""
        if self._rests.get(key):
            self._rests[key] -= 1
            return []
        ready = self._read(key, "open", progress.of_open(*self.state.covers(*key)))
        if not isinstance(ready, Ready):
            return []
        self._opened[key] = key[1] + self.state.shape(key[0]).size_us
        return [ready]

    def _keep_due(self, due: list[Ready]) -> list[Ready]:
        """Keep the windows that are due. They are published, and may be read again, only when the log has them."""
        for ready in due:
            self._pending[ready.key] = ready
        return due

    def _incomplete(self, version: str) -> set[Micros]:
        """The windows whose coverage may have grown. Of a job with lost lines most windows are not whole, for as long as they are
        kept; so those at rest are left out."""
        return {start for of, start in self._partial - self._at_rest if of == version}

    def _final(
        self, key: WindowKey, progress: Progress, now: int, has_majority: bool
    ) -> Ready | Literal["later"] | None:
        version, start = key
        covers, lateness_us = self.state.covers(version, start), self.settings.of(key).lateness_us
        progress = progress.within(lateness_us)
        if not self.state.shape(version).pane_us or covers[1] + lateness_us > progress.highest:
            return None
        coverage = progress.of_final(*covers)
        known = self.state.finals.get(key)
        if known is None:
            if not self._is_due(key, progress, coverage, now, has_majority):
                return None
            if self.state.served != self.ballot:
                return LATER  # the committed `Serve` says which windows earlier masters may have published as final
            status = self._first_status(key)
            if status == "final" and not has_majority:  # so it was due in the log that this master took over
                if self.held.holds(key, now):
                    return LATER
                status = "revised"
            return self._read(key, status, coverage)
        is_due = self._is_due(key, progress, coverage, now, has_majority)
        if not self._unsettled.has_changed(key) and not self._has_more_coverage(key, coverage, is_due):
            if coverage.passed <= known.passed and progress.have_all_passed(*covers):
                self._at_rest.add(key)
            return None
        if self._has_less_coverage(coverage, known) and not is_due:
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
        """Rule Final*: the status of a window that is final in this log for the first time: "revised" if readers may have a final
        result of it."""
        due_us = self.state.covers(*key)[1] + self.settings.of(key).lateness_us
        is_known = self.earlier.has(key) or self.state.was_final(key) or self.elsewhere.may_have(due_us)
        return "revised" if is_known else "final"

    def _has_less_coverage(self, coverage: Coverage, known: Published) -> bool:
        """Whether coverage fell, because of an open lane. Then the window waits for lines like one that is not final yet."""
        return coverage.passed * known.expected < known.passed * coverage.expected

    def _has_more_coverage(self, key: WindowKey, coverage: Coverage, is_due: bool) -> bool:
        """Whether coverage has grown since the window was published, and the window is due again."""
        return key in self._partial and coverage.passed > self.state.finals[key].passed and is_due

    def _is_due(
        self, key: WindowKey, progress: Progress, coverage: Coverage, now: int, has_majority: bool
    ) -> bool:
        if coverage.is_whole:
            return True
        is_settled = progress.is_settled(*self.state.covers(*key))
        is_waited_for = not is_settled and (
            not self.earlier.may_be_partial(key) or not progress.has_majority(*self.state.covers(*key))
        )
        if is_waited_for or self._may_be_older(key):
            self.held.drop(key)
            return False
        if progress.have_all_passed(*self.state.covers(*key)):
            return has_majority
        return not self.held.holds(key, now) and has_majority

    def _may_be_older(self, key: WindowKey) -> bool:
        """Whether a sink that has not reported its ledger may hold the window from before this log began. The log began at the
        oldest pane retained at that time (`changes.first_entry`), so it is known when, to within two windows' lengths."""
        size, settings = self.state.shape(key[0]).size_us, self.settings.of(key)
        span = settings.keep_us + settings.lateness_us + 2 * size
        return not self.has_ledgers and key[1] + size <= self.state.positions.since_us + span

    def _read(self, key: WindowKey, status: str, coverage: Coverage) -> Ready | Literal["later"]:
        """Read a window. Returns `LATER` while this window, or another one, is large and still being read."""
        is_open = status == "open"
        found = self.contents.of(key, exact=not is_open, with_panes=not is_open)
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
        about = (key, self.state.shape(key[0]).size_us, self.state.covers(*key), status, revision, coverage)
        return Ready(*about, read.rows, read.lines, read.digest, at, read.panes, read.others)

    # ---- committed and read again ----

    def next_revision(self, key: WindowKey) -> Revision:
        """Windows*: a revision is (epoch, maker, n), compared in order: a later master's is higher, whatever its n."""
        n = self._counts[key] = self._counts.get(key, 0) + 1
        return (*self.ballot, n)

    def committed(self, entry: Final) -> Ready | None:
        """FINAL is in the log. Returns the window that was read for it, to be published now."""
        key = (entry.version, entry.start)
        if key in self.state.finals:
            self._note_final(key, self.state.finals[key])
        ready = self._pending.get(key)
        if ready is None or ready.revision != entry.revision:
            return None
        del self._pending[key]
        return ready if entry.version in self.state.touched else None  # an earlier entry removed the version

    def reread(self, key: WindowKey) -> Ready | Literal["later"] | None:
        """Read a final window again, as the log has it. Returns `LATER` while it is being read, and None if its panes have
        changed since: then it is published anew, even if its coverage fell."""
        known = self.state.finals.get(key)
        if known is None or self.state.is_past(*key) or key in self._pending:
            return None
        found = self.contents.of(key, exact=True, with_panes=True)
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
        """The final windows that start at `since_us` or later, and the `back` newest before that, in time order. O(n log n)."""
        shown = (
            key
            for key, known in self.state.finals.items()
            if known.passed == known.expected or self.earlier.may_be_partial(key)
        )
        finals = sorted(shown, key=lambda key: (key[1], key[0]))
        before = bisect_left(finals, since_us, key=lambda key: key[1])
        return finals[max(0, before - back) :]

    def republish_open(self) -> None:
        """For a new watcher: publish all open windows at the next emit interval, even those that have not changed."""
        self._unsettled.mark_unfinal()

    # ---- retention ----

    def settle(self) -> Progress:
        """Compute the workers' progress. O(workers)."""
        lateness_us = max(each.lateness_us for each in self.settings.every)
        progress = Progress(self.state, lateness_us)
        self._settled_us = progress.lowest - lateness_us
        return progress

    def is_settled(self, until_us: Micros, *, with_open: bool) -> bool:
        """Whether no worker can still report lines before that time, and every window is final with the lines and the coverage
        that it has now. Of a query without windows, nothing is final: then, `with_open`, its lines have been published.
        O(workers + windows)."""
        progress = self.settle()
        if self._pending or not progress.is_settled(until_us - 1, until_us):
            return False
        for version, changed in self._unsettled.changed.items():
            if self._unsettled.of(version) if self.state.shape(version).pane_us else with_open and changed:
                return False
        return not any(
            self._has_more_coverage(key, within.of_final(*self.state.covers(*key)), is_due=True)
            for key in self._partial
            if (within := progress.within(self.settings.of(key).lateness_us))
        )

    def retire_at(self, unsent_us: Micros = AFTER_ALL, backlog_us: Micros = AFTER_ALL) -> Micros | None:
        """The time before which panes and positions may be dropped: the job's `keep` behind the last final window (behind all
        workers if there are no windows, or no lines in them), and before all windows that are not final. For windows that changed
        since, for lines to be read again, and for windows that a sink has not acknowledged, it is up to `keep` earlier; for the
        last also more, soon after one became final late. Of which settings: `retained_from`. unsent_us: the start of the oldest
        window that a sink has not acknowledged. backlog_us: that of the oldest that waits for a sink which takes windows."""
        done = max(self._settled_us, BEFORE_ALL if self._final_until is None else self._final_until)
        if not 0 <= done < AFTER_ALL >> 1:
            return None
        kept, latest = (self.settings.retained_from(done, times) for times in (1, 2))
        bounds = [kept, max(unsent_us, latest), backlog_us]
        for version, starts in self._unsettled.unfinal.items():
            if starts and self.state.shape(version).pane_us:
                bounds.append(min(starts))
        for version, starts in self._unsettled.changed.items():
            if starts and self.state.shape(version).pane_us:
                bounds.append(max(min(starts), latest))
        bounds += [start for _, start in self._pending]
        if self._retire_wait_us > 0:
            bounds += [start for _, start in self._forced] if self.has_ledgers else [BEFORE_ALL]
        if self._late_wait_us > 0:
            bounds.append(unsent_us)
        if self.state.positions.lane is not None:
            bounds.append(max(self.state.positions.lane.from_us, latest))
        return min(bounds)

    def open_starts(self, version: str) -> set[Micros]:
        """The starts of the version's windows that have lines and are not final. A window that was final before the log was
        rebuilt counts as final, even while workers still read it again."""
        unfinal = self._unsettled.unfinal.get(version, set())
        return {start for start in unfinal if (version, start) not in self.earlier.before}

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        for version, starts in self._unsettled.unfinal.items():
            assert all((version, start) not in self.state.finals for start in starts)
        assert all(ready.revision[:2] == self.ballot for ready in self._pending.values())
        assert self._partial <= self.state.finals.keys()
