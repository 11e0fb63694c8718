"""How a job changes at its master: the line of a new version goes into the log, and then to everybody.

    spec of a higher rank -> due -> CONTROL proposed -> in the log -> multicast, again while a lane is open
                                                                   -> told to the directory, for whoever finds no log

One change at a time: while a CONTROL is not in the log, the next one waits, and so do windows.

| state | what happens | next |
|---|---|---|
| in force | a spec has come whose last version is another, and the log has room | under way: CONTROL is proposed |
| under way | it is in the log | in force: the line is multicast, and told to the directory |
| in force, a lane open | every `repeat_us` | the line is multicast again |

Invariants (`check`): the log lacks the last line of the proposed schedule, and its entry, exactly while a change is under way; no
spec that was heard of, and none that is in force, is above the one to come into force; only schedules that the log had are told,
under this ballot.
"""

from __future__ import annotations

from elf.jobmaster.directory.changes import next_boundary, rank_of
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.directory.known_schedule import KnownSchedule
from elf.jobmaster.log.entries import ControlEntry, SpecRank
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.schedule import lane_from, next_number, number_of
from elf.jobmaster.master.proposals import Proposals
from elf.jobmaster.master.publication import Publication
from elf.srt.messages.messages import Ballot, Control, Line, Micros, Schedule


class Amendments:
    """`spec`: the newest that was heard of, of which maybe not all is in force. told: the schedule that an earlier log had, for a
    log that begins now."""

    def __init__(
        self,
        spec: JobSpec,
        state: JobState,
        ballot: Ballot,
        log: Proposals,
        publication: Publication,
        repeat_us: int,
        known_schedule: KnownSchedule | None = None,
    ) -> None:
        self.spec, self.rank, self.ballot = spec, max(state.spec, rank_of(spec)), ballot
        self._state, self._log, self._publication = state, log, publication
        self._index = 0  # a CONTROL that is proposed and not committed, or 0
        self._controls: list[Control] = []
        self._known_schedule = known_schedule
        self._is_news = bool(state.schedule)  # the directory is to hear of the log's schedule
        self._repeat_us = repeat_us
        self._repeat_at: int | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a CONTROL is proposed and not in the log."""
        return bool(self._index)

    def heard(self, spec: JobSpec) -> bool:
        """The directory has another spec; whether it is newer."""
        rank: SpecRank = rank_of(spec)
        if rank <= self.rank:
            return False
        self.rank, self.spec = rank, spec
        return True

    def go_on(self, now: int) -> None:
        """Propose the change that is due, if one is and the log can take it."""
        if self._is_due():
            self._propose(now)

    def _is_due(self) -> bool:
        """Whether the spec's last version is to come into force."""
        has_come = self.spec.versions[-1].digest == self._log.ahead.schedule[-1].version
        is_ready = bool(self._state.schedule) and not self._index and self._log.room() > 0
        return is_ready and not has_come and self.rank > self._state.spec

    def _propose(self, now: int) -> None:
        """The line and its lane."""
        ahead, last = self._log.ahead, self.spec.versions[-1]
        line_us = max(self._line_us(now), ahead.retained_us + 1)
        number = next_number(self.ballot, ahead.schedule)
        lane_us = lane_from(ahead.schedule, ahead.shapes, self.reread_from(line_us))
        if ahead.is_whole:
            # Logs of all times that it counts are not there.
            lane_us = max(lane_us, min(line_us, ahead.retained_us))
        line = Line(number, last.digest, line_us, last.plan)
        self._index = self._log.propose(ControlEntry(line, lane_us, self.rank))
        self.announce()

    def reread_from(self, line_us: Micros) -> Micros:
        """Rule Lane*: where a lane is open, the new one covers it too, for it is cut anew."""
        lane = self._log.ahead.lane
        return line_us if lane is None else min(line_us, lane.from_us)

    def _line_us(self, now: int) -> Micros:
        """Where the new version begins, by the spec's mode."""
        spec, at = self.spec, self.spec.line_us or now
        if (line_us := self.decided()) is not None:
            return line_us
        if spec.mode == "restate":
            return self._publication.oldest_open(at)
        if spec.mode == "next":
            return next_boundary((self._log.ahead.schedule[-1].plan, spec.versions[-1].plan), at)
        return at

    def decided(self) -> Micros | None:
        """Where an earlier log has put this line, if the directory knows: windows may have been published by it."""
        known = self._known_schedule
        if (
            known is None
            or known.rank != self.rank
            or known.lines[-1].version != self.spec.versions[-1].digest
        ):
            return None
        return known.lines[-1].from_us

    def announce(self) -> None:
        """CONTROL*: the line is in the log before anybody hears of it."""
        self._log.when_committed(self._multicast)

    def _multicast(self) -> None:
        lane = self._state.positions.lane
        from_us = lane.from_us if lane is not None else 0
        self._controls.append(Control(self._state.job, self.ballot, self._state.schedule, from_us))

    def committed(self, index: int) -> None:
        """A CONTROL is in the log."""
        if index >= self._index:
            self._index = 0
        self._is_news = True

    def take_news(self) -> Schedule:
        """The schedule of the log, once when it has changed or this master begins; () for a job that was never changed."""
        if not self._is_news:
            return ()
        self._is_news = False
        schedule = self._state.schedule
        return schedule if len(schedule) > 1 or schedule[0].from_us else ()

    def take_controls(self) -> list[Control]:
        """Messages for the tree's multicast, once each."""
        out, self._controls = self._controls, []
        return out

    def tick(self, now: int) -> None:
        """Say it again while workers have lines to read again: an idle one may not have heard."""
        if self._state.positions.lane is None:
            self._repeat_at = None
        elif self._repeat_at is None:
            self._repeat_at = now + self._repeat_us
        elif now >= self._repeat_at or self._repeat_at > now + self._repeat_us:  # a clock that went back
            self._multicast()
            self._repeat_at = now + self._repeat_us

    @property
    def deadline(self) -> int | None:
        """When `tick` has work; 0 where it has not been called since a lane was opened."""
        if self._repeat_at is None and self._state.positions.lane is not None:
            return 0
        return self._repeat_at

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold. O(1)."""
        schedule, ahead = self._state.schedule, self._log.ahead.schedule
        assert rank_of(self.spec) <= self.rank >= self._state.spec
        if schedule:  # else the first entry is on its way, which is none of this machine's
            assert self.is_under_way == (schedule[-1] != ahead[-1])
            assert not self._index or self._index > self._state.index
            assert number_of(schedule) <= number_of(ahead)
        assert all(control.ballot == self.ballot for control in self._controls)
        assert all(number_of(control.schedule) <= number_of(schedule) for control in self._controls)
