"""Invariants that hold at any moment, in all nodes: each core's own ones, and global ones.

- Under one ballot one node serves a job, and its id is in the ballot.
- Logs of one ballot are prefixes of one another: entry i of a ballot is the same on every node that holds it.
- No node has more children than the cap.

At rest: one master for each job, on the node closest to its id; the tree is one tree, without cycles, with the master as its
root; workers know the master's schedule.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict, replace

from elf.agent.node.job_seat import JobSeat
from elf.agent.node.worker.delta_worker import State
from elf.agent.simulator.checks.oracle import Violation
from elf.agent.simulator.world.places import Actor
from elf.agent.simulator.world.world import World
from elf.jobmaster.log.log_codec import LOG
from elf.jobmaster.log.schedule import number_of
from elf.srt.codec.rosters import RosterEncoder
from elf.srt.messages.ids import JobId, NodeId, closeness, short
from elf.srt.messages.messages import Ballot, Micros, Schedule, node_of


class Invariants:
    """Counts the events at nodes; at each `every`-th event, checks all cores of that event's node."""

    def __init__(self, world: World, every: int) -> None:
        self._world, self._every = world, every
        self._events = 0
        self._entries: dict[tuple[JobId, Ballot, int], Any] = {}
        self._alike: dict[tuple[JobId, Ballot, int, NodeId], Any] = {}  # the entry that was found equal to it

    def touched(self, actor: Actor) -> None:
        self._events += 1
        if self._events % self._every == 0:
            self.check(actor)

    def check(self, actor: Actor) -> None:
        """Raises Violation."""
        node = actor.node
        if node is None:
            return
        try:
            node.check()
        except AssertionError as error:
            raise Violation(f"{actor.name}: {where(error)}") from error
        for seat in node.seats.values():
            self._check_seat(actor, seat)

    def _check_seat(self, actor: Actor, seat: JobSeat) -> None:
        if len(seat.tree.children) > self._world.parameters.children_max:
            raise Violation(f"{actor.name}: {len(seat.tree.children)} children")
        succession = seat.succession
        if seat.master is not None and node_of(seat.master.ballot) != actor.id:
            raise Violation(f"{actor.name} serves under the ballot of {short(node_of(seat.master.ballot))}")
        log = succession.replica.log
        for index, entry in enumerate(log.tail, log.applied + 1):
            known = self._entries.setdefault((seat.job, log.held, index), entry)
            if known is not entry and not self._is_alike((seat.job, log.held, index, actor.id), known, entry):
                raise Violation(
                    f"{actor.name}: entry {index} of ballot {log.held[0]}.{short(node_of(log.held))} differs from another node's"
                )

    def _is_alike(self, place: tuple[JobId, Ballot, int, NodeId], known: Any, entry: Any) -> bool:
        """Compares by value: entries that were sent as bytes are different objects at each node."""
        if self._alike.get(place) is not entry:
            if _ordered(known) != _ordered(entry):
                return False
            self._alike[place] = entry
        return True

    # At rest.

    def masters(self, job: JobId) -> list[Actor]:
        """Nodes that serve the job, the one with the highest ballot first."""
        found: list[tuple[Ballot, Actor]] = []
        for actor in self._world.actors.values():
            seat = actor.node.seats.get(job) if actor.node is not None else None
            if seat is not None and seat.master is not None:
                found.append((seat.master.ballot, actor))
        return [actor for _, actor in sorted(found, key=lambda each: each[0], reverse=True)]

    def unrest(self, job: JobId) -> str:
        """Why a job is not at rest yet; "" if it is."""
        masters = self.masters(job)
        if len(masters) != 1:
            return f"job {short(job)} has {len(masters)} masters: {', '.join(each.name for each in masters)}"
        closest = min(self._able(job), key=lambda node: closeness(job, node))
        if masters[0].id != closest:
            return f"job {short(job)}: {masters[0].name} serves, which is not the closest"
        assert masters[0].node is not None
        return (
            self._directory_unrest(job)
            or self._tree_unrest(job, masters[0].id)
            or self._schedule_unrest(job, masters[0].node.seats[job])
        )

    def misheard(self, job: JobId, is_watched: bool) -> str:
        """Which node of the job's tree does not know whether somebody reads open windows; "" if all do."""
        for actor in self._world.actors.values():
            seat = actor.node.seats.get(job) if actor.node is not None else None
            if seat is not None and seat.tree.present and seat.tree.place.watched != is_watched:
                return f"job {short(job)}: {actor.name} believes that it is {'not ' * is_watched}watched"
        return ""

    def remains(self, job: JobId) -> str:
        """What a job that has ended left at a node; "" if nothing."""
        for actor in self._world.actors.values():
            seat = actor.node.seats.get(job) if actor.node is not None else None
            if seat is not None and not seat.is_stopped:
                return f"job {short(job)} has ended, and {actor.name} still runs it"
        return ""

    def _able(self, job: JobId) -> list[NodeId]:
        """Rule Features*: those that can take part, and so may serve."""
        nodes = [actor.node for actor in self._world.actors.values() if actor.node is not None]
        specs = [(node, seat.spec) for node in nodes if (seat := node.seats.get(job)) is not None]
        unable = {node.id for node, spec in specs if not node.abilities.is_able(spec)}
        return [node.id for node in nodes if node.id not in unable]

    def _directory_unrest(self, job: JobId) -> str:
        nodes = [actor.node for actor in self._world.actors.values() if actor.node is not None]
        items = [node.directory.get("job", job) for node in nodes]
        if any(item is None or item.body != items[0].body for item in items if items[0] is not None):
            return f"job {short(job)}: the directories hold different specs"
        return ""

    def _tree_unrest(self, job: JobId, root: NodeId) -> str:
        parents: dict[NodeId, NodeId | None] = {}
        for actor in self._world.actors.values():
            if actor.node is None:
                continue
            seat = actor.node.seats.get(job)
            if seat is None:
                return f"{actor.name} does not know job {short(job)}"
            parents[actor.id] = seat.tree.parent
        for node, above in parents.items():
            if above is None and not self._works(node, job):
                continue
            at, steps = node, 0
            while at != root:
                parent = parents.get(at)
                name = self._world.actors[at].name
                if parent is None or parent not in parents:
                    return f"job {short(job)}: {name} has no parent that is alive"
                parent_node = self._world.actors[parent].node
                assert parent_node is not None
                if at not in parent_node.seats[job].tree.children:
                    return f"job {short(job)}: {name} is no child of its parent {self._world.actors[parent].name}"
                at, steps = parent, steps + 1
                if steps > len(parents):
                    return f"job {short(job)}: {name} is in a cycle"
        return ""

    def _works(self, node: NodeId, job: JobId) -> bool:
        """Whether that node takes part in the job; others are in its tree only if a route leads through them."""
        of = self._world.actors[node].node
        worker = of.seats[job].worker if of is not None else None
        return worker is not None and worker.state is not State.ENDED

    def _schedule_unrest(self, job: JobId, master: JobSeat) -> str:
        assert master.master is not None
        schedule = master.master.state.schedule  # without versions that are past retention
        for actor in self._world.actors.values():
            if actor.node is None:
                continue
            worker = actor.node.seats[job].worker
            if (
                worker is not None
                and not actor.node.seats[job].has_ended
                and _content(worker.schedule)[-len(_content(schedule)) :] != _content(schedule)
            ):
                return f"job {short(job)}: {actor.name} cuts by schedule {number_of(worker.schedule)}, not {number_of(schedule)}"
        return ""


def _content(schedule: Schedule) -> list[tuple[str, Micros]]:
    """The schedule without numbers: a worker without lines may keep the numbers of an abandoned log. And without lines that only
    bring other settings: a master may have forgotten them."""
    lines = [(line.version, line.from_us) for line in schedule]
    return [line for at, line in enumerate(lines) if not at or line[0] != lines[at - 1][0]]


def where(error: BaseException) -> str:
    """The error and where it was raised, on one line."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    place = f"{at.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{at.tb_lineno}" if at is not None else "?"
    return f"{type(error).__name__} at {place} {error}".strip()


def _ordered(entry: Any) -> bytes:
    """An entry as bytes, independent of the order of its contributions."""
    maps = {name: value for name, value in asdict(entry).items() if isinstance(value, dict)}
    ordered = replace(entry, **{name: dict(sorted(value.items())) for name, value in maps.items()})
    return LOG.pack_entry(ordered, RosterEncoder())
