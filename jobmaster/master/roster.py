"""Who is expected to report to a master: the roster of its log, as the directory, workers, evictions and the operator change it.

| what happens | entry |
|---|---|
| an agent advertises the source, or a worker asks or reports that nobody advertised | ADD, from when it was there |
| a worker says goodbye, its last line committed by this master | LEAVE |
| an agent left while another log was served | GONE: its windows say that it is missing |
| its certificate is revoked, or it was silent for `forget_us` | FORGET |

A worker is told where to go on (Welcome), or that it may go (Farewell), when the log has what was proposed before.

Invariants (`check`): whoever is expected by what is proposed is known, and whoever waits to be; who waits is not on the roster
yet, nor banned; only who is known has reported; whoever asks waits for the log; that more than half stood behind it is said twice
at most, and the second time when the log has the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from elf.jobmaster.directory.job_spec import AgentAdvert
from elf.jobmaster.log.entries import Add, Forget, Gone, Left, Proven
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.jobmaster.master.eviction import Eviction
from elf.jobmaster.master.proposals import Proposals
from elf.srt.messages.effects import Effect, Notice, Send
from elf.srt.messages.ids import NodeId, short
from elf.srt.messages.messages import Ballot, Farewell, Goodbye, Hello, Micros, Slot, Welcome


class Roster:
    """Maintains the roster under `ballot`. add_effect: adds an effect to the call. is_new: the log began with this master,
    which therefore does not know earlier workers. Memory: one entry per worker."""

    def __init__(
        self,
        state: JobState,
        ballot: Ballot,
        log: Proposals,
        source: str,
        forget_us: int,
        add_effect: Callable[[Effect], None],
    ) -> None:
        self.job, self.ballot, self.source = state.job, ballot, source
        self.is_new = False
        self.eviction = Eviction(forget_us)
        self._state, self._log, self._add_effect = state, log, add_effect
        self._reported: set[NodeId] = set()  # under this ballot
        members = state.positions.roster.items()
        self._known = {
            worker for worker, member in members if member.until_us == AFTER_ALL or member.has_left
        }
        self._wanted: dict[NodeId, Micros] = {}  # expected from then on; not proposed yet
        self._asked: dict[NodeId, Hello] = {}  # the last one of each worker that waits for the log
        self._banned: set[NodeId] = set()  # whose lines that are still on their way make it expected no more
        self._to_forget: set[NodeId] = set()  # of these; not proposed yet
        self._majorities_recorded = 0  # how often the log was told that more than half have reported
        self._looked = 0  # how many had, when that was counted last

    # ---- who is there ----

    def adverts(self, adverts: Iterable[tuple[NodeId, AgentAdvert]]) -> None:
        """Rule Roster*: expected is who advertises the source in the directory, whether or not it has reported."""
        for worker, advert in adverts:
            if self.source not in advert.sources:
                continue
            if advert.until_us:
                self._note_gone(worker, advert)
            elif self._is_new_life(worker, advert):
                self._want(worker, self._expected_from(advert.since_us))
        self.add_wanted()

    def expect(self, contributions: Iterable[Slot]) -> None:
        """Who reports without having been advertised, or after it was forgotten, is expected from here on."""
        known = self._known
        for worker, _, _ in contributions:
            if worker not in known and worker not in self._banned:
                self._want(worker, max(self._state.front_us, self._log.ahead.since_us))
        self.add_wanted()

    def _want(self, worker: NodeId, from_us: Micros) -> None:
        self._known.add(worker)
        self._wanted[worker] = from_us

    def add_wanted(self) -> None:
        """ADD, for all at once that are expected from the same time on."""
        while self._wanted and self._log.has_room:
            from_us = min(self._wanted.values())
            workers = [worker for worker, since in self._wanted.items() if since == from_us]
            self._log.propose(Add(tuple(workers), from_us))
            for worker in workers:
                del self._wanted[worker]
        if self._to_forget:
            self._forget_banned()

    def _is_new_life(self, worker: NodeId, advert: AgentAdvert) -> bool:
        member = self._log.ahead.roster.get(worker)
        if worker in self._wanted:
            return False
        return member is None or (member.until_us != AFTER_ALL and advert.since_us >= member.until_us)

    def _expected_from(self, since_us: Micros) -> Micros:
        """A log that begins anew does not know who was there before: everybody is expected from its beginning."""
        began = self._log.ahead.since_us
        return began if self.is_new else max(began, since_us)

    def reported(self, contributions: Iterable[Slot]) -> None:
        """Workers of which the log has something that was cut under this ballot."""
        known = self._known
        if len(self._reported) < len(known):
            self._reported.update(slot[0] for slot in contributions if slot[0] in known)

    def retired(self) -> None:
        """Who is on the roster no more, since retention has passed its lines, is not remembered here either."""
        self._known &= self._log.ahead.roster.keys() | self._wanted.keys()
        self._reported &= self._known

    def has_reported(self, worker: NodeId) -> bool:
        """Under this ballot."""
        return worker in self._reported

    def has_majority(self) -> bool:
        """Windows*: only who was reported to by more than half of the roster, under this ballot, may close with less than all."""
        members = self._state.positions.roster
        active = [worker for worker, member in members.items() if member.until_us == AFTER_ALL]
        heard = sum(1 for worker in active if worker in self._reported)
        return 2 * heard > len(active)

    def record_majority(self) -> None:
        """Rule 7*: the log says that more than half have reported under this ballot, and again when that is in it."""
        if self._majorities_recorded == 2 or not self._log.has_room:
            return
        if self._state.proven[1] == self.ballot if self._majorities_recorded else self._has_new_majority():
            self._majorities_recorded += 1
            self._log.propose(Proven(self.ballot))

    def _has_new_majority(self) -> bool:
        """Whoever is expected and not yet on the roster counts as silent. O(roster), when more have reported or may have left."""
        if len(self._reported) == self._looked or self._wanted:
            return False
        self._looked = len(self._reported)
        return self.has_majority()

    def look_again(self) -> None:
        """Some may have left: of those who stay, more than half may have reported."""
        self._looked = -1

    # ---- who comes and goes ----

    def hello(self, message: Hello, now: int) -> None:
        """A worker asks where to go on."""
        if message.worker in self._banned:
            return
        if message.worker not in self._known:
            self._want(message.worker, self._expected_from(now))
            self.add_wanted()
        if message.worker not in self._wanted:
            waits = message.worker in self._asked
            self._asked[message.worker] = message
            if not waits:
                self._log.when_committed(self._welcome, message.worker)

    def _welcome(self, worker: NodeId) -> None:
        """Files that the log does not know begin with the oldest retained pane: what is before that cannot count."""
        message, positions = self._asked.pop(worker), self._state.positions
        lane, ends = positions.lane, positions.lane_ends_of(worker)
        lanes = ((lane.number, lane.from_us),) if lane is not None and ends else ()
        files, since = positions.files_of(worker), positions.reread_us
        about = (self.job, self.ballot, message.incarnation, positions.schedule, since, files, lanes, ends)
        self._add_effect(Send(worker, Welcome(*about)))

    def has_all_of(self, message: Goodbye) -> bool:
        """Whether it was this master that committed the last line of a worker which leaves."""
        return message.ballot == self.ballot

    def goodbye(self, message: Goodbye, now: int) -> None:
        """A worker leaves, its last line committed. If that was by another master, whose log may have been another, it is told
        from where on to read to the end once more."""
        if not self.has_all_of(message):
            self.hello(Hello(message.job, message.worker, message.incarnation), now)
            return
        member = self._log.ahead.roster.get(message.worker)
        if member is not None and member.until_us == AFTER_ALL:
            if not self._log.has_room:
                return  # it says so again
            self._log.propose(Left(message.worker, message.until_us, message.unread))
        self._log.when_committed(self._farewell, message.worker)

    def _farewell(self, worker: NodeId) -> None:
        self._add_effect(Send(worker, Farewell(self.job, worker)))

    def _note_gone(self, worker: NodeId, advert: AgentAdvert) -> None:
        """Rule 8: who left while another log was served is missing in this one, and its windows say so."""
        ahead = self._log.ahead
        member = ahead.roster.get(worker)
        is_here = member is not None and member.until_us == AFTER_ALL
        was_never = member is None and advert.until_us > ahead.retained_us
        if (is_here or was_never) and self._log.room() > 0:
            self._wanted.pop(worker, None)
            self._known.add(worker)
            self._log.propose(Gone(worker, ahead.since_us, advert.until_us))

    # ---- who is not expected any more ----

    def forget(self, worker: NodeId) -> None:
        """The operator has said that a worker will not come back, by revoking its certificate."""
        if worker not in self._banned:
            self._banned.add(worker)
            self._to_forget.add(worker)
            self._wanted.pop(worker, None)
            self._forget_banned()

    def _forget_banned(self) -> None:
        for worker in sorted(self._to_forget):
            if not self._log.has_room:
                return
            self._to_forget.discard(worker)
            member = self._log.ahead.roster.get(worker)
            if member is not None and member.until_us == AFTER_ALL:
                self._forget(worker)

    def _forget(self, worker: NodeId) -> None:
        self._known.discard(worker)
        self._reported.discard(worker)
        mark = self._state.watermarks.get(worker)
        self._log.propose(Forget(worker, self._log.ahead.roster[worker].from_us if mark is None else mark))

    def evict_silent(self, now: int) -> None:
        """Rule "Windows": who was silent for `forget_us` is expected no more."""
        for worker in list(self.eviction.look(self._log.ahead.roster, self._state.watermarks, now)):
            if self._log.has_room:
                self._add_effect(Notice("forgotten", f"{short(worker)} was silent and is forgotten", worker))
                self._forget(worker)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold. O(roster)."""
        self.eviction.check()
        expected = {
            worker for worker, member in self._log.ahead.roster.items() if member.until_us == AFTER_ALL
        }
        assert expected <= self._known
        assert self._wanted.keys() <= self._known
        assert not self._wanted.keys() & (expected | self._banned)
        assert self._to_forget <= self._banned
        assert self._reported <= self._known
        assert not self._asked or not self._log.is_empty
        assert self._majorities_recorded <= 2
        assert self._majorities_recorded < 2 or self._state.proven[1] == self.ballot
