"""Which bundles a master accepts: rule 4, and the checks of their claims.

| the bundle's spans are | then (rule 4) |
|---|---|
| all at the committed positions | ACCEPT is proposed; COMMIT when it is in the log |
| all behind | dropped; COMMIT again, when all entries proposed so far are in the log |
| all behind, and it closes a file that is open further on | SPLIT with the committed positions |
| some ahead, none behind | parked, until positions move; SPLIT after `park_us`, or when there is no room |
| mixed, or straddling a position | SPLIT with the committed positions of workers that are not only ahead; others resend alone |

| the bundle's rows are | then |
|---|---|
| of a version that is not in force at their time | SPLIT with the schedule |
| of another shape, or without any bytes of a log | SPLIT, and a notice: no correct agent sends such a bundle |

A bundle that is sent for the first time is rarely behind: only after an earlier life of the worker, or after the worker has read
again. If it is, the worker gets its positions directly, past all reducers. So a worker notices if another process with its key
has moved them.

The bundles of a beat are taken together (`round`), each judged for itself; those that are accepted become one entry of the log.

The positions above are those after the log and the proposed entries (`ahead`). Answers depend on the log alone (`state`): each
waits for the entries that were proposed before it (`Proposals.when_committed`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from elf.jobmaster.log.entries import Accept
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.positions import Fit, Place
from elf.jobmaster.master.parking import Parking
from elf.jobmaster.master.proposals import Proposals
from elf.jobmaster.master.roster import Roster
from elf.jobmaster.master.round import Round
from elf.srt.messages.bundles import OpenBundle
from elf.srt.messages.effects import Effect, Notice, Post, Send
from elf.srt.messages.ids import NodeId, short
from elf.srt.messages.messages import (
    CLOSED,
    FIRST,
    Ballot,
    Bundle,
    BundleId,
    Commit,
    Position,
    Slot,
    Span,
    Split,
)
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.partial import Parts

NO_ID: BundleId = b"", 0, 0
"""The id of merged bundles that become an entry of the log; nobody answers to it."""
SPLIT_POSITIONS_MAX = 64
"""The most positions of fitting files in a Split where only the schedule is wrong: a lone worker needs them."""
CORRECTED_MAX = 4_096
"""The most workers of which the time of their last correction is kept."""


class Intake:
    """Judges bundles for the master of `ballot`. add_effect: adds an effect to the current call; Commits are sent at its end.

    Invariant (`check`): that of `Parking`.
    """

    def __init__(
        self,
        state: JobState,
        ballot: Ballot,
        parameters: Parameters,
        log: Proposals,
        roster: Roster,
        add_effect: Callable[[Effect], None],
    ) -> None:
        self.job, self.ballot, self.log, self.ahead = state.job, ballot, log, log.ahead
        self.parking = Parking(parameters.park_bytes_max, parameters.park_us)
        self.round = Round(parameters.flush_us, parameters.frame_bytes_max)
        self._accepted, self._promise = OpenBundle(parameters.frame_bytes_max), True  # since the last entry
        self.state, self._parameters, self._roster, self._add_effect = state, parameters, roster, add_effect
        self._commits: dict[NodeId, list[BundleId]] = {}
        self._corrected_at: dict[NodeId, int] = {}  # worker -> when its positions were last sent to it

    def bundle(self, child: NodeId, bundle: Bundle, now: int) -> None:
        """A bundle has reached the root. O(contributions)."""
        self.round.add(child, bundle, now)
        self.look(now)

    def look(self, now: int) -> None:
        """Take the bundles of a round that is over."""
        if self.round.is_over(now):
            self.take_round(now)

    def take_round(self, now: int) -> None:
        """Take the bundles that wait for others. Before a worker gets positions: its bundles may be among them."""
        has_moved = [self._judge(child, bundle, now) for child, bundle in self.round.take()]
        self._propose()
        if any(has_moved):
            self.retry_parked(now)

    def _judge(self, child: NodeId, bundle: Bundle, now: int) -> bool:
        """Rule 4*: accept, drop, park or split; returns whether positions move with the next entry."""
        if not self._accepted.is_apart(bundle):
            self._propose()
        fit = self.ahead.judge(bundle.contributions)
        if fit in (Fit.BEHIND, Fit.MIXED) and not bundle.again:
            self._send_positions(bundle, now)
        if fit is Fit.BEHIND and (early := self._closed_early(bundle)):
            self._split(child, bundle, early)
        elif fit is Fit.BEHIND:
            self.log.when_committed(self._commit, child, bundle.id)
        elif fit is Fit.MIXED:
            self._split(child, bundle, self._misplaced(bundle))
        elif not (self._is_sound(child, bundle) and self._has_valid_rows(bundle)):
            self._split(child, bundle, list(bundle.contributions)[:SPLIT_POSITIONS_MAX])
        elif fit is Fit.FITS and self.log.has_room:
            self._accept(child, bundle, now)
            return True
        elif not self.parking.put(child, bundle, now):
            self._split(child, bundle, self.ahead.misfits(bundle.contributions))
        return False

    def _misplaced(self, bundle: Bundle) -> list[Slot]:
        """The files of a mixed bundle that are misplaced, of workers that are not only ahead. A worker that is only ahead is left
        out: it resends its part separately (rule 4*). The missing bundle is in flight, and if that worker read again meanwhile,
        its new spans would straddle that bundle's."""
        spans = bundle.contributions
        misfits = self.ahead.misfits(spans)
        waiting = {slot for slot in misfits if self._is_ahead(slot, spans[slot])}
        misplaced = {slot[0] for slot in misfits if slot not in waiting}
        return [slot for slot in misfits if slot[0] in misplaced]

    def _closed_early(self, bundle: Bundle) -> list[Slot]:
        """Files that the bundle closes before the position at which they are open. Their worker closed them for another log, as
        on the smaller side of a partition; if that counted as done, this log would never learn that their ends are lost."""
        return [
            slot
            for slot, (_, end, flags) in bundle.contributions.items()
            if flags & CLOSED
            and (at := self.ahead.position(slot)) is not None
            and end < at.offset
            and not at.closed
        ]

    def _is_ahead(self, slot: Slot, span: Span) -> bool:
        """Whether the span is ahead of the position of a known file."""
        return self.ahead.position(slot) is not None and self.ahead.place(slot, span) is Place.AHEAD

    def _is_sound(self, child: NodeId, bundle: Bundle) -> bool:
        """Whether the bundle is well-formed: rows of another shape would corrupt the panes, and rows need bytes."""
        rows = 0
        for version, part in bundle.parts.items():
            panes = self.state.panes.get(version)
            if panes is None or part.ops != tuple(panes.ops) or len(part.rows) != len(panes.ops):
                return False
            rows += len(part.rows[1])
        if rows and not any(end > start for start, end, _ in bundle.contributions.values()):
            self._report_unsound(child, "rows, but no lines of any log file")
            return False
        named = bundle.lagging.keys() | bundle.untimed.keys() | bundle.unparsed.keys()
        if not named <= {slot[0] for slot in bundle.contributions}:
            self._report_unsound(child, "watermarks or counts of workers of which it has no lines")
            return False
        return True

    def _has_valid_rows(self, bundle: Bundle) -> bool:
        """Whether the bundle has all rows that this log needs, of versions in force."""
        return self.has_all_rows(bundle) and self.ahead.rows_belong(
            bundle.schedule, bundle.parts, bundle.newest
        )

    def has_all_rows(self, bundle: Bundle) -> bool:
        """Rule 8*: workers leave out lines before the oldest retained pane, but one log may retain more than another: lines that
        a worker left out for another master may count here."""
        return bundle.since_us <= self.ahead.reread_us

    def _report_unsound(self, child: NodeId, what: str) -> None:
        text = (
            f"{short(child)} forwarded a bundle with {what}; the bundle is refused. That agent, or one below it, is faulty or "
            "malicious: check it, and those below it in `elf mesh tree`"
        )
        self._add_effect(Notice("unsound", text, child))

    def _send_positions(self, bundle: Bundle, now: int) -> None:
        """Send their positions to workers whose lines are committed already although they send them for the first time."""
        state, moved = self.state.positions, dict[NodeId, list[tuple[Slot, Position]]]()
        for slot, (_, end, _) in bundle.contributions.items():
            at = state.position(slot)
            if at is not None and (end < at.offset or at.closed):
                moved.setdefault(slot[0], []).append((slot, at))
        for worker, places in moved.items():
            if (
                0
                <= now - self._corrected_at.get(worker, -self._parameters.park_us)
                < self._parameters.park_us
            ):
                continue
            if len(self._corrected_at) >= CORRECTED_MAX:
                del self._corrected_at[next(iter(self._corrected_at))]
            self._corrected_at[worker] = now
            split = Split(self.job, self.ballot, (worker, 0, 0), (), tuple(places[:SPLIT_POSITIONS_MAX]))
            self._add_effect(Send(worker, split))

    def _accept(self, child: NodeId, bundle: Bundle, now: int) -> None:
        accepted, promise = self._accepted, self.promises(bundle)
        if accepted and not (promise == self._promise and accepted.joins(bundle)):
            self._propose()
        parts = self._parts_in_time(bundle) if self._may_be_forgotten(bundle) else bundle.parts
        parts = {version: part for version, part in parts.items() if len(part.rows[1])}
        self._promise = promise
        accepted.add(child, replace(bundle, parts=parts), now)

    def _propose(self) -> None:
        """Propose what was accepted as one entry."""
        if not self._accepted:
            return
        whole, feeders, nbytes = (
            self._accepted.close(self.job, NO_ID),
            self._accepted.feeders,
            self._accepted.nbytes,
        )
        self._accepted.empty()
        self._roster.expect(whole.contributions)
        entry = Accept(
            whole.schedule,
            whole.contributions,
            whole.watermark,
            whole.lagging,
            whole.parts,
            self._promise,
            whole.since_us,
            whole.untimed,
            whole.newest,
            whole.unparsed,
        )
        self.log.propose(entry, nbytes)
        for feeder in feeders:
            self.log.when_committed(self._commit, feeder.child, feeder.id)

    def _may_be_forgotten(self, bundle: Bundle) -> bool:
        """Whether this log may have had the bundle and forgotten it: the log keeps no positions of files that ended before the
        retained panes, and a bundle that is resent, or was cut under another master, may hold all of such a file."""
        is_fresh = not bundle.again and self.promises(bundle)
        return not is_fresh and any(flags & FIRST for _, _, flags in bundle.contributions.values())

    def _parts_in_time(self, bundle: Bundle) -> Parts:
        """The bundle's rows that are not past retention; others would be counted as late, although windows may have them."""
        retained, shapes = self.ahead.retained_us, self.ahead.shapes
        return {
            version: part.since(shapes[version].first_in_time(retained))
            for version, part in bundle.parts.items()
        }

    def promises(self, bundle: Bundle) -> bool:
        """Rule 2*: a watermark counts only in a bundle that names every file of the worker which this log may lack. A bundle that
        was cut under another master omits the files which that master has committed to their ends."""
        return bundle.ballot == self.ballot

    def retry_parked(self, now: int) -> None:
        """Positions moved: judge parked bundles that fit now, or are no longer ahead, until no more of them do."""
        moved = True
        while moved and len(self.parking):
            moved = False
            for parked in self.parking:
                fit = self.ahead.judge(parked.bundle.contributions)
                if fit is not Fit.AHEAD and (fit is not Fit.FITS or self.log.has_room):
                    self.parking.take(parked.bundle.id)
                    moved |= self._judge(parked.child, parked.bundle, now)
                    self._propose()

    def _commit(self, child: NodeId, bundle_id: BundleId) -> None:
        self._commits.setdefault(child, []).append(bundle_id)

    def _split(self, child: NodeId, bundle: Bundle, slots: Sequence[Slot]) -> None:
        self.log.when_committed(self._send_split, child, bundle, slots)

    def _send_split(self, child: NodeId, bundle: Bundle, slots: Sequence[Slot]) -> None:
        """Send a Split. Of a worker that continues in the middle of a file which the log does not know, it has no positions at
        all, so that the worker requests them with a Hello: it would assume that files which are not named fit."""
        state = self.state.positions
        at = [(slot, position) for slot in slots if (position := state.position(slot)) is not None]
        unknown = [slot for slot in slots if state.position(slot) is None]
        lost = {slot[0] for slot in unknown if state.place(slot, bundle.contributions[slot]) is Place.AHEAD}
        places = tuple((slot, position) for slot, position in at if slot[0] not in lost)
        split = Split(self.job, self.ballot, bundle.id, state.schedule, places, state.reread_us)
        self._add_effect(Post(child, split))

    def expire(self, now: int) -> None:
        """Split bundles that have been parked for too long."""
        for parked in self.parking.expired(now):
            self._split(parked.child, parked.bundle, self.ahead.misfits(parked.bundle.contributions))

    def take_commits(self) -> list[Effect]:
        """One Commit to each child that has bundles in the log since the last call."""
        commits, self._commits = self._commits, {}
        return [Post(child, Commit(self.job, self.ballot, tuple(ids))) for child, ids in commits.items()]

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        self.parking.check()
        assert not self._accepted, "accepted bundles are in no entry"
