"""How a job changes at its master: an operator's change is judged, then the control line of the new version goes into the log,
and then to all nodes.

    change of an operator -> judged -> taken: its spec goes into the directory, and from there to all masters of the job
                                    -> refused: the answer names the version that is in force
    spec of a higher rank -> due -> CONTROL proposed -> in the log -> multicast, again while a lane is open
                                                                   -> reported to the directory, for a master that finds no log

One change at a time: while a CONTROL is not in the log, the next one waits, and so do windows. While lines are read again, a
change waits too (`lane_wait`); the next one is then made of the one that waits, and supersedes it.

| state | what happens | next |
|---|---|---|
| in force | a change of the newest spec, and of the version in force, with the next number | in force: it is taken |
| in force | a restate of windows that need lines which cannot be read again | in force: it is refused, for good |
| in force | any other change | in force: it is refused, for good |
| under way, or a newer spec is due | a change | it is not judged yet: its agent sends it again |
| in force | the newest spec has another last version, or other settings, and the log has room | under way: CONTROL is proposed |
| in force, lines are read again | the same | waiting |
| waiting | a change of the spec that waits, with the next number | waiting: it is taken, and supersedes that spec |
| waiting | lines are read again no more | under way: CONTROL is proposed |
| in force | its signer counts no more, and the newest spec that counts is an older one | under way: CONTROL back to that |
| under way | it is in the log | in force: the line is multicast, and reported to the directory |
| in force, a lane open, or just changed | every `repeat_us` | the line is multicast again |

A change is refused for good, because its number contains this master's ballot, and each number is judged once (rule Order*).
So of two changes that name one version, one is taken; a change that was refused is in no directory, and no later master takes
it.

Invariants (`check`): the log lacks the last line of the proposed schedule, and its entry, exactly while a change is under way; no
spec that this master received, and none in force, ranks above `spec`; the master multicasts only schedules that the log had,
under its own ballot.
"""

from __future__ import annotations

from collections.abc import Callable

from elf.jobmaster.directory.changes import may_follow, next_boundary, next_spec_number, rank_of
from elf.jobmaster.directory.job_spec import END, JobSpec
from elf.jobmaster.directory.known_schedule import KnownSchedule
from elf.jobmaster.directory.settings import carry, settings_at
from elf.jobmaster.directory.versions import has_change, is_signed_again
from elf.jobmaster.log.entries import NO_LANE, Accept, ControlEntry
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.schedule import AFTER_ALL, counts_alike, lane_from, next_number, number_of, plan_of
from elf.jobmaster.master.lane_wait import LaneWait
from elf.jobmaster.master.proposals import Proposals
from elf.jobmaster.master.publication import Publication
from elf.srt.messages.changes import MISSING_MAX
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Ballot, Control, Line, Micros, Schedule

SHIFT_US_MAX = 5_000_000
"""A control line is moved past lines that are later by less than this: clocks of servers differ by less. A line that is even
later has a wrong time, or the operator asked for a time in the past."""
REPEATS = 3
"""How often a line without a lane is multicast again: a worker that missed it learns it at its next line past it otherwise."""


