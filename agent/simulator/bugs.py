"""Bugs that a scenario plants into the seats of jobs, and what must hold of the others.

A planted bug raises `PlantedError` behind what the core has done, so that the seat is left half changed, with effects that must
vanish. Whatever else is raised under a seat is a real bug, and a violation, though the node guards itself against it.

What is held: the job is told as failing, by that node, as soon as it fails. Where bugs are the only trouble, no link is reset,
and no other job gets another master.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from elf.agent.job_seat import JobSeat
from elf.agent.mesh_node import MeshNode
from elf.agent.simulator.invariants import where
from elf.agent.simulator.oracle import Violation
from elf.agent.simulator.scenario import Bug
from elf.agent.timers import Timed
from elf.jobmaster.job_state import JobState
from elf.srt.effects import Effect, Send
from elf.srt.events import Cut
from elf.srt.ids import JobId, NodeId
from elf.srt.messages import Message
from elf.srt.results import Put

if TYPE_CHECKING:
    from elf.agent.simulator.run import Run
    from elf.agent.simulator.world import Actor


class PlantedError(Exception):
    """A bug of the scenario's. effects: what the call would have returned, wrongly."""

    effects: Sequence[Effect] = ()


class Bugs:
    """Those that there are at present. `raised`: how often any was met."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._here: list[Bug] = []
        self._entry: dict[Bug, int] = {}  # the one entry that raises, wherever it is applied
        self.raised = 0
        run.world.node_observers.append(self.plant)

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

        def make(*about: Any, **more: Any) -> JobSeat:
            seat = Buggy(*about, **more)
            seat.meet = partial(self.meet, actor.id)
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
            hosts = self._run.hosts
            if (bug.on, self._run.specs[bug.job].id) != (on, job) or (bug.kind and bug.kind != what):
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
        told = node.failing(self._run.world.clock(actor))
        if not any(str(error) in each.reason and each.again_us > 0 for each in told):
            raise Violation(f"{actor.name} does not tell that a job fails: {error}")

    def check_spared(self) -> None:
        """Raises Violation where somebody noticed whom it does not concern."""
        faults = self._run.scenario.faults
        if not faults or any(not isinstance(fault, Bug) for fault in faults):
            return
        struck = {self._run.specs[fault.job].id for fault in faults if isinstance(fault, Bug)}
        for actor in self._run.hosts:
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


class Buggy(JobSeat):
    """A seat with a place for a bug behind each of its doors."""

    meet: Callable[..., None]

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
        return effects

    def step(self, source: NodeId, message: Message, now: int) -> list[Effect]:
        effects = super().step(source, message, now)
        self.meet(self.job, "message", type(message).__name__, effects=effects)
        return effects

    def tick(self, core: Timed, now: int) -> list[Effect]:
        effects = super().tick(core, now)
        self.meet(self.job, "tick", type(core).__name__, effects=effects)
        return effects

    def settle(self, now: int) -> list[Effect]:
        effects = super().settle(now)
        if effects:
            self.meet(self.job, "settle", effects=effects)
        return effects
