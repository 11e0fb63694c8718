"""Measurements of a simulated fleet while it runs: messages and bytes by node and second, trees, latency, recoveries.

Latency is measured for lines: when a sink takes a window with n lines, the first n lines written of that window become visible,
unless they already were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.agent.simulator.fleet.report import FleetReport, Plan, Recovery, Root, Spread, Trees
from elf.agent.simulator.world.places import Actor
from elf.agent.simulator.world.world import World
from elf.srt.messages import messages as m
from elf.srt.messages import results as r
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Bundle, Frame
from elf.srt.messages.parameters import SECOND, Parameters
from elf.srt.messages.results import Put
from elf.srt.messages.sizes import MESSAGE_BYTES, size_of
from elf.srt.tree.place import depth_max

T = TypeVar("T")
Ints = NDArray[np.int64]
_ELSEWHERE = frozenset(
    {
        m.Append,
        m.Install,
        m.Held,
        m.StateRequest,
        m.StateReport,
        m.Fetch,
        m.Handover,
        r.LedgerReport,
        r.PutReply,
    }
)
"""Messages between a master, its replicas and the sinks: the same for any way of collection."""
JOINED_US = 2 * SECOND
"""A job's tree is measured from then on: before that, the job is still spreading among agents."""


class Killed(msgspec.Struct):
    """An agent that died. jobs: those it was the master of, and when each was published next (0: not yet)."""

    at_us: int
    node: Actor
    jobs: dict[JobId, int]


class Second(msgspec.Struct, frozen=True):
    """One second of the run. root_messages, root_bytes: by job."""

    messages: int
    root_messages: list[int]
    root_bytes: list[int]


class Tree(msgspec.Struct, frozen=True):
    """A job's tree at one moment: node -> its parent, None for the root; nodes outside of the tree at that moment are missing."""

    job: JobId
    parents: dict[NodeId, NodeId | None]


