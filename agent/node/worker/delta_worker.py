"""The worker of one job at one node: it cuts its source at each flush, and keeps each delta until it is committed.

In one sentence: answers of the master (directly: Welcome, Farewell; down the tree: Commit, Split, Resend, Control, Stop) and cuts
of the source go in; reads for the source, requests to the master and bundles for this node's reducer come out.

    state      entered when                                 action
    ---------  -------------------------------------------  ------------------------------------------------------------
    ASKING     start; positions are unknown                 Hello, repeated with growing pauses; no cuts
    FOLLOWING  Welcome (all that is kept is dropped)        a Read at each multiple of flush_us, a bundle for each Cut
    PARTING    leaving, all read, and all committed by one  Goodbye, repeated; a Welcome of another master: FOLLOWING
               master
    ENDED      Farewell, Stop                               none; after a Stop and a higher ballot: ASKING

    event while FOLLOWING          action
    -----------------------------  -------------------------------------------------------------------------------------
    Commit                         drop those bundles; files that they closed are finished
    Split, all of it is in the log the same as Commit
    Split with positions           drop all that is kept; read again from there (files without one: where kept bundles begin)
    Split, another schedule        likewise, under that schedule
    Split that names no bundle,    notice (`MOVED`); drop all that is kept; ASKING
    positions past what was read
    Split without positions,       drop all that is kept; ASKING
    or too much kept
    Commit overdue                 ASKING, without dropping anything
    a higher ballot                name all closed files again, since that master may not know their ends
    Resend                         send those kept bundles again, marked `again`
    Control, with a newer schedule repeat the outstanding Read under it; with a lane: Hello for its ends, while work continues
    reducer without room           no cut; the next cut covers more
    nobody reads open windows      a Read that the source answers when its watermark closes a window; after unsent_us_max, when
                                   somebody begins to read, or a higher ballot is known: a Read as else
    somebody does, after a pause   a Read that the source answers at the first line; at the next multiple of flush_us, one as else

The worker never decides which lines count: it may always drop its bundles and read again, or send them twice. Lines that the
master has not committed are still in the source, and lines that it has committed do not fit a second time. A new master that
knows less than its predecessor is no special case: it splits this worker's bundles, which are ahead of its positions, and the
worker reads them again.

Invariants
- A bundle has a span for every file that is open or whose end is not committed. The spans of a file are adjacent since bundles
  were last dropped; among the kept ones, some may be missing whose Commit came early.
- At most one Read is outstanding; a Cut that answers an older one is dropped.
- Ids count odd numbers (even ones are the reducer's).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from elf.agent.node.worker.kept_bundles import MOVED, KeptBundles
from elf.agent.node.worker.log_clock import LogClock
from elf.agent.node.worker.reading_places import ReadingPlaces
from elf.jobmaster.log.schedule import AFTER_ALL, number_of
from elf.srt.messages import messages as m
from elf.srt.messages.bundles import Promises, has_lines, in_log, wrongly_cut
from elf.srt.messages.effects import Effect, Notice, Read, Route
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.parameters import Parameters
from elf.srt.tree.cadence import Cadence

OVERDUE_PARKS = 4
"""A bundle that is neither committed nor split within this many times park_us has been lost on the way."""
ASK_DOUBLINGS = 5
"""Hello is repeated after ask_us, doubling up to 32 times that: 10,000 workers without a master send 1,600 messages a second."""


class State(Enum):
    ASKING = "asking"
    FOLLOWING = "following"
    PARTING = "parting"
    ENDED = "ended"


class DeltaWorker:
    """One job's worker at one node. `room`: whether this node's reducer accepts another bundle.

    state, schedule: the present ones. next_close: the watermark above a given one that closes the next window. until_us: after
    the end, none of its lines is at or past this.
    """

    __slots__ = (
        "_ask_at",
        "_attempts",
        "_ballot",
        "_cadence",
        "_clock",
        "_count",
        "_cut_at",
        "_forgot_at",
        "_gap_until",
        "_heard_at",
        "_incarnation",
        "_job",
        "_kept",
        "_lanes_known",
        "_lanes_wanted",
        "_learned",
        "_leaving",
        "_left_out_us",
        "_line_us",
        "_log_clock",
        "_me",
        "_p",
        "_places",
        "_promised",
        "_promises",
        "_proven",
        "_read_all",
        "_reading",
        "_request",
        "_room",
        "_since_us",
        "_stopped",
        "_unread",
        "_watermark",
        "next_close",
        "schedule",
        "state",
        "until_us",
    )

    def __init__(
        self,
        job: JobId,
        me: NodeId,
        incarnation: int,
        parameters: Parameters,
        room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._job, self._me, self._incarnation, self._p = job, me, incarnation, parameters
        self._room = room
        self.state = State.ASKING
        self.schedule: m.Schedule = ()
        self.next_close: Callable[[m.Schedule, m.Micros], m.Micros] = lambda schedule, watermark: 0
        self._cadence = Cadence(parameters)
        self._ballot: m.Ballot = m.NO_BALLOT
        self._learned: m.Ballot = m.NO_BALLOT  # of the master whose schedule this is
        # Of the last master that committed a bundle cut under its own ballot.
        self._proven: m.Ballot = m.NO_BALLOT
        self._promises = Promises()
        self._since_us = self._left_out_us = 0  # left out: `_since_us` of the outstanding Read
        self._places = ReadingPlaces(me)
        self._lanes_known: tuple[m.Ballot, int] = (m.NO_BALLOT, 0)  # ballot and schedule of the last Welcome
        self._kept = KeptBundles()
        self._count, self._request = -1, 0
        self._reading: int | None = None  # the lane of the outstanding Read
        self._watermark = self._line_us = 0  # line: time of the last live cut with lines
        self._leaving = self._lanes_wanted = False
        self._stopped: m.Ballot = m.NO_BALLOT  # under which a master ended it
        self._read_all = False  # leaving, and the end of the source has been cut
        self.until_us: m.Micros = 0
        self._unread, self._clock = False, 0  # unread: none of its last lines could be read
        self._log_clock = LogClock(parameters.lagging_us + parameters.idle_grace_us, parameters.lagging_us)
        self._cut_at: int | None = None
        self._ask_at: int | None = None
        self._attempts = self._forgot_at = 0
        self._gap_until: m.Micros = 0  # no lost line is later than this
        self._promised: m.Micros = 0  # watermark of the last live cut since bundles were last dropped
        self._heard_at = 0  # time of the last Commit, or of the first cut after all was committed

    # Input.

    def start(self, now: int) -> list[Effect]:
        """Begin: request the positions."""
        self._clock, self._stopped = now, m.NO_BALLOT
        self._promises.note(m.NO_BALLOT, now)  # a former life may have promised up to now
        return self._ask(now)

    def step(self, message: m.Message, now: int) -> list[Effect]:
        """An answer of the master; other messages are ignored."""
        self._set_clock(now)
        if self.state is State.ENDED:
            return []
        match message:
            case m.Commit():
                self._note_ballot(message.ballot)
                return self._committed(message.ids, now, message.ballot)
            case m.Split():
                return self._split(message, now)
            case m.Resend():
                self._kept.resend(message.ids)
            case m.Control():
                return self._control(message, now)
            case m.Welcome():
                return self._welcome(message, now)
            case m.Farewell() if message.worker == self._me and self.state is State.PARTING:
                self.end()  # otherwise it is for a former life
            case m.Stop() if message.ballot >= self._ballot:
                self.end(message.ballot)
        return []

    def cut(self, cut: Cut, now: int) -> list[Effect]:
        """Make a bundle of the source's answer to a Read. O(files of this worker)."""
        self._set_clock(now)
        if cut.request != self._request or self._reading is None:
            return []
        lane, self._reading = self._reading, None
        at_beat = self._cut_at is None
        effects: list[Effect] = []
        if cut.gaps:
            files = f"{len(cut.gaps)} file{'' if len(cut.gaps) == 1 else 's'}"
            text = f"lines of {files} are lost; the windows that lack them count this agent as missing"
            effects.append(Notice("gap", text, self._me))
        patience_us = self._p.lagging_us + self._p.idle_grace_us
        self._log_clock.read(cut.newest, now)
        self._places.move(cut.spans, self._log_clock.latest(now))
        if lane == 0:
            self._line_us = now if has_lines(cut.spans) else self._line_us
            self._watermark = cut.watermark_us
            if self._places.update_withheld(cut.watermark_us, now, patience_us):
                self._watermark = min(cut.watermark_us, self._promised)
        self._keep(cut, lane, now)
        if self._kept.nbytes > self._p.kept_bytes_max and len(self._kept) > 1:
            return effects + self._forget_sent(now)
        if lane == 0:
            self._after_live(cut, now)
            again = self._read(self._places.next_lane(), now)
            return effects + (again or self._await_lines(cut, now, at_beat))
        self._cut_at = min(self._cadence.next_beat(now), now + self._p.combine_us_max)
        return effects

    def _forget_sent(self, now: int) -> list[Effect]:
        """Too much is kept: drop it, but send the queued bundles; otherwise a single cut above the bound would never be sent."""
        out = self._kept.take()
        effects = self._ask(now)
        self._kept.out = out
        return effects

    def leave(self, now: int) -> list[Effect]:
        """Send Goodbye once all lines logged by now have been read and committed; `state` is ENDED after that."""
        self._set_clock(now)
        self._leaving = True
        self._hurry(now)
        return []

    def hear(self, is_watched: bool, ballot: m.Ballot, workers: int, now: int) -> list[Effect]:
        """What came down the tree: whether somebody reads open windows, the highest ballot, and the tree's size."""
        if self._cadence.hear(is_watched, ballot, workers):
            self._hurry(now)
        # Rule Stop: a later master serves the job, so the stop was lost.
        return self.start(now) if m.NO_BALLOT < self._stopped < ballot else []

    def awaits(self, request: int) -> bool:
        """Whether that Read is the outstanding one."""
        return self._reading is not None and request == self._request

    def continue_from(self, former: DeltaWorker) -> None:
        """Continue the numbers of the worker that this node had for the job earlier in the same life."""
        self._count, self._request = former._count, former._request
        self._promises = former._promises

    def take_bundles(self) -> list[m.Bundle]:
        """Bundles for this node's reducer, in order."""
        return self._kept.take()

    @property
    def kept_bytes(self) -> int:
        """Bytes of bundles that are not committed."""
        return self._kept.nbytes

    # Time.

    def tick(self, now: int) -> list[Effect]:
        """Cut, repeat a request, or detect that a Commit is overdue."""
        self._set_clock(now)
        effects: list[Effect] = []
        if self._overdue_at is not None and now >= self._overdue_at:
            self._heard_at = now
            if self.state is State.FOLLOWING:
                effects += self._ask(now, forget=False)
        if self._ask_at is not None and now >= self._ask_at:
            effects += self._send_request(now)
        if self._cut_at is not None and now >= self._cut_at:
            effects += self._flush(now)
        return effects

    @property
    def deadline(self) -> int | None:
        """When `tick` has work next."""
        due = self._cut_at
        for at in (self._ask_at, self._overdue_at if self._kept else None):
            if at is not None and (due is None or at < due):
                due = at
        return due

    @property
    def _overdue_at(self) -> int | None:
        if not self._kept or self.state is not State.FOLLOWING:
            return None
        return self._heard_at + OVERDUE_PARKS * self._p.park_us

    # Reading.

    def _flush(self, now: int) -> list[Effect]:
        self._cut_at = self._cadence.next_beat(now)
        if not self._room() or self._read_all:
            return []
        return self._read(0, now)

    def _await_lines(self, cut: Cut, now: int, at_beat: bool) -> list[Effect]:
        """Leave further lines in the source. If somebody reads open windows: after a pause, until the first one or the next beat;
        at_beat: after a cut in between there is no other. Else until the watermark there closes a window; but not while the
        master lacks a bundle under its ballot, or lines are read again, are lost, or cannot be read."""
        is_watched, due_us, cut_at = self._cadence.is_watched, AFTER_ALL, self._cut_at
        if not cut.caught_up or self._leaving:
            return []
        if is_watched and not (at_beat and now - self._line_us >= self._cadence.pause_us):
            return []
        if not is_watched:
            lacks = self._lanes_wanted or self._places.lanes or self._places.withheld or self._gap_until
            if lacks or cut.is_blind or not self._proven == self._ballot >= self._cadence.ballot:
                return []
            due_us, cut_at = self.next_close(self.schedule, self._watermark), now + self._p.unsent_us
        effects = self._read(0, now, due_us, at_line=is_watched)
        self._cut_at = cut_at if effects else self._cut_at
        return effects

    def _hurry(self, now: int) -> None:
        """Cut at once if a Read waits for lines."""
        if self._reading is not None and self._cut_at is not None:
            self._cut_at = now

    def _after_live(self, cut: Cut, now: int) -> None:
        self._cut_at = self._cadence.next_beat(now) if cut.caught_up else now + self._p.combine_us_max
        has_lanes = self._lanes_wanted or self._places.next_lane() is not None
        if self._leaving and cut.caught_up and not has_lanes and not self._places.withheld:
            self._read_all = True
            self._unread = cut.ends_unread
            self.until_us = max(now, cut.watermark_us, self._log_clock.latest(now)) + 1

    def _read(self, lane: int | None, now: int, due_us: m.Micros = 0, at_line: bool = False) -> list[Effect]:
        """Request a cut of the source; the answer to an earlier request is then ignored."""
        if lane is None or not self._room():
            return []
        self._request += 1
        self._reading = lane
        self._left_out_us = self._since_us
        self._cut_at = None
        positions = {slot: position for slot, position in self._places.at.items() if slot[2] == lane}
        number = number_of(self.schedule)
        if lane == 0:
            due = due_us, at_line
            return [Read(self._job, self._request, number, positions, self._since_us, 0, {}, *due)]
        stretch = self._places.lanes[lane]
        since = max(stretch.from_us, self._since_us)
        return [Read(self._job, self._request, number, positions, since, lane, stretch.ends)]

    def _wait(self, now: int) -> list[Effect]:
        """Cancel reading until the next flush."""
        self._request += 1
        self._reading = None
        self._cut_at = self._cadence.next_beat(now)
        return []

    def _keep(self, cut: Cut, lane: int, now: int) -> None:
        self._count += 2
        # A worker with lost lines is listed in `lagging` too: its gap reaches up to its own watermark, not to a merged bundle's.
        covered = self._places.covered(cut.spans)
        if not lane:
            self._mark_gap(cut, covered, now)
            self._promises.note(self._ballot, self._watermark)
        has_gap = any(span[2] & m.GAP for span in covered.values())
        lagging = has_gap or now - self._watermark > self._p.lagging_us
        bundle = m.Bundle(
            self._job,
            (self._me, self._incarnation, self._count),
            cut.schedule,
            covered,
            m.NO_WATERMARK if lagging else self._watermark,
            {self._me: self._watermark} if lagging else {},
            cut.parts,
            ballot=self._ballot,
            since_us=self._left_out_us,
            untimed={self._me: cut.untimed} if cut.untimed else {},
            elsewhere=() if self._proven == self._ballot else self._promises.to_others(self._ballot),
            newest=cut.newest,
            unparsed={self._me: cut.unparsed} if cut.unparsed else {},
        )
        if not self._kept:
            self._heard_at = now
        self._kept.add(bundle)

    def _mark_gap(self, cut: Cut, covered: dict[m.Slot, m.Span], now: int) -> None:
        """Where a loss is reported before the watermark has passed the lost lines, mark each bundle with GAP until the watermark
        has. Also mark a bundle whose watermark advanced while no line could be parsed."""
        is_open = any(not self._places.at[slot].closed for slot in cut.gaps)
        lost_until = max(self._places.lost_until(covered), self._log_clock.latest(now) if is_open else 0)
        if lost_until > self._watermark:
            self._gap_until = max(self._gap_until, lost_until)
        if self._promised < self._gap_until or cut.is_blind:
            opened = (slot for slot, span in covered.items() if not (slot[2] or span[2] & m.CLOSED))
            live = next(opened, (self._me, 0, 0))  # of a closed file, GAP is sent only once
            start, end, flags = covered.get(live, (0, 0, m.FIRST))
            covered[live] = start, end, flags | m.GAP
        self._promised = self._watermark

    # Answers.

    def _committed(self, ids: Iterable[m.BundleId], now: int, ballot: m.Ballot) -> list[Effect]:
        for id in ids:
            bundle = self._kept.pop(id)
            if bundle is None:
                continue
            self._heard_at = now
            if self._gap_until and bundle.lagging.get(self._me, bundle.watermark) >= self._gap_until:
                self._gap_until = 0
            if bundle.ballot == ballot:
                self._proven = ballot
            if self._places.closing and ballot == self._ballot:
                self._places.ends_committed(bundle.contributions)
            if self.state is State.ASKING:
                self._follow(now)
        return self._part(now)

    def _split(self, split: m.Split, now: int) -> list[Effect]:
        bundle = self._kept.bundles.get(split.id)
        if bundle is None:
            return self._known_places(split, now) if not split.id[2] else []
        if split.ballot < self._ballot:
            return self._ask(now)
        self._learn(split.ballot, split.schedule)
        positions = {slot: position for slot, position in split.positions if slot[0] == self._me}
        effects = self._moved(split)
        # This master's log may retain earlier lines than the log for which this worker has read so far.
        self._since_us = min(self._since_us, split.since_us)
        if in_log(bundle.contributions, positions) and not wrongly_cut(bundle, split):
            return effects + self._committed((split.id,), now, split.ballot)
        if not positions and bundle.schedule == number_of(self.schedule):
            return effects + self._ask(now)
        return effects + self._rewind(bundle, positions, now)

    def _known_places(self, split: m.Split, now: int) -> list[Effect]:
        """A Split that names no bundle lists the master's positions. If one is past what this worker has read, request positions
        again."""
        past = [slot for slot, position in split.positions if self._places.is_past(slot, position)]
        if not past or self.state is not State.FOLLOWING or split.ballot < self._ballot:
            return []
        return self._moved(split) + self._ask(now)

    def _moved(self, split: m.Split) -> list[Effect]:
        """A notice if committed positions are past what this worker has ever reported, or within a bundle. A former life may have
        read further, so there is no notice soon after a start or a drop."""
        places, kept = self._places, self._kept
        far = [each for each in split.positions if not places.was_left(*each)]
        moved = [slot for slot, at in far if places.is_past(slot, at) or kept.is_within(slot, at)]
        if not moved or self._clock - self._forgot_at <= OVERDUE_PARKS * self._p.park_us:
            return []
        text = MOVED.format(len(moved))
        return [Notice("place", text, self._me)]

    def _rewind(self, bundle: m.Bundle, positions: dict[m.Slot, m.Position], now: int) -> list[Effect]:
        """Rule 4*: go back to the committed positions, and cut again from there."""
        self._places.rewind((bundle, *self._kept.bundles.values()), positions)
        self._forget()
        self._follow(now)
        return self._read(0, now)

    def _forget(self) -> None:
        """Drop all kept bundles, and void the outstanding Read."""
        self._kept.clear()
        self._request += 1
        self._reading = None
        self._read_all = False
        self._promised = 0
        self._forgot_at = self._clock

    # Requests to the master.

    def _ask(self, now: int, forget: bool = True) -> list[Effect]:
        """Request positions: repeat Hello until a Welcome comes."""
        if forget:
            self._forget()
        self.state = State.ASKING
        self._request += 1
        self._reading = None
        self._cut_at = None
        self._attempts = 0
        return self._send_request(now)

    def _send_request(self, now: int) -> list[Effect]:
        """Send Hello or Goodbye, and schedule its repetition."""
        self._ask_at = now + (self._p.ask_us << self._attempts)
        self._attempts = min(self._attempts + 1, ASK_DOUBLINGS)
        if self.state is State.PARTING:
            about = self.until_us, self._incarnation, self._proven, self._unread
            return [Route(self._job, m.Goodbye(self._job, self._me, *about))]
        return [Route(self._job, m.Hello(self._job, self._me, self._incarnation))]

    def _welcome(self, welcome: m.Welcome, now: int) -> list[Effect]:
        if welcome.incarnation != self._incarnation or not self._learn(welcome.ballot, welcome.schedule):
            return []
        if self.state in (State.ASKING, State.PARTING):
            self._forget()
            self._places.begin(welcome)
            self._since_us = welcome.since_us
            self._note_lanes(welcome)
            self._follow(now)
            return self._read(0, now)
        if self._lanes_wanted:
            self._places.take_lanes(welcome)
            self._note_lanes(welcome)
            self._ask_at = None
            if self._reading and self._reading not in self._places.lanes:
                return self._read(0, now) or self._wait(now)
        return []

    def _note_lanes(self, welcome: m.Welcome) -> None:
        """The lanes are known; do not request them again under this schedule."""
        self._lanes_wanted = False
        self._lanes_known = (welcome.ballot, number_of(welcome.schedule))

    def _control(self, control: m.Control, now: int) -> list[Effect]:
        """Take a schedule. The master repeats it while its lane is open; a Split may have brought the schedule before."""
        before = number_of(self.schedule)
        if not self._learn(control.ballot, control.schedule) or self.state is not State.FOLLOWING:
            return []
        effects: list[Effect] = []
        if number_of(self.schedule) != before:
            effects += self._read(self._reading, now)
        is_known = self._lanes_known >= (control.ballot, number_of(control.schedule))
        if control.lane_us and self._places.lanes and self._lanes_known[0] < control.ballot:
            return self._ask(now)  # another master may lack parts of the lane that the last one had committed
        if control.lane_us and not is_known and not self._lanes_wanted:
            self._lanes_wanted = True
            self._read_all = False
            self._attempts = 0
            effects += self._send_request(now)
        return effects

    def _learn(self, ballot: m.Ballot, schedule: m.Schedule) -> bool:
        """Adopt a schedule. False: it is not adopted, since it or its master is older than the known one.

        Schedule numbers only grow under one master; the log of a new master may have an older schedule.
        """
        is_older = ballot == self._learned and number_of(schedule) < number_of(self.schedule)
        if ballot < self._ballot or is_older:
            return False
        self._note_ballot(ballot)
        self._learned = ballot
        self.schedule = schedule
        return True

    def _note_ballot(self, ballot: m.Ballot) -> None:
        """A higher ballot: its master may not know the end of a file that its predecessor committed, so name all ends again."""
        if ballot > self._ballot:
            self._ballot = ballot
            self._hurry(self._clock)
            self._places.name_ends_again()
            if self._places.withheld:
                self._watermark = self._promised = 0

    def _follow(self, now: int) -> None:
        self.state = State.FOLLOWING
        self._ask_at = now if self._lanes_wanted else None
        self._heard_at = now
        if self._reading is None:
            self._cut_at = min(self._cut_at or self._cadence.next_beat(now), self._cadence.next_beat(now))

    def _part(self, now: int) -> list[Effect]:
        """Send Goodbye if the worker leaves and all is committed."""
        if not self._read_all or self._kept or self.state is not State.FOLLOWING:
            return []
        if self._proven != self._ballot:
            self._read_all = False  # that master needs all ends once more
            return []
        self.state = State.PARTING
        self._cut_at = None
        self._attempts = 0
        return self._send_request(now)

    def end(self, ballot: m.Ballot = m.NO_BALLOT) -> None:
        """The job, or this worker's part in it, has ended; ballot: that of the master that says so."""
        self._forget()
        self.state, self._stopped = State.ENDED, ballot
        self._cut_at = self._ask_at = None

    # The clock.

    def _set_clock(self, now: int) -> None:
        """Where the clock steps back, shift all timers by that step."""
        behind = self._clock - now
        if behind > 0:
            self._ask_at = None if self._ask_at is None else self._ask_at - behind
            self._cut_at = None if self._cut_at is None else min(self._cut_at, self._cadence.next_beat(now))
            self._heard_at -= behind
            self._line_us -= behind
            self._forgot_at -= behind
            self._log_clock.set_back(self._clock, now)
        self._clock = now

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold. O(contributions kept)."""
        self._kept.check(self._me)
        assert self._reading is None or self.state is State.FOLLOWING
        if self.state is State.FOLLOWING and self._reading is None:
            assert self._cut_at is not None, "no cut is scheduled"
        if self.state in (State.ASKING, State.PARTING):
            assert self._ask_at is not None, "no repetition is scheduled"
        self._places.check()
