"""Entries that a master accepted alone during a partition, offered to the master that wins: the offer of rule 9.

In one sentence: `Unshared` keeps accepted entries while a node that may serve another log is missing; when this master steps
down, `Offering` sends them in order, as bundles, through its node's own reducer, and the winner judges them like any others.

| event                                          | what follows                                                             |
|------------------------------------------------|--------------------------------------------------------------------------|
| all replicas are present                       | nothing is kept: any successor has all committed entries                 |
| a replica, or the former master, is lost       | every Accept that is committed from then on is kept (`Unshared`)         |
| more than `bytes_max` is kept                  | entries of related workers are joined; if still too much, all dropped    |
| the lost node is back for `settled_us`         | kept entries are dropped: its higher ballot would have arrived by then   |
| this node serves again, with its own log       | kept entries stay: the present winner may still lose                     |
| a higher ballot, and the log is not handed on  | all entries are offered, oldest first, some at a time (`Offering`)       |
| Commit of an offer                             | the winner's log has it                                                  |
| Split of an offer                              | it does not fit, and never will: dropped                                 |
| Resend                                         | offered again: a node on the way lost it                                 |
| `give_up_us` after it began                    | the rest is dropped                                                      |

Why bundles: an offer has the contributions and rows of one Accept, so the winner's rule 4* decides alone. It fits at the
committed positions, and is accepted; or its lines are in the winner's log already, and it is dropped; or it is ahead, and is
parked until the lines before it arrive. If another node sends the same bytes, in whatever order, the later one is dropped. The
winner trusts no claim, so nothing about partitions, ballots or lost nodes has to be proven. Reducers keep, forward and resend an
offer like all bundles that are marked `again` (rule 3), in pieces where it is large, under the credits of links.

Why all entries are offered, not only those whose lines have left the disks: a master cannot know which logs of others are gone,
and asking would take longer than an offer of a few bundles. It also saves the workers from reading again: their own bundles,
ahead of the winner's log, are parked for `park_us`, and fit when the offers have arrived.

Why the report of a gap need not wait for offers: a worker reads again only when its own bundle has been parked for `park_us`, and
its source looks for a missing file for two more graces and reports its position meanwhile (`agent/work/mesh_source.py`). When an
offer passes that position, the answer to the worker's next report says so. Only the gap of a truncated file is reported at once.

Why entries and not ranges: rows of a bundle are merged over all workers in it. At the root, bundles of children are not merged,
so in a tree of one level each entry has the lines of one worker. In a deeper tree, an entry that was in flight when the partition
began may have workers of both sides; the winner finds it MIXED, and its workers read these lines again from their logs.

Not covered: entries of a master that died or left meanwhile; and watermarks, which promise nothing to another master (rule 2*).
So a window may contain lines that were handed over of an agent that is gone for good, and count that agent as missing.

Invariants (`check`): `nbytes` is the size of the kept entries, and at most the bound; spans of a file follow one another; offers
that are not answered take at most `sent_bytes_max`, or are one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from elf.jobmaster.log.entries import Accept
from elf.jobmaster.log.positions import Positions
from elf.srt.messages.bundles import joined_span, spanned, summed
from elf.srt.messages.effects import Effect, Notice
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import GAP, Bundle, BundleId, Commit, Resend, Slot, Span, Split
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.partial import merge_parts

FIRST_ID = (1 << 62) | 1
"""Offers have odd numbers from here on; those of the worker's bundles begin at 1, and a reducer's are even."""


class Run(msgspec.Struct, frozen=True):
    """One accepted entry, or several joined. fixed: never joined with others, because the other log may end between them."""

    entry: Accept
    nbytes: int
    fixed: bool

    @property
    def workers(self) -> list[NodeId]:
        """The workers that read its lines."""
        return sorted({slot[0] for slot in self.entry.contributions})

    @property
    def is_alone(self) -> bool:
        """Whether it must not be joined: it is fixed, or has a gap, of which its watermark is the end."""
        return self.fixed or any(flags & GAP for _, _, flags in self.entry.contributions.values())


class Unshared:
    """Accepted entries that a lost neighbour's log may lack. `nbytes`: their size."""

    def __init__(self, bytes_max: int, run_bytes_max: int, unsure_us: int, settled_us: int) -> None:
        self._bytes_max, self._run_bytes_max = bytes_max, run_bytes_max
        self._unsure_us, self._settled_us = unsure_us, settled_us
        self._runs: list[Run] = []
        self.nbytes = 0
        self.given_up = False
        self._losses = 0  # counted so far
        self._lost_at = 0  # time of the last loss
        self._apart_at: int | None = None  # time of the last entry during which a node was missing

    @classmethod
    def by(cls, parameters: Parameters) -> Unshared:
        """With a mesh's bounds. Within `park_us`, bundles that were in flight when a node was lost are committed or split; within
        `transfer_us_max`, the closest node has received the log that the other side serves."""
        p = parameters
        return cls(p.handover_bytes_max, p.frame_bytes_max, p.park_us, p.transfer_us_max)

    def begin(self, positions: Positions) -> None:
        """A master begins on this node. If its log lacks kept entries, it is another master's log: drop them. They are being
        offered to this master, and are kept again when it accepts them."""
        for run in self._runs:
            for slot, (_, end, _) in run.entry.contributions.items():
                if slot[2]:
                    continue  # a lane that is done is forgotten: nothing tells how far it was read
                at = positions.position(slot)
                if at is None or at.offset < end:
                    self._runs, self.nbytes, self.given_up = [], 0, False
                    return

    def keep(self, entry: Accept, losses: int, now: int) -> list[Effect]:
        """The entry is committed. losses: how often a node was lost, 0 if none is missing. The other log may end between entries
        that were in flight when a node was lost, so the entries of the next `unsure_us` are not joined.

        Amortised O(rows); O(1) while no node is missing."""
        if losses:
            if losses != self._losses:
                self._lost_at = now
            self._apart_at = now
        elif self._apart_at is None:
            return []
        elif not 0 <= now - self._apart_at <= self._settled_us:
            self.clear()
            return []
        self._losses = losses
        if self.given_up:
            return []
        self._add(Run(entry, entry.nbytes, fixed=now - self._lost_at <= self._unsure_us))
        return self._join_to_fit()

    def clear(self) -> None:
        """Drop the kept entries: all nodes have them."""
        self._runs.clear()
        self.nbytes, self.given_up, self._losses, self._apart_at = 0, False, 0, None

    @property
    def entries(self) -> list[Accept]:
        """All kept entries, oldest first. They stay kept: two masters may outbid each other a few times before one has the
        other's log, and this node may serve again with its own log."""
        return [run.entry for run in self._runs]

    def _add(self, run: Run) -> None:
        self._runs.append(run)
        self.nbytes += run.nbytes

    def _join_to_fit(self) -> list[Effect]:
        """Join entries where possible; this must free a quarter of the bound, so that each byte is joined a few times at most."""
        if self.nbytes <= self._bytes_max:
            return []
        runs, self._runs, self.nbytes = self._runs, [], 0
        for run in joined(runs, self._run_bytes_max):
            self._add(run)
        if self.nbytes <= self._bytes_max * 3 // 4:
            return []
        self._runs, self.nbytes, self.given_up = [], 0, True
        text = (
            f"a node that has the log is missing, and more than {self._bytes_max >> 10} KiB have been accepted since: if the "
            "network is partitioned and this side has to step down, lines whose log files are deleted by then are lost; restore "
            "the network or that node"
        )
        return [Notice("handover", text)]

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        assert self.nbytes == sum(run.nbytes for run in self._runs) <= self._bytes_max
        assert not (self.given_up and self._runs)
        ends: dict[Slot, int] = {}
        for run in self._runs:
            for slot, (start, end, _) in run.entry.contributions.items():
                if start < end:  # an empty span of a file that is done in its lane may be anywhere
                    assert ends.get(slot, start) <= start, f"kept twice at {slot}"
                    ends[slot] = end


