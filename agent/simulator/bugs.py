"""Bugs that a scenario plants into the seats of jobs, and what must hold of the others.

A planted bug raises `PlantedError` behind what the core has done, so that the seat is left half changed, with effects that must
vanish; or, at the door "encode", while a message becomes bytes, when the rosters of its link are ahead already. Whatever else is
raised under a seat is a real bug, and a violation, though the node guards itself against it.

What is held: the job is told as failing, by that node, as soon as it fails. Where bugs are the only trouble, no link is reset,
and no other job gets another master.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from elf.agent.node.job_seat import JobSeat
from elf.agent.node.mesh_node import MeshNode
from elf.agent.node.timers import Timed
from elf.agent.simulator.checks.invariants import where
from elf.agent.simulator.checks.oracle import Violation
from elf.agent.simulator.mesh import Mesh
from elf.agent.simulator.scenario.scenario import Bug
from elf.agent.simulator.world.places import Actor
from elf.jobmaster.log.job_state import JobState
from elf.srt.messages.effects import Effect, Post, Send
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Append, Bundle, Message
from elf.srt.messages.partial import Part
from elf.srt.messages.results import Put


class PlantedError(Exception):
    """A bug of the scenario's. effects: what the call would have returned, wrongly."""

    effects: Sequence[Effect] = ()


class Bugs:
    """Those that there are at present. `raised`: how often any was met."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._here: list[Bug] = []
        self._entry: dict[Bug, int] = {}  # the one entry that raises, wherever it is applied
        self.raised = 0
        mesh.world.node_observers.append(self.plant)

    def begin(self, bug: Bug) -> None:
        self._here.append(bug)

    def end(self, bug: Bug) -> None:
        if bug in self._here:
            self._here.remove(bug)

    def clear(self) -> None:
        """All are mended."""
        self._here.clear()

    def plant(self, actor: Actor, node: MeshNode) -> None:
        """Into every seat that this node makes."""
        bugs = (fault for fault in self._mesh.scenario.faults if isinstance(fault, Bug))
        spoils = self._mesh.world.is_coded and any(bug.on == "encode" for bug in bugs)

        def make(*about: Any, **more: Any) -> JobSeat:
            seat = Buggy(*about, **more)
            seat.meet = partial(self.meet, actor.id)
            seat.spoils = spoils
            return seat

        node.make_seat = make
        node.seat_failed = partial(self.failed, actor, node)

    def meet(
        self,
        node: NodeId,
        job: JobId,
        on: str,
        what: str = "",
        index: int = 0,
        effects: Sequence[Effect] = (),
    ) -> None:
        """Something has been done under a seat. Raises PlantedError."""
        for bug in list(self._here):
            hosts = self._mesh.hosts
            if (bug.on, self._mesh.specs[bug.job].id) != (on, job) or (bug.kind and bug.kind != what):
                continue
            if bug.host >= 0 and (bug.host >= len(hosts) or hosts[bug.host].id != node):
                continue
            if on == "entry" and self._entry.setdefault(bug, index) != index:
                continue
            if bug.once:
                self._here.remove(bug)
            self.raised += 1
            error = PlantedError(f"{on} {what}".strip())
            error.effects = [_garbled(effect) for effect in effects]
            raise error

    def failed(self, actor: Actor, node: MeshNode, error: Exception, is_news: bool) -> None:
        """A seat was dropped. Raises Violation."""
        if not isinstance(error, PlantedError):
            raise Violation(f"a core failed: {where(error)}") from error
        told = node.failing(self._mesh.world.clock(actor))
        if not any(str(error) in each.reason and each.again_us > 0 for each in told):
            raise Violation(f"{actor.name} does not tell that a job fails: {error}")

    def check_spared(self) -> None:
        """Raises Violation where somebody noticed whom it does not concern."""
        faults = self._mesh.scenario.faults
        if not faults or any(not isinstance(fault, Bug) for fault in faults):
            return
        struck = {self._mesh.specs[fault.job].id for fault in faults if isinstance(fault, Bug)}
        for actor in self._mesh.hosts:
            assert actor.node is not None
            for link in actor.node.links.values():
                if link.resets:
                    raise Violation(f"{actor.name}: a link was reset")
            for job, seat in actor.node.seats.items():
                if job not in struck and seat.takeovers > 1:
                    raise Violation(f"{actor.name} has taken over job {seat.spec.name}, which did not fail")


def _garbled(effect: Effect) -> Effect:
    """A window as a bug might tell it: without its rows."""
    if isinstance(effect, Send) and isinstance(effect.message, Put):
        return Send(effect.to, replace(effect.message, rows=()))
    return effect


class _SpoiledParts(dict[str, Part]):
    """Rows of a bundle that may raise when they become bytes; its contributions have by then."""

    meet: Callable[[], None]

    def items(self) -> Any:
        self.meet()
        return super().items()


class _SpoiledEntries(tuple[Any, ...]):
    """Entries that may raise when all of them have become bytes."""

    meet: Callable[[], None]

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        self.meet()


class Buggy(JobSeat):
    """A seat with a place for a bug behind each of its doors. spoils: messages, too, have one."""

    meet: Callable[..., None]
    spoils: bool

    def _spoiled(self, effects: list[Effect]) -> list[Effect]:
        return (
            [self._spoil(each) if isinstance(each, Post) else each for each in effects]
            if self.spoils
            else effects
        )

    def _spoil(self, post: Post) -> Post:
        message, meet = post.message, partial(self.meet, self.job, "encode", type(post.message).__name__)
        if post.to == self.me:
            return post
        if isinstance(message, Bundle):
            parts = _SpoiledParts(message.parts)
            parts.meet = meet
            return Post(post.to, replace(message, parts=parts))
        if isinstance(message, Append):
            entries = _SpoiledEntries(message.entries)
            entries.meet = meet
            return Post(post.to, replace(message, entries=entries))
        return post

    def _new_state(self, image: Any) -> JobState:
        state = super()._new_state(image)
        plain, meet = state.apply, self.meet

        def apply(index: int, entry: Any) -> None:
            plain(index, entry)
            meet(self.job, "entry", type(entry).__name__, index)

        state.apply = apply  # type: ignore[method-assign]
        return state

    def restore(self, records: Mapping[tuple[str, bytes], Sequence[Any]]) -> None:
        super().restore(records)
        self.meet(self.job, "restore")

    def cut(self, cut: Cut, now: int) -> list[Effect]:
        effects = super().cut(cut, now)
        self.meet(self.job, "cut")
        return self._spoiled(effects)

    def step(self, source: NodeId, message: Message, now: int) -> list[Effect]:
        effects = super().step(source, message, now)
        self.meet(self.job, "message", type(message).__name__, effects=effects)
        return self._spoiled(effects)

    def tick(self, core: Timed, now: int) -> list[Effect]:
        effects = super().tick(core, now)
        self.meet(self.job, "tick", type(core).__name__, effects=effects)
        return self._spoiled(effects)

    def settle(self, now: int) -> list[Effect]:
        effects = super().settle(now)
        if effects:
            self.meet(self.job, "settle", effects=effects)
        return self._spoiled(effects)
