"""The memory of a mesh agent's process by owner, and when free memory goes back to the system.

    resident = bare + memory of owners + free + other      at most bare + `memory_max`

| owner | holds |
|---|---|
| panes | rows of all jobs' logs and windows, with their compressed fragments (`elf.cbt.budget`) |
| source NAME | rows gathered between two cuts, dictionaries, buffers |
| logs | entries that are not known to be committed, at masters and replicas |
| bundles | bundles that reducers keep until commit, bundles offered to another master, parked bundles |
| windows | windows that wait for sinks and watchers, here and elsewhere, and those that sinks here store |
| links | messages that neighbours have not acknowledged, or that wait for their connections |
| journal | records on their way to the disk |
| free | holes in the allocator's heap: free, and not returned to the system |
| other | not counted by any owner: code loaded later, buffers of libraries, objects |

A master and the state of a log refer to themselves, so what a master that stepped down held, and a state that another master's
replaced, is freed by the collector alone; left to itself it comes to them after hours, and an agent that became a master often
kept them all. So `look` runs it when a master or a state is gone.

`bare` is what does not count: what the process has before it reads its journal, and at any time its pages of files, which the
system may take back. Once a second, and after each read of many lines, the memory of owners outside the budget is reported to
it, so that its trees leave room for them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

from elf.agent.host.allocator import free_bytes, give_back, own_bytes, resident_bytes
from elf.agent.node.job_seat import JobSeat
from elf.agent.node.mesh_node import MeshNode
from elf.cbt.budget import Budget
from elf.jobmaster.log.job_state import JobState
from elf.srt.messages.ids import JobId
from elf.srt.messages.sizes import entry_bytes

LOOK_S = 1.0
TRIM_DIVISOR = 32
"""Holes are returned to the system when they have grown by the cap divided by this."""
TRIM_LOOKS, TRIM_BYTES = 10, 1 << 20
"""Holes of this many bytes are also returned after this many looks, since some may have grown again between two looks."""


class Held(Protocol):
    """The parts of the host whose memory is read. See `elf.agent.host.host.Host`."""

    node: MeshNode
    transport: Any
    store: Any
    sinks: Any
    service: Any


class Memory:
    """The memory of one process. Make it before the journal is read; `look` every `LOOK_S`. memory_max: the cap beyond `bare`."""

    def __init__(
        self,
        memory_max: int,
        resident: Callable[[], int] = resident_bytes,
        own: Callable[[], int] = own_bytes,
    ) -> None:
        self.memory_max, self.own_before = memory_max, own()
        self._resident, self._own = resident, own
        self._free = 0  # free bytes after the last trim, or the least since
        self._looks = 0  # since the last trim
        self._held: dict[JobId, tuple[int, int]] = {}  # job -> the identities of its master and its state

    @property
    def grown(self) -> int:
        """Bytes that the process has now beyond the bare one."""
        return max(0, self._own() - self.own_before)

    @property
    def bare(self) -> int:
        """Bytes that do not count."""
        return max(0, self._resident() - self.grown)

    def look(self, host: Held, budget: Budget) -> None:
        """Report to the budget what other owners hold, and return free memory. Some milliseconds; 30 if a master or a state
        is gone."""
        self.reserve(host, budget)
        if self.is_dropped(host.node.seats.values()):
            gc.collect()
        free = free_bytes()
        self._free, self._looks = min(self._free, free), self._looks + 1
        is_due = self._looks >= TRIM_LOOKS and free > TRIM_BYTES
        if is_due or free - self._free > self.memory_max // TRIM_DIVISOR:
            give_back()
            self._free, self._looks = free_bytes(), 0

    def reserve(self, host: Held, budget: Budget) -> None:
        """Report to the budget what other owners hold. O(entries + links)."""
        with suppress(OSError):  # spilling fails now; the store reports why
            budget.reserve_all(outside_budget(host))

    def is_dropped(self, seats: Iterable[JobSeat]) -> bool:
        """Whether a master or a state is gone since the last call. O(seats)."""
        before, self._held = self._held, {seat.job: _identities(seat) for seat in seats}
        nothing = (0, 0)
        return any(
            was not in (0, now)
            for job, held in before.items()
            for was, now in zip(held, self._held.get(job, nothing), strict=True)
        )

    def by_owner(self, host: Held, budget: Budget) -> dict[str, int]:
        """Bytes of each owner; they add up to `grown`, unless owners report more than that."""
        owned = budget.by_owner() | outside_budget(host)
        left = max(0, self.grown - sum(owned.values()))
        free = min(left, max(0, free_bytes() - self._free))
        return owned | {"free": free, "other": left - free}


def _identities(seat: JobSeat) -> tuple[int, int]:
    """Of the job's master and of its state here; 0 for one that it has not."""
    master, state = seat.master, seat.succession.replica.log.state
    return id(master) if master is not None else 0, id(state) if state is not None else 0


def outside_budget(host: Held) -> dict[str, int]:
    """Memory of owners that the budget does not see. O(entries + links)."""
    seats = list(host.node.seats.values())
    links = host.node.links.values()
    return {
        "logs": sum(_log_bytes(seat) for seat in seats),
        "bundles": sum(_bundle_bytes(seat) for seat in seats),
        "windows": sum(_window_bytes(seat) for seat in seats)
        + (host.sinks.queued_bytes if host.sinks is not None else 0)
        + host.service.held_bytes,
        "links": sum(link.held_bytes for link in links) + sum(host.transport.queued_bytes.values()),
        "journal": host.store.queued_bytes,
    }


def job_bytes(seat: JobSeat) -> int:
    """Memory of one job here: its log, kept bundles, windows, and the rows of its panes as they are unpacked. O(entries)."""
    state = seat.succession.replica.log.state
    panes = sum(panes.raw_bytes for panes in state.panes.values()) if isinstance(state, JobState) else 0
    return _log_bytes(seat) + _bundle_bytes(seat) + _window_bytes(seat) + panes


def _log_bytes(seat: JobSeat) -> int:
    return sum(map(entry_bytes, seat.succession.replica.log.tail))


def _bundle_bytes(seat: JobSeat) -> int:
    held = seat.reducer.held_bytes + seat.offering.held_bytes
    return (
        held
        if seat.master is None
        else held + seat.master.intake.parking.nbytes + seat.master.unshared.nbytes
    )


def _window_bytes(seat: JobSeat) -> int:
    return seat.master.outbox.nbytes + seat.master.watchers.nbytes if seat.master is not None else 0