def joined(runs: list[Run], run_bytes_max: int) -> list[Run]:
    """Join runs whose spans meet, up to `run_bytes_max`; each result takes the place of its first run. O(rows).

    Only runs of workers that were ever in one bundle, which depend on each other already. If others were joined, one worker that
    reads again would invalidate their lines.
    """
    out: list[_Group] = []
    last: dict[tuple[int, NodeId], _Group] = {}
    relative = _relatives(runs)
    for run in runs:
        key = run.entry.schedule, relative(run.workers[0])
        group = last.get(key)
        if group is None or not group.takes(run, run_bytes_max):
            last[key] = group = _Group()
            out.append(group)
        group.add(run)
    return [group.as_run() for group in out]


def _relatives(runs: list[Run]) -> Callable[[NodeId], NodeId]:
    """Union-find: maps each worker to a representative of the workers that shared bundles with it, directly or through others."""
    above: dict[NodeId, NodeId] = {}

    def top(worker: NodeId) -> NodeId:
        while (up := above.get(worker, worker)) != worker:
            above[worker] = worker = above.get(up, up)
        return worker

    for run in runs:
        if not run.is_alone:
            first, *others = run.workers
            for other in others:
                above[top(other)] = top(first)
    return top


class _Group:
    """Runs to be joined."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._spans: dict[Slot, Span] = {}
        self._nbytes = 0

    def takes(self, run: Run, bytes_max: int) -> bool:
        """Rule 2*: whether the span of each file begins where the group's span of it ends."""
        if self._nbytes + run.nbytes > bytes_max or run.is_alone or self._runs[0].is_alone:
            return False
        known = self._spans
        return all(
            slot not in known or known[slot][1] == span[0] for slot, span in run.entry.contributions.items()
        )

    def add(self, run: Run) -> None:
        self._runs.append(run)
        self._nbytes += run.nbytes
        for slot, span in run.entry.contributions.items():
            first = self._spans.get(slot)
            self._spans[slot] = span if first is None else joined_span(first, span)

    def as_run(self) -> Run:
        if len(self._runs) == 1:
            return self._runs[0]
        lagging: dict[NodeId, int] = {}
        for run in self._runs:
            lagging.update(run.entry.lagging)
        last = self._runs[-1].entry
        parts = merge_parts([run.entry.parts for run in self._runs])
        since_us = max(run.entry.since_us for run in self._runs)
        untimed = summed(run.entry.untimed for run in self._runs)
        newest = max(run.entry.newest for run in self._runs)
        unparsed = spanned(run.entry.unparsed for run in self._runs)
        about = last.schedule, self._spans, last.watermark, lagging, parts, False, since_us, untimed, newest
        entry = Accept(*about, unparsed)
        return Run(entry, entry.nbytes, fixed=False)


