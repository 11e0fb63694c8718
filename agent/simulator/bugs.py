"""Bugs that a scenario plants into the seats of jobs, and what must hold of other jobs.

A planted bug raises `PlantedError` after the core's step, so that the seat is left half changed, with effects that must be
dropped; or, at the fail point "encode", while a message is encoded, when the rosters of its link have already advanced. Any other
exception under a seat is a real bug, and a violation, although the node guards itself against it.

Checked: the node reports the job as failing as soon as it fails. If bugs are the only faults, no link is reset and no other job
changes its master.
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
from elf.jobmaster.directory.limits import LimitPassed
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.phases import Serve
from elf.srt.messages.effects import Effect, Post, Send
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Append, Bundle, Message
from elf.srt.messages.partial import Part
from elf.srt.messages.results import Put


class PlantedError(Exception):
    """A planted bug. effects: what the call would have returned, garbled."""

    effects: Sequence[Effect] = ()


class Bugs:
    """The active bugs. `raised`: how often any of them raised."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._here: list[Bug] = []
        self._entry: dict[Bug, int] = {}  # the one entry that raises, at every node that applies it
        self.raised = 0
        self.check_entry: Callable[[JobState, Any], None] = lambda state, entry: None
        """Called with each entry that a state is about to apply."""
        mesh.world.node_observers.append(self.plant)

    def begin(self, bug: Bug) -> None:
        self._here.append(bug)

    def end(self, bug: Bug) -> None:
        if bug in self._here:
            self._here.remove(bug)

    def clear(self) -> None:
        """End all bugs."""
        self._here.clear()

    def plant(self, actor: Actor, node: MeshNode) -> None:
        """Make every seat of this node a `Buggy` one."""
        bugs = (fault for fault in self._mesh.scenario.faults if isinstance(fault, Bug))
        spoils = self._mesh.world.is_coded and any(bug.on == "encode" for bug in bugs)

        def make(*about: Any, **more: Any) -> JobSeat:
            seat = Buggy(*about, **more)
            seat.meet = partial(self.meet, actor.id)
            seat.check_entry = self.check_entry
            seat.spoils = spoils
            seat.finals_only = self._mesh.scenario.finals_only
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
        """Called at each fail point of a seat. Raises PlantedError if a bug is active there."""
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
        if isinstance(error, Violation):
            raise error
        if not isinstance(error, PlantedError | LimitPassed):
            raise Violation(f"a core failed: {where(error)}") from error
        reported = node.failing(self._mesh.world.clock(actor))
        if not any(str(error) in each.reason and each.again_us > 0 for each in reported):
            raise Violation(f"{actor.name} does not report that a job fails: {error}")

    def check_spared(self) -> None:
        """Raises Violation if bugs are the only faults, and one reset a link or changed another job's master."""
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
    """A window as a bug might send it: without its rows."""
    if isinstance(effect, Send) and isinstance(effect.message, Put):
        return Send(effect.to, replace(effect.message, rows=()))
    return effect


class _SpoiledParts(dict[str, Part]):
    """Rows of a bundle that may raise while they are encoded, after its contributions."""

    meet: Callable[[], None]

    def items(self) -> Any:
        self.meet()
        return super().items()


class _SpoiledEntries(tuple[Any, ...]):
    """Entries that may raise after all of them are encoded."""

    meet: Callable[[], None]

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        self.meet()


class Buggy(JobSeat):
    """A seat with a fail point after each of its steps. spoils: messages have one too. finals_only: see `Scenario`."""

    meet: Callable[..., None]
    check_entry: Callable[[JobState, Any], None]
    spoils: bool
    finals_only: bool

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
            self.check_entry(state, entry)
            plain(index, entry)
            meet(self.job, "entry", type(entry).__name__, index)

        state.apply = apply  # type: ignore[method-assign]
        return state

    def _serve(self, serve: Serve, now: int) -> list[Effect]:
        effects = super()._serve(serve, now)
        if self.master is not None and self.finals_only:
            self.master.outbox.takes_open = False
        return effects

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
