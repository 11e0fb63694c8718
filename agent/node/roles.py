"""Counts of a node's roles, for its status report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elf.agent.node.job_seat import JobSeat
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Micros
from elf.srt.messages.reports import Failing, StatusReport


def roles_of(
    seats: Iterable[JobSeat],
    number: int,
    now: Micros,
    failing: tuple[Failing, ...],
    ended: Mapping[NodeId, Micros],
) -> StatusReport:
    """The answer to request `number`, without the fields that only the host knows. ended: when processes of neighbours ended.
    O(jobs + ended)."""
    held = [seat for seat in seats if not seat.is_stopped]
    return StatusReport(
        number,
        now,
        masters=sum(seat.master is not None for seat in held),
        replicas=sum(seat.is_replica for seat in held),
        reducers=sum(bool(seat.tree.children) for seat in held),
        workers=sum(seat.worker is not None for seat in held),
        failing=failing,
        untimed={
            seat.job: sum(seat.master.state.untimed.values())
            for seat in held
            if seat.master is not None and seat.master.state.untimed
        },
        ended={node: max(0, now - at_us) for node, at_us in ended.items()},
    )