class Offering:
    """Entries that this node offers to the winner, as bundles. `step` ignores the ids of the worker's own bundles."""

    def __init__(self, job: JobId, me: NodeId, life: int, sent_bytes_max: int, give_up_us: int) -> None:
        self._job, self._me, self._life = job, me, life
        self._sent_bytes_max, self._give_up_us = sent_bytes_max, give_up_us
        self._waiting: deque[Accept] = deque()
        self._sent: dict[BundleId, tuple[Bundle, int]] = {}
        self._again: dict[BundleId, None] = {}  # ordered
        self._sent_bytes = 0
        self._count = FIRST_ID - 2
        self._until: int | None = None
        self._done = self._lost = 0

    def continue_from(self, former: Offering) -> None:
        """Continue the numbers of an earlier offering of the same life."""
        self._count = former._count

    @property
    def is_empty(self) -> bool:
        return not (self._sent or self._waiting)

    @property
    def held_bytes(self) -> int:
        """Size of the offered and waiting entries. O(waiting entries)."""
        return self._sent_bytes + sum(entry.nbytes for entry in self._waiting)

    @property
    def deadline(self) -> int | None:
        """When the offering ends: `give_up_us` after the last step-down, even if everything is answered before."""
        return self._until

    def offer(self, entries: list[Accept], now: int) -> None:
        """A master has stepped down: offer its entries, after the waiting ones of earlier masters that are not among them."""
        known = {id(entry) for entry in entries}
        self._waiting = deque([*(entry for entry in self._waiting if id(entry) not in known), *entries])
        if entries:
            self._until = now + self._give_up_us
            self._done = self._lost = 0

    def take_bundles(self) -> list[Bundle]:
        """Bundles for the reducer, in order; more follow when some of them are answered."""
        out = [self._sent[id][0] for id in self._again]
        self._again.clear()
        while self._waiting and (not self._sent or self._sent_bytes < self._sent_bytes_max):
            out.append(self._send(self._waiting.popleft()))
        return out

    def _send(self, entry: Accept) -> Bundle:
        self._count += 2
        id = (self._me, self._life, self._count)
        bundle = Bundle(
            self._job,
            id,
            entry.schedule,
            entry.contributions,
            entry.watermark,
            entry.lagging,
            entry.parts,
            again=True,
            since_us=entry.since_us,
            untimed=entry.untimed,
            unparsed=entry.unparsed,
        )
        self._sent[id] = bundle, entry.nbytes
        self._sent_bytes += entry.nbytes
        return bundle

    def step(self, answer: Commit | Split | Resend, now: int) -> list[Effect]:
        """An answer from the parent."""
        if isinstance(answer, Commit):
            for id in answer.ids:
                self._done += self._drop(id)
        elif isinstance(answer, Split):
            self._lost += self._drop(answer.id)
        else:
            self._again.update((id, None) for id in answer.ids or self._sent if id in self._sent)
        return self._end()

    def tick(self, now: int) -> list[Effect]:
        """Give up after `give_up_us`; if the clock steps back, the time starts again."""
        if self._until is None:
            return []
        self._until = min(self._until, now + self._give_up_us)
        if now < self._until:
            return []
        self._until = None
        if self.is_empty:
            return []
        self._lost += len(self._sent) + len(self._waiting)
        self._waiting.clear()
        self._sent.clear()
        self._again.clear()
        self._sent_bytes = 0
        return self._end()

    def _drop(self, id: BundleId) -> int:
        self._again.pop(id, None)
        sent = self._sent.pop(id, None)
        if sent is None:
            return 0
        self._sent_bytes -= sent[1]
        return 1

    def _end(self) -> list[Effect]:
        """When all offers are answered, report their outcome."""
        if not self.is_empty or not self._done + self._lost:
            return []
        text = (
            f"a partition has ended and this side's master stepped down: of the deltas that only it had accepted, the other "
            f"side's master has {self._done} now; {self._lost} did not fit there and are read again from the log files"
        )
        self._done = self._lost = 0
        return [Notice("handover", text, self._me)]

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        assert self._sent_bytes == sum(nbytes for _, nbytes in self._sent.values())
        assert self.is_empty or self._until is not None
        assert self._again.keys() <= self._sent.keys()
