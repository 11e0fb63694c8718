"""Counts of a node's roles, and the alerts of the jobs that it serves, for its status report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from elf.agent.node.job_seat import JobSeat
from elf.jobmaster.alerts.book import Book, Transition
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Micros
from elf.srt.messages.reports import ALERTS_BYTES_MAX, ALERTS_MAX, Failing, StatusReport


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


# Alerts of the jobs of which the node is the master.

_encoder = msgspec.msgpack.Encoder()


def with_alerts(report: StatusReport, seats: Iterable[JobSeat]) -> StatusReport:
    """The report with what is pending or firing, firing first, as far as there is room. O(instances)."""
    books = {
        seat.job: seat.master.state.alerts
        for seat in seats
        if not seat.is_stopped and seat.master is not None
    }
    held = {job: book for job, book in books.items() if book.instances or book.left_out}
    return _filled(report, held) if held else report


def _filled(report: StatusReport, books: dict[JobId, Book]) -> StatusReport:
    found: list[tuple[JobId, bytes]] = []
    left_out = {job: sum(book.left_out.values()) for job, book in books.items()}
    size = 0
    instances = [(job, each) for job, book in sorted(books.items()) for each in book.instances.values()]
    for job, each in sorted(instances, key=_rank):
        data = _encoder.encode(each)
        if len(found) < ALERTS_MAX and size + len(data) <= ALERTS_BYTES_MAX:
            found.append((job, data))
            size += len(data)
        else:
            left_out[job] += 1
    return replace(report, alerts=tuple(found), alerts_left_out={k: n for k, n in left_out.items() if n})


def _rank(instance: tuple[JobId, Transition]) -> tuple[bool, JobId, str, tuple[tuple[str, str], ...]]:
    job, each = instance
    return (each.state != "firing", job, *each.key)