class Amendments:
    """`spec`: the newest that this master received and that counts, maybe not yet in force. known_schedule: the schedule of an
    earlier log, for a log that begins now. signer: the serial under which the directory's spec was signed; is_void: whether specs
    of such a signer count no more, at that time."""

    def __init__(
        self,
        spec: JobSpec,
        state: JobState,
        ballot: Ballot,
        log: Proposals,
        publication: Publication,
        repeat_us: int,
        hold_us_max: int,
        known_schedule: KnownSchedule | None = None,
        signer: Callable[[], bytes] = bytes,
        is_void: Callable[[bytes, Micros], bool] = lambda signer, now: False,
    ) -> None:
        self._signer, self._is_void = signer, is_void
        self._now = 0
        self.spec, self.rank, self.ballot = spec, max(state.spec, rank_of(spec)), ballot
        self._state, self._log, self._publication = state, log, publication
        self._index = 0  # index of a CONTROL that is proposed and not committed, or 0
        self._controls: list[Control] = []
        self._known_schedule = known_schedule
        self._confirmed: set[NodeId] = set()  # agents that have reported under the log's schedule
        self._judged = 0  # the number of the last change that was judged
        self._is_news = bool(state.schedule)  # the log's schedule has yet to be reported to the directory
        self.lane_wait = LaneWait(state, hold_us_max)
        self._has_waited = False
        """Whether the spec that is not in force yet has waited for a lane."""
        self._repeat_us = repeat_us
        self._repeat_at: int | None = None
        # A new master may have a schedule of another one, which a worker has missed: one on its own side of a partition.
        self._repeats = REPEATS if len(state.schedule) > 1 else 0

    @property
    def is_under_way(self) -> bool:
        """Whether a CONTROL is proposed and not in the log."""
        return bool(self._index)

    def spec_changed(self, spec: JobSpec) -> bool:
        """The directory has another spec. Returns whether it is newer, or the one that the log has already, or an earlier one: a
        directory goes back if newer ones are void."""
        rank, held = rank_of(spec), rank_of(self.spec)
        if rank == held or held < rank < self.rank:
            return False
        self.rank, self.spec = max(rank, self.rank), spec
        return True

    @property
    def falls_back(self) -> bool:
        """Rule Revoked*: the version in force is of a signer who counts no more, and the directory has gone back to an earlier
        spec."""
        in_force, signer = self._state.spec, self._state.signer
        return rank_of(self.spec) < in_force and self._is_void(signer, self._now)

    @property
    def version(self) -> str:
        """The version that a change must name as the one that it changes."""
        return self.spec.versions[-1].digest if self._waits else self._log.ahead.schedule[-1].version

    @property
    def _waits(self) -> bool:
        """Whether the spec's last version, or its settings, wait for a lane. Not those that go back, or whose line was decided
        before."""
        is_at_once = self.falls_back or self.decided() is not None
        return self.lane_wait.is_on and self._is_awaited and not is_at_once

    @property
    def next_number(self) -> int:
        """The number that a change must have."""
        return next_spec_number(self.ballot, max(self.rank[0], self._judged))

    def judge(self, spec: JobSpec) -> bool | None:
        """Whether to take an operator's change, which the directory does not have yet. None: later, when this master serves and
        all newer specs are in the log, or wait; and never, if a master of a later term has changed the job. This one cannot reach
        it, and would take changes with the numbers of the other's."""
        if spec.changes and has_change(self.spec, spec.changes[-1]):
            return True  # the verdict was lost
        if self.rank[0] > self._judged and not may_follow(self.ballot, self.rank[0]):
            return None
        if self._state.served != self.ballot or self._index or (self._is_awaited and not self._waits):
            return None
        is_next = self.is_next(spec)
        if spec.number == self.next_number:
            self._judged = spec.number
        return is_next and not self.unread_us(spec)

    def is_next(self, spec: JobSpec) -> bool:
        """Rule Order*: a change is taken only if it has the next number of this master's, names the version in force or that
        which waits, and was made of the newest spec, whose settings it goes on with. None is after the job's end."""
        former = spec.changes[-1].former if spec.changes else ""
        is_next = (spec.number, former) == (self.next_number, self.version) and former != END
        return is_next and self._is_of_newest(spec)

    def unread_us(self, spec: JobSpec) -> Micros:
        """The start of the oldest window that is not final, if a restate needs lines from before the time from which all can be
        read again; else 0. The command cannot know it: a window may stay open long after its lateness."""
        if spec.mode != "restate" or not spec.unread_us:
            return 0
        oldest_us = min(self._open_starts, default=spec.unread_us)
        return max(1, oldest_us) if oldest_us < spec.unread_us else 0

    @property
    def _open_starts(self) -> set[Micros]:
        """The starts of the newest version's windows that have lines and are not final."""
        version = self._state.schedule[-1].version
        has_windows = self._state.shape(version).pane_us
        return self._publication.open_starts(version) if has_windows else {self._state.positions.since_us}

    def _is_of_newest(self, spec: JobSpec) -> bool:
        newest = self.spec.changes[-1:]
        return len(spec.changes) < 2 or not newest or spec.changes[-2].number == newest[0].number

    def note(self, entry: Accept) -> None:
        """Agents confirm a schedule by the first delta that they cut under it and that is in the log. O(contributions) until all
        have."""
        is_present = entry.schedule >= number_of(self._state.schedule)
        if is_present and len(self._confirmed) < len(self._state.positions.roster):
            self._confirmed.update(worker for worker, _, _ in entry.contributions)

    def confirmations(self, spec: JobSpec) -> tuple[int, int, tuple[NodeId, ...]]:
        """How many agents the job expects, how many of them have confirmed that change, and some of those that have not; 0, 0, ()
        while it is not in force. O(roster)."""
        schedule = self._state.schedule
        if self._state.spec < rank_of(spec) or schedule[-1].version != spec.versions[-1].digest:
            return 0, 0, ()
        members = self._state.positions.roster.items()
        expected = {worker for worker, member in members if member.until_us == AFTER_ALL}
        missing = sorted(expected - self._confirmed)
        return len(expected), len(expected) - len(missing), tuple(missing[:MISSING_MAX])

    def is_waiting(self, spec: JobSpec) -> bool:
        """Whether that change was taken, waits for a lane, and is not superseded."""
        return rank_of(spec) == rank_of(self.spec) and self._waits

    def propose_due(self, now: int) -> None:
        """Propose the next change, if one is due and the log has room."""
        self._now = now
        self.lane_wait.look(now)
        if not self._state.schedule or self._index or not self._is_awaited:
            return
        if self._waits:
            self._has_waited = True
        elif self._log.room() > 0:
            self._propose(now)

    @property
    def _is_awaited(self) -> bool:
        """Whether the spec's last version, or its settings, are not in force, and not proposed; or whether those that are come
        back after others that waited: a change that was taken has a line."""
        if not (self.rank > self._state.spec or self.falls_back):
            return False
        schedule = self._log.ahead.schedule
        has_come = self.spec.versions[-1].digest == schedule[-1].version
        has_come = has_come and settings_at(schedule, AFTER_ALL, self.spec.base) == self.spec.settings
        news = (each for each in self.spec.changes if each.number > self._state.spec[0])
        return not has_come or not all(map(is_signed_again, news))

    def _propose(self, now: int) -> None:
        """Propose the control line and its lane."""
        ahead, last = self._log.ahead, self.spec.versions[-1]
        if self.falls_back:
            self.rank = self.next_number, self.rank[1]  # above all that counted before
        line_us, lane_us = max(self._line_us(now), ahead.retained_us), NO_LANE
        if self._is_of_settings:
            line_us = self.past_finals(line_us)
        if not self.keeps_rows(line_us):
            line_us = max(line_us, ahead.retained_us + 1)
            lane_us = NO_LANE if self.is_past_all(line_us) else self._lane_us(line_us)
        number = next_number(self.ballot, ahead.schedule)
        line = Line(number, last.digest, line_us, last.plan)
        line = carry(ahead.schedule, line, self.spec.settings, self.spec.base)
        self._has_waited = False
        self._index = self._log.propose(ControlEntry(line, lane_us, self.rank, self._signer()))
        self.announce()

    @property
    def _is_of_settings(self) -> bool:
        """Whether only settings change: no line is counted in another way, so none is read again."""
        return self.spec.versions[-1].digest == self._log.ahead.schedule[-1].version

    def past_finals(self, line_us: Micros) -> Micros:
        """Rule Settings*: new settings begin past all windows that are final, or about to be, under those before; and past the
        line before, whose version goes on."""
        return max(line_us, self._publication.past_finals, self._log.ahead.schedule[-1].from_us + 1)

    def keeps_rows(self, line_us: Micros) -> bool:
        """Rule Keep*: nothing need be read again if the new version counts as those that it replaces: their rows become its own;
        or if it is the same. A lane that is open is read again under the new schedule instead."""
        ahead = self._log.ahead
        if self._is_of_settings and ahead.lane is None:
            return True
        new = self.spec.versions[-1].plan
        return ahead.lane is None and counts_alike(ahead.schedule, ahead.shapes, new, line_us)

    def is_past_all(self, line_us: Micros) -> bool:
        """Rule Lane*: nothing need be read again if no lane is open and no line that was reported is at or past the control
        line."""
        return self._log.ahead.lane is None and self._log.ahead.reported_us < line_us

    def _lane_us(self, line_us: Micros) -> Micros:
        ahead = self._log.ahead
        lane_us = lane_from(ahead.schedule, ahead.shapes, self.reread_from(line_us))
        if ahead.is_whole:
            # Workers cannot read all lines again that a version without windows counts.
            lane_us = max(lane_us, min(line_us, ahead.retained_us))
        return lane_us

    def reread_from(self, line_us: Micros) -> Micros:
        """Rule Lane*: the new lane replaces one that is open, and so begins no later than that."""
        lane = self._log.ahead.lane
        return line_us if lane is None else min(line_us, lane.from_us)

    def _line_us(self, now: int) -> Micros:
        """The time at which the new version begins, by the spec's mode."""
        if self.falls_back:
            return self._past_reported(now)
        spec, at = self.spec, self.spec.line_us or now
        if self._has_waited:
            at = max(at, now)  # its line was for the present, and that is later now
        if (line_us := self.decided()) is not None:
            return line_us
        if not self._is_of_settings and (
            spec.mode == "restate" or (spec.mode == "split" and self._shows_other_rows)
        ):
            return self._oldest_open(at)
        at = self._past_reported(at)
        if spec.mode == "next":
            return next_boundary((self._log.ahead.schedule[-1].plan, spec.versions[-1].plan), at)
        return at

    def _oldest_open(self, now: Micros) -> Micros:
        """The start of the newest version's oldest window that is not final, or of the present window if there is none."""
        version = self._state.schedule[-1].version
        shape = self._state.shape(version)
        if not shape.pane_us:
            return self._state.positions.since_us
        known = self._state.finals.keys() | self._publication.earlier.before
        behind = [start + shape.slide_us for of, start in known if of == version]
        low = min(self._open_starts, default=now - now % shape.slide_us)
        return min(low, max(behind)) if behind else low

    @property
    def _shows_other_rows(self) -> bool:
        """Whether the change is one of HAVING, ORDER BY and LIMIT alone: no window is cut for it. Not with other settings, which
        begin past all reported lines."""
        if settings_at(self._log.ahead.schedule, AFTER_ALL, self.spec.base) != self.spec.settings:
            return False
        plan = plan_of(self._log.ahead.schedule[-1].plan)
        return plan.window is not None and plan_of(self.spec.versions[-1].plan).counts_as(plan)

    def _past_reported(self, at: Micros) -> Micros:
        reported_us = self._log.ahead.reported_us
        return reported_us + 1 if at <= reported_us < at + SHIFT_US_MAX else at

    def decided(self) -> Micros | None:
        """The time of this line in an earlier log, if the directory has it: windows may have been published under it."""
        known = self._known_schedule
        if (
            known is None
            or known.rank != self.rank
            or known.lines[-1].version != self.spec.versions[-1].digest
        ):
            return None
        return known.lines[-1].from_us

    def announce(self) -> None:
        """CONTROL*: multicast the line only when it is in the log."""
        self._log.when_committed(self._multicast)

    def _multicast(self) -> None:
        lane = self._state.positions.lane
        from_us = lane.from_us if lane is not None else 0
        self._controls.append(Control(self._state.job, self.ballot, self._state.schedule, from_us))

    def committed(self, index: int) -> None:
        """The CONTROL at `index` is in the log."""
        if index >= self._index:
            self._index = 0
        self.lane_wait.changed()
        self._is_news = True
        self._repeats = REPEATS
        self._confirmed.clear()

    def take_news(self) -> Schedule:
        """The log's schedule, once when this master begins and once after each change; () for a job that was never changed."""
        if not self._is_news:
            return ()
        self._is_news = False
        schedule = self._state.schedule
        return schedule if len(schedule) > 1 or schedule[0].from_us or schedule[0].settings else ()

    def take_controls(self) -> list[Control]:
        """Messages to multicast down the tree, once each."""
        out, self._controls = self._controls, []
        return out

    def tick(self, now: int) -> None:
        """Repeat the multicast while a lane is open, and some times after each change: an idle worker may have missed it."""
        if not self._repeats_on:
            self._repeat_at = None
        elif self._repeat_at is None:
            self._repeat_at = now + self._repeat_us
        elif now >= self._repeat_at or self._repeat_at > now + self._repeat_us:  # the clock stepped back
            self._repeats = max(0, self._repeats - 1)
            self._multicast()
            self._repeat_at = now + self._repeat_us

    @property
    def _repeats_on(self) -> bool:
        return self._repeats > 0 or self._state.positions.lane is not None

    @property
    def deadline(self) -> int | None:
        """When `tick` has work; 0 if it has not been called since a change."""
        return 0 if self._repeat_at is None and self._repeats_on else self._repeat_at

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold. O(1)."""
        schedule, ahead = self._state.schedule, self._log.ahead.schedule
        assert rank_of(self.spec) <= self.rank >= self._state.spec
        if schedule:  # otherwise the first entry is proposed, which is not a change
            assert self.is_under_way == (number_of(schedule) != number_of(ahead))
            assert not self._index or self._index > self._state.index
            assert number_of(schedule) <= number_of(ahead)
        assert all(control.ballot == self.ballot for control in self._controls)
        assert all(number_of(control.schedule) <= number_of(schedule) for control in self._controls)
