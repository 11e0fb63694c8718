"""The workers that a master expects: the roster of its log, as the directory, workers, evictions and the operator change it.

| what happens | entry |
|---|---|
| an agent advertises the source, or a worker without an advert says hello or reports | ADD, from the time it began |
| a worker says goodbye, its last line committed by this master | LEAVE |
| a worker left while another log was served | GONE: its windows count it as missing |
| its advert lacks features of the job's plans | GONE, without an end: all windows count it as missing; ADD when it has them |
| its certificate is revoked, or it was silent for `forget_us` | FORGET |

A worker gets its positions (Welcome), or may leave (Farewell), when the entries that were proposed before are committed.

Invariants (`check`): all workers that are expected (by proposed entries too), or are yet to be proposed, are known; the latter
are neither on the roster nor banned; only known workers have reported; hellos are kept only while they wait for the log; a
majority is recorded at most twice, and the second time only after the first is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from elf.jobmaster.directory.job_spec import AgentAdvert
from elf.jobmaster.log.entries import Add, Forget, Gone, Left, Proven
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.positions import UNABLE_US
from elf.jobmaster.log.schedule import AFTER_ALL, BEFORE_ALL
from elf.jobmaster.master.eviction import Eviction
from elf.jobmaster.master.proposals import Proposals
from elf.jobmaster.plan.features import Features
from elf.srt.messages.effects import Effect, Notice, Send
from elf.srt.messages.ids import NodeId, short
from elf.srt.messages.messages import Ballot, Farewell, Goodbye, Hello, Micros, Slot, Welcome


class Roster:
    """Maintains the roster under `ballot`. add_effect: adds an effect to the current call. is_new: the log began with this
    master, which therefore does not know earlier workers. Memory: one entry per worker."""

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
        self._was_complete = False
        self.eviction = Eviction(forget_us)
        self._state, self._log, self._add_effect = state, log, add_effect
        self._reported: set[NodeId] = set()  # under this ballot
        members = state.positions.roster.items()
        self._known = {worker for worker, member in members if member.is_here or member.has_left}
        self._wanted: dict[NodeId, Micros] = {}  # worker -> from when it is expected; ADD not proposed yet
        self._unable: dict[NodeId, Micros] = {}  # worker -> from when it is missing; GONE not proposed yet
        self._asked: dict[NodeId, Hello] = {}  # the last hello of each worker whose Welcome waits for the log
        self._banned: set[NodeId] = set()  # not expected again, even if lines of these workers still arrive
        self._to_forget: set[NodeId] = set()  # banned; FORGET not proposed yet
        self._times_recorded = 0  # number of proposed `Proven` entries of the present majority
        self._heard: set[NodeId] = set()  # those that have reported since the last replica left
        self._left = 0  # number of replicas that had left by then
        self._looked = 0  # number of workers that had reported when the majority was last computed

    # ---- expected workers ----

    def adverts(self, adverts: Iterable[tuple[NodeId, AgentAdvert]], needs: Features = frozenset()) -> None:
        """Rule Roster*: an agent that advertises the source in the directory is expected, whether or not it has reported. needs:
        the features without which it cannot."""
        for worker, advert in adverts:
            if self.source not in advert.sources:
                continue
            if advert.until_us:
                self._note_gone(worker, advert)
            elif advert.lacks(needs):
                self._note_unable(worker, advert)
            elif self._is_new_life(worker, advert):
                self._want(worker, self._expected_from(advert.since_us))
        self.add_wanted()

    def expect(self, contributions: Iterable[Slot]) -> None:
        """A worker that reports without an advert, or after it was forgotten, is expected from now on."""
        known = self._known
        for worker, _, _ in contributions:
            if worker not in known and worker not in self._banned:
                self._want(worker, max(self._state.front_us, self._log.ahead.since_us))
        self.add_wanted()

    def _want(self, worker: NodeId, from_us: Micros) -> None:
        self._known.add(worker)
        self._wanted[worker] = from_us

    def add_wanted(self) -> None:
        """Propose one ADD for all workers that are expected from the same time on."""
        while self._wanted and self._log.has_room:
            from_us = min(self._wanted.values())
            workers = [worker for worker, since in self._wanted.items() if since == from_us]
            self._log.propose(Add(tuple(workers), from_us))
            for worker in workers:
                del self._wanted[worker]
        if self._to_forget:
            self._forget_banned()
        while self._unable and self._log.has_room:
            worker, from_us = self._unable.popitem()
            self._log.propose(Gone(worker, from_us, UNABLE_US))

    def _note_unable(self, worker: NodeId, advert: AgentAdvert) -> None:
        """Rule Features*: windows expect an agent that cannot take part, and do not wait for it."""
        member = self._log.ahead.roster.get(worker)
        self._wanted.pop(worker, None)
        if worker not in self._banned and (member is None or member.until_us == AFTER_ALL):
            self._known.add(worker)  # what it sent before is no reason to wait for it
            self._unable[worker] = self._expected_from(advert.since_us)

    def _is_new_life(self, worker: NodeId, advert: AgentAdvert) -> bool:
        member = self._log.ahead.roster.get(worker)
        if worker in self._wanted:
            return False
        if self._unable.pop(worker, None) is not None or (member is not None and member.is_unable):
            return True
        return member is None or (member.until_us != AFTER_ALL and advert.since_us >= member.until_us)

    def _expected_from(self, since_us: Micros) -> Micros:
        """From when a worker is expected. A new log does not know earlier workers: it expects all from its beginning."""
        began = self._log.ahead.since_us
        return began if self.is_new else max(began, since_us)

    def reported(self, contributions: Iterable[Slot]) -> None:
        """These contributions, which their workers cut under this ballot, are committed."""
        known = self._known
        if len(self._heard) < len(known):
            workers = {slot[0] for slot in contributions if slot[0] in known}
            self._reported |= workers
            self._heard |= workers

    @property
    def is_complete(self) -> bool:
        """Whether windows can be whole: the agents of the directory are on the roster."""
        if self._was_complete:
            return True
        is_added = self._state.positions.roster.keys() == self._log.ahead.roster.keys()
        self._was_complete |= is_added and not self._wanted and not self._unable
        return self._was_complete

    def retired(self) -> None:
        """Forget the workers that are no longer on the roster because retention has passed their lines."""
        self._known &= self._log.ahead.roster.keys() | self._wanted.keys()
        self._reported &= self._known
        self._heard &= self._known

    def has_reported(self, worker: NodeId) -> bool:
        """Whether the worker has reported under this ballot."""
        return worker in self._reported

    def has_majority(self) -> bool:
        """Windows*: whether more than half of the roster has reported under this ballot. Only then may this master make a window
        final that lacks workers."""
        return self._is_majority(self._reported)

    def _is_majority(self, workers: set[NodeId]) -> bool:
        members = self._state.positions.roster
        active = [worker for worker, member in members.items() if member.until_us == AFTER_ALL]
        return 2 * sum(1 for worker in active if worker in workers) > len(active)

    def record_majority(self, left: int) -> None:
        """Rule 7*: append `Proven` when more than half have reported under this ballot, and again when that is committed. left:
        how many replicas have left under this ballot: those that have left since hold a log with this majority, so a later one is
        recorded."""
        if left > self._left and self._times_recorded != 1:
            self._left, self._times_recorded, self._looked = left, 0, -1
            self._heard.clear()
        if self._times_recorded == 2 or not self._log.has_room:
            return
        is_first = not self._times_recorded
        if self._has_new_majority() if is_first else self._state.proven[1] == (self.ballot, self._left):
            self._times_recorded += 1
            self._log.propose(Proven(self.ballot, self._left))

    def _has_new_majority(self) -> bool:
        """Whether more than half of the roster has reported since the last replica left; False while workers have yet to be added
        to it. O(roster) after a report or a possible departure, otherwise O(1)."""
        if len(self._heard) == self._looked or self._wanted:
            return False
        self._looked = len(self._heard)
        return self._is_majority(self._heard)

    def look_again(self) -> None:
        """Compute the majority again: workers may have left, and more than half of the others may have reported."""
        self._looked = -1

    # ---- hello and goodbye ----

    def hello(self, message: Hello, now: int) -> None:
        """A worker requests its positions."""
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
        """Send the worker its positions. It reads unknown files from the oldest retained pane on: earlier lines cannot count."""
        message, positions = self._asked.pop(worker), self._state.positions
        lane, ends = positions.lane, positions.lane_ends_of(worker)
        lanes = ((lane.number, lane.from_us),) if lane is not None and ends else ()
        files, since = positions.files_of(worker), positions.reread_us
        about = (self.job, self.ballot, message.incarnation, positions.schedule, since, files, lanes, ends)
        self._add_effect(Send(worker, Welcome(*about)))

    def has_all_of(self, message: Goodbye) -> bool:
        """Whether this master committed the last line of a leaving worker."""
        return message.ballot == self.ballot

    def goodbye(self, message: Goodbye, now: int) -> None:
        """A worker leaves after its last line was committed. If another master committed that line, maybe to another log, the
        worker gets positions from which it reads to the end once more."""
        if not self.has_all_of(message):
            self.hello(Hello(message.job, message.worker, message.incarnation), now)
            return
        member = self._log.ahead.roster.get(message.worker)
        if member is not None and member.until_us == AFTER_ALL:
            if not self._log.has_room:
                return  # the worker will repeat its Goodbye
            self._log.propose(Left(message.worker, message.until_us, message.unread))
        self._log.when_committed(self._farewell, message.worker)

    def _farewell(self, worker: NodeId) -> None:
        self._add_effect(Send(worker, Farewell(self.job, worker)))

    def _note_gone(self, worker: NodeId, advert: AgentAdvert) -> None:
        """Rule 8: windows count a worker as missing that left while another log was served."""
        ahead = self._log.ahead
        member = ahead.roster.get(worker)
        is_here = member is not None and member.is_here
        was_never = member is None and advert.until_us > ahead.retained_us
        if (is_here or was_never) and self._log.room() > 0:
            self._wanted.pop(worker, None)
            self._unable.pop(worker, None)
            self._known.add(worker)
            self._log.propose(Gone(worker, ahead.since_us, advert.until_us))

    # ---- workers that are no longer expected ----

    def forget(self, worker: NodeId) -> None:
        """The operator has revoked the worker's certificate: the worker will not come back."""
        if worker not in self._banned:
            self._banned.add(worker)
            self._to_forget.add(worker)
            self._wanted.pop(worker, None)
            self._unable.pop(worker, None)
            self._forget_banned()

    def _forget_banned(self) -> None:
        for worker in sorted(self._to_forget):
            if not self._log.has_room:
                return
            self._to_forget.discard(worker)
            member = self._log.ahead.roster.get(worker)
            if member is not None and member.is_here:
                self._forget(worker)

    def _forget(self, worker: NodeId) -> None:
        self._known.discard(worker)
        self._reported.discard(worker)
        self._heard.discard(worker)
        # Lines that it logged after its last watermark are lost: the windows that others have reached count it as missing.
        front_us = max(self._state.watermarks.values(), default=BEFORE_ALL)
        self._log.propose(Forget(worker, max(self._log.ahead.roster[worker].from_us, front_us)))

    def evict_silent(self, now: int) -> None:
        """Rule "Windows": a worker that was silent for `forget_us` is no longer expected."""
        for worker in list(self.eviction.look(self._log.ahead.roster, self._state.watermarks, now)):
            if self._log.has_room:
                text = (
                    f"{short(worker)} has been silent for too long: windows no longer expect it until it reports again; "
                    "check that agent"
                )
                self._add_effect(Notice("forgotten", text, worker))
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
        assert not self._unable.keys() & (self._wanted.keys() | self._banned)
        assert self._to_forget <= self._banned
        assert self._heard <= self._reported <= self._known
        assert not self._asked or not self._log.is_empty
        assert self._times_recorded <= 2
        assert self._times_recorded < 2 or self._state.proven[1] == (self.ballot, self._left)
