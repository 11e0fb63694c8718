"""What a node is for its jobs, counted."""

from __future__ import annotations

from collections.abc import Iterable

from elf.agent.job_seat import JobSeat
from elf.srt.messages import Failing, Micros, StatusTell


def roles_of(
    seats: Iterable[JobSeat], number: int, now: Micros, failing: tuple[Failing, ...] = ()
) -> StatusTell:
    """The answer to question `number`, but for what only the surroundings know. O(jobs)."""
    held = [seat for seat in seats if not seat.is_stopped]
    return StatusTell(
        number,
        now,
        masters=sum(seat.master is not None for seat in held),
        replicas=sum(seat.is_replica for seat in held),
        reducers=sum(bool(seat.tree.children) for seat in held),
        workers=sum(seat.worker is not None for seat in held),
        failing=failing,
    )