class Measure:
    """Observes a world between `begin` and `end`; publications until the world ends. O(1) for each message."""

    def __init__(
        self, world: World, hosts: Sequence[Actor], jobs: Sequence[JobId], begin_us: int, end_us: int
    ) -> None:
        self._world, self._hosts, self._jobs = world, hosts, jobs
        self.begin_us, self._end_us = begin_us, end_us
        self._number = {host.id: number for number, host in enumerate(hosts)}
        self._job_number = {job: number for number, job in enumerate(jobs)}
        self._is_on = False
        self.kinds: Counter[str] = Counter()
        self.seconds: list[Second] = []
        self.kills: list[Killed] = []
        self._cells: list[tuple[Ints, Ints]] = []
        """Per second: messages and bytes of each node."""
        self._clear()
        self._alone = [0, 0]
        """Bundles of single workers seen, and their bytes."""
        self._mastering: dict[NodeId, set[JobId]] = {}
        self._depth = self._fan_in = self._masters = 0
        self._children = self._inner = 0
        self._written: dict[int, Ints] = {}
        self._visible: dict[tuple[JobId, int], int] = {}
        self._latencies: list[tuple[Ints, Ints]] = []
        """(when written, microseconds until visible)."""
        self._coverage: dict[tuple[JobId, int], bool] = {}
        self.revisions = 0

    def _clear(self) -> None:
        self._node_messages, self._node_bytes = [0] * len(self._hosts), [0] * len(self._hosts)
        self._root_messages, self._root_bytes = [0] * len(self._jobs), [0] * len(self._jobs)

    def learn_lines(self, window_us: int) -> None:
        """The times at which the lines of each window are written, known before the run. O(lines × log lines)."""
        files = [file for host in self._hosts if host.source for file in host.source.files]
        start = np.concatenate([file.event_us - file.event_us % window_us for file in files])
        written = np.concatenate([file.written_us for file in files])
        order = np.lexsort((written, start))
        start, written = start[order], written[order]
        starts, first = np.unique(start, return_index=True)
        self._written = dict(zip(starts.tolist(), np.split(written, first[1:]), strict=True))
        self.lines = len(written)

    # While it runs.

    def begin(self) -> None:
        """Count from now on, second by second."""
        self._is_on = True
        self._world.at(self._world.now_us + SECOND, self._roll)

    def end(self) -> None:
        self._is_on = False

    def _roll(self) -> None:
        """Close a second."""
        self.seconds.append(Second(sum(self._node_messages), self._root_messages, self._root_bytes))
        self._cells.append((np.array(self._node_messages), np.array(self._node_bytes)))
        self._clear()
        self._look_at_trees()
        if self._world.now_us + SECOND <= self._end_us:
            self._world.at(self._world.now_us + SECOND, self._roll)

    def observe(self, now_us: int, what: str, who: Actor | None, about: Any) -> None:
        """Count an event of the world."""
        if what == "deliver":
            if self._is_on:
                self._delivered(who, about)  # type: ignore[arg-type]
        elif what == "put":
            self._published(now_us, about)

    def _delivered(self, who: Actor, letter: tuple[NodeId, Any]) -> None:
        source, outer = letter
        message: Any = outer.message if type(outer) is Frame else outer
        number = self._number[who.id]
        if message is None:
            nbytes = MESSAGE_BYTES
            self.kinds["acknowledgement"] += 1
        else:
            nbytes = size_of(message)
            kind = type(message)
            self.kinds[kind.__name__] += 1
            if kind is Bundle and len(message.contributions) == 1:
                self._alone[0] += 1
                self._alone[1] += nbytes
        self._node_messages[number] += 1
        self._node_bytes[number] += nbytes
        job = self._root_of(who, source, message)
        if job is not None:
            self._root_messages[job] += 1
            self._root_bytes[job] += nbytes

    def _root_of(self, who: Actor, source: NodeId, message: Any) -> int | None:
        """The number of the job for whose root this message is, if `who` is that root: the message's job, or for an
        acknowledgement a job in whose tree the sender is a child of `who`. Else None."""
        if type(message) in _ELSEWHERE:
            return None
        assert who.node is not None
        seats = who.node.seats
        job = getattr(message, "job", None)
        if job is None:
            mastering = self._mastering.get(who.id, ()) if message is None else ()
            job = next((each for each in mastering if source in seats[each].tree.children), None)
            return None if job is None else self._job_number[job]
        seat = seats.get(job)
        if seat is None or seat.master is None:
            return None
        self._mastering.setdefault(who.id, set()).add(job)
        return self._job_number[job]

    def _published(self, now_us: int, put: Put) -> None:
        for killed in self.kills:
            if killed.jobs.get(put.job) == 0 and now_us > killed.at_us:
                killed.jobs[put.job] = now_us
        window = (put.job, put.start)
        if put.status == "revised" and window in self._coverage:
            self.revisions += 1
        elif put.status in ("final", "revised"):
            self._coverage.setdefault(window, put.agents_reporting == put.agents_expected)
        visible = self._visible.get(window, 0)
        if put.lines[0] > visible and put.start in self._written:
            written = self._written[put.start][visible : put.lines[0]]
            self._latencies.append((written, now_us - written))
            self._visible[window] = put.lines[0]

    def killed(self, victim: Actor) -> None:
        """Record that this agent dies now."""
        self._mastering.pop(victim.id, None)
        jobs = {job: 0 for job, hosts in self.masters().items() if victim in hosts}
        self.kills.append(Killed(self._world.now_us, victim, jobs))

    def masters(self) -> dict[JobId, list[Actor]]:
        """The agents that serve each job. O(nodes × jobs)."""
        found: dict[JobId, list[Actor]] = {}
        for host in self._hosts:
            if host.node is not None:
                for job, seat in host.node.seats.items():
                    if seat.master is not None:
                        found.setdefault(job, []).append(host)
        return found

    def _look_at_trees(self) -> None:
        """Measure depth, children and masters. O(nodes × jobs)."""
        self._mastering = {}
        for job, hosts in self.masters().items():
            for host in hosts:
                self._mastering.setdefault(host.id, set()).add(job)
        self._masters = max([self._masters, *map(len, self._mastering.values())])
        if self._world.now_us < self.begin_us + JOINED_US:
            return
        for host in self._hosts:
            for seat in host.node.seats.values() if host.node is not None else ():
                place, count = seat.tree.place, len(seat.tree.children)
                if place.rooted:
                    self._depth = max(self._depth, place.depth)
                if count:
                    self._fan_in = max(self._fan_in, count)
                    self._children += count
                    self._inner += 1

    def _depth_now(self) -> int:
        seats = (seat for host in self._hosts if host.node is not None for seat in host.node.seats.values())
        return max((seat.tree.place.depth for seat in seats if seat.tree.place.rooted), default=0)

    # Afterwards.

    def tree(self) -> Tree:
        """The tree to show: of the first job that lost a master, else of the first job."""
        job = next((job for killed in self.kills for job in killed.jobs), self._jobs[0])
        seats = {host.id: host.node.seats.get(job) for host in self._hosts if host.node is not None}
        trees = {node: seat.tree for node, seat in seats.items() if seat is not None}
        return Tree(job, {node: tree.parent for node, tree in trees.items() if tree.parent or tree.is_root})

    def latencies(self) -> tuple[Ints, Ints]:
        """For every visible line: when it was written, and the microseconds until it was visible."""
        if not self._latencies:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        written, waited = zip(*self._latencies, strict=True)
        return np.concatenate(written), np.concatenate(waited)

    def flat(self, parameters: Parameters) -> tuple[float, float]:
        """(messages, bytes) per second at a root to which every worker sends its own bundles."""
        messages = len(self._hosts) * SECOND / parameters.flush_us
        count, total = self._alone
        return messages, messages * total / count if count else 0.0

    def report(self, plan: Plan, parameters: Parameters, wrong: str, is_over: bool) -> FleetReport:
        nothing = np.empty((2, 0), dtype=np.int64)
        messages, nbytes = np.concatenate([nothing, *map(np.array, _standing(self._cells))], axis=1)
        covered = list(self._coverage.values())
        return FleetReport(
            plan=plan,
            exact=not wrong if is_over else None,
            wrong=wrong,
            windows=len(covered),
            covered=round(sum(covered) / len(covered), 4) if covered else 0.0,
            revisions=self.revisions,
            final_after_s=max(0.0, (self._world.now_us - self._end_us) / SECOND),
            trees=self._trees(plan, parameters),
            node_messages=Spread.of(messages),
            node_bytes=Spread.of(nbytes),
            root=self._root(parameters),
            latency_ms=Spread.of(self.latencies()[1] / 1_000),
            recoveries=tuple(self._recoveries()),
            detection_s=detection_us(parameters) / SECOND,
            lines=self.lines,
            messages=dict(self.kinds.most_common()),
        )

    def _trees(self, plan: Plan, parameters: Parameters) -> Trees:
        return Trees(
            depth_max=self._depth,
            depth_end=self._depth_now(),
            depth_limit=depth_max(plan.nodes, parameters.children_max),
            fan_in_max=self._fan_in,
            fan_in_limit=parameters.children_max,
            fan_in_mean=round(self._children / self._inner, 2) if self._inner else 0.0,
            masters_per_node_max=self._masters,
        )

    def _root(self, parameters: Parameters) -> Root:
        busy = _standing(self.seconds)
        messages = Spread.of([count for second in busy for count in second.root_messages])
        nbytes = Spread.of([count for second in busy for count in second.root_bytes])
        flat_messages, flat_bytes = self.flat(parameters)
        return Root(
            messages=messages,
            bytes=nbytes,
            flat_messages=round(flat_messages, 1),
            flat_bytes=round(flat_bytes, 1),
            messages_saved=round(flat_messages / messages.median, 1) if messages.median else 0.0,
            bytes_saved=round(flat_bytes / nbytes.median, 1) if nbytes.median else 0.0,
        )

    def _recoveries(self) -> Iterable[Recovery]:
        for killed in self.kills:
            for job, again_us in killed.jobs.items():
                yield Recovery(
                    job=f"job{self._job_number[job]}",
                    node=killed.node.name,
                    at_s=round((killed.at_us - self.begin_us) / SECOND, 2),
                    seconds=round((again_us - killed.at_us) / SECOND, 3) if again_us else None,
                )


def _standing(seconds: Sequence[T]) -> Sequence[T]:
    """The seconds after the trees have formed; all, if the run was shorter."""
    return seconds[JOINED_US // SECOND :] or seconds


def detection_us(parameters: Parameters) -> int:
    """Longest time until a neighbour is declared dead: one period until its probe, one to answer, and the suspicion."""
    return 2 * parameters.probe_us + parameters.suspect_us
