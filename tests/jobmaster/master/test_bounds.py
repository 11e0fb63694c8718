"""A master's memory of a job does not grow with its age: years of rotations, of agents that come and go, and of changes."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import msgspec
import pytest

from elf.jobmaster.delivery.ledger import ENTRIES_KEPT, ENTRIES_MAX, ENTRIES_MIN, Ledger
from elf.jobmaster.plan.plan import Plan
from elf.srt.messages.messages import CLOSED, FIRST
from elf.srt.messages.results import LedgerRequest, Put
from tests.rigs.master_rig import PARAMETERS, SINK, T0, Rig, file, spec_of
from tests.rigs.mesh_lines import SECOND, plan_of, version_of

HOUR = 3600 * SECOND
ROTATIONS = 800
"""Two years of a log that is rotated each day."""
STAY = 25
"""Rotations after which an agent is replaced."""
CHANGE = 40
"""Rotations after which the job is changed: twenty times, so that one more thing kept for each is seen."""


def sizes(thing: Any, depth: int = 3) -> dict[str, int]:
    """The number of items in each collection of the object, by attribute."""
    found: dict[str, int] = {}
    for name, value in vars(thing).items():
        if isinstance(value, Sized) and not isinstance(value, str | bytes):
            found[name] = len(value)
            if isinstance(value, dict):
                found |= {f"{name}.*": sum(len(each) for each in value.values() if isinstance(each, Sized))}
        elif depth and type(value).__module__.startswith("elf.jobmaster") and hasattr(value, "__dict__"):
            found |= {f"{name}.{inner}": size for inner, size in sizes(value, depth - 1).items()}
    return found


def worker_of(number: int) -> bytes:
    return b"W%015d" % number


class Fleet:
    """Three agents whose logs are rotated each hour. After a while each is replaced by another."""

    def __init__(self, plan: Plan, plans: tuple[Plan, Plan], writes: bool = True) -> None:
        self.rig = Rig(spec_of(plan, keep_us=2 * HOUR, lateness_us=60 * SECOND), sinks=(SINK,))
        self.plans, self.writes = plans, writes
        self.workers = [worker_of(number) for number in range(3)]
        self.hired = 3
        self.read: dict[bytes, int] = {}

    def rotate(self, number: int) -> None:
        """An hour passes: each file is closed, and the next one begun."""
        rig = self.rig
        rig.now = T0 + number * HOUR
        if number % STAY == STAY - 1:
            self._replace(number // STAY % 3)
        if number % CHANGE == CHANGE - 1:
            self._change(number)
        spans: dict[Any, Any] = {}
        for worker in self.workers:
            length = 100 if self.writes else 0
            spans[file(worker, number + 1)] = (0, length, FIRST | CLOSED)
            spans[file(worker, number + 2)] = (0, 0, FIRST)
        lines = [(rig.now - at * SECOND, at % 5, 5) for at in range(5)] if self.writes else ()
        rig.bundle(spans, lines, watermark=rig.now + SECOND)
        for slot, end in list(rig.state.positions.lane.ends.items()) if rig.state.positions.lane else ():
            rig.bundle({slot: (rig.state.positions.at.get(slot, 0), end, FIRST)}, watermark=rig.now)
        rig.run(PARAMETERS.emit_us)
        rig.tick(PARAMETERS.forget_us // 16)
        rig.effects.clear()
        rig.log.clear()
        rig.windows()
        rig.master.take_multicast()

    def _replace(self, at: int) -> None:
        from elf.srt.messages.messages import Goodbye

        rig, worker = self.rig, self.workers[at]
        rig.do(rig.master.goodbye(Goodbye(rig.spec.id, worker, rig.now, 1, rig.master.ballot), rig.now))
        self.workers[at] = worker_of(self.hired)
        self.hired += 1

    def _change(self, number: int) -> None:
        spec, plan = self.rig.master.spec, self.plans[number // CHANGE % 2]
        known = tuple(version for version in spec.versions if version.digest != version_of(plan).digest)
        spec = msgspec.structs.replace(
            spec,
            number=spec.number + 1,
            versions=(*known, version_of(plan)),
            line_us=self.rig.now - 60 * SECOND,
        )
        self.rig.do(self.rig.master.spec_changed(spec, self.rig.now))

    def size(self) -> dict[str, int]:
        found = sizes(self.rig.master) | {"bytes": self.rig.state.snapshot().nbytes}
        del found["intake._corrected_at"]  # bounded by a number of its own
        return found


@pytest.mark.slow
@pytest.mark.parametrize("what", ["without windows", "hours", "nothing is written"])
def test_years_of_rotations_leave_a_master_as_small_as_a_few(what: str) -> None:
    plain, where = (
        plan_of("" if what == "without windows" else "1 hour"),
        plan_of("" if what == "without windows" else "1 hour", "WHERE status >= 0"),
    )
    fleet = Fleet(plain, (plain, where), writes=what != "nothing is written")
    most: list[dict[str, int]] = []
    for era in range(4):
        seen: dict[str, int] = {}
        for number in range(era * ROTATIONS // 4, (era + 1) * ROTATIONS // 4):
            fleet.rotate(number)
            if number % 40 == 7:
                for name, size in fleet.size().items():
                    seen[name] = max(size, seen.get(name, 0))
        most.append(seen)
    fleet.rig.master.check()
    assert len(fleet.rig.state.positions.closed) < 3 * 40
    assert len(fleet.rig.state.positions.roster) < 10
    for seen in most[2:]:
        grown = {
            name: (size, most[1].get(name, 0)) for name, size in seen.items() if size > most[1].get(name, 0)
        }
        assert not {name: pair for name, pair in grown.items() if pair[0] > 1.05 * pair[1] + 2}


def test_a_ledger_keeps_the_newest_windows() -> None:
    ledger, ballot = Ledger(b"J" * 16), (1, b"M" * 16)
    put = Put(b"J" * 16, ballot, "v", 0, 10, (0, 10), "final", (*ballot, 1), 7, 1, 1, (1, 1, 0, 0))
    for number in range(3 * ENTRIES_MAX):
        ledger.step(b"M" * 16, msgspec.structs.replace(put, start=number * 10), 0)
        ledger.take_accepted()
        assert len(ledger.entries) <= ENTRIES_MAX
    assert {start for _, start in ledger.entries} >= set(
        range(30 * ENTRIES_MAX - 10 * ENTRIES_KEPT, 30 * ENTRIES_MAX, 10)
    )
    (late,) = [each for each in ledger.step(b"M" * 16, put, 0) if hasattr(each, "to")]
    assert late.message.revision == put.revision  # type: ignore[union-attr]
    (report,) = [
        each for each in ledger.step(b"M" * 16, LedgerRequest(b"J" * 16, ballot), 0) if hasattr(each, "to")
    ]
    assert report.message.entries[-1][0] == ("v", 30 * ENTRIES_MAX - 10)  # type: ignore[union-attr]
    ledger.check()


def test_a_ledger_forgets_what_a_master_cannot_publish_again() -> None:
    ledger, ballot, keep = Ledger(b"J" * 16), (1, b"M" * 16), 15_000
    put = Put(b"J" * 16, ballot, "v", 0, 10, (0, 10), "final", (*ballot, 1), 7, 1, 1, (1, 1, 0, 0))
    whole = msgspec.structs.replace(put, version="w", since_us=1)  # a window that is no time: 0
    ledger.step(b"M" * 16, whole, 0)
    most = 0
    for start in range(0, 10 * keep, 10):
        new = msgspec.structs.replace(put, start=start, since_us=max(start - keep, 0))
        (*_, reply) = ledger.step(b"M" * 16, new, 0)
        assert reply.message.revision == new.revision  # type: ignore[union-attr]
        ledger.take_accepted()
        most = max(most, len(ledger.entries))
    assert most < 2 * keep // 10 * 3 // 2
    assert {start for _, start in ledger.entries} >= {0, *range(8 * keep, 10 * keep, 10)}
    assert ("w", 0) in ledger.entries
    assert 0 < ledger.known_from_us <= 8 * keep
    ledger.check()


def test_a_ledger_of_few_windows_forgets_none() -> None:
    ledger, ballot = Ledger(b"J" * 16), (1, b"M" * 16)
    put = Put(b"J" * 16, ballot, "v", 0, 10, (0, 10), "final", (*ballot, 1), 7, 1, 1, (1, 1, 0, 0))
    for start in range(10, 10 * ENTRIES_MIN, 10):
        ledger.step(b"M" * 16, msgspec.structs.replace(put, start=start, since_us=start), 0)
    assert ledger.known_from_us == 0
    for start in range(10 * ENTRIES_MIN, 12 * ENTRIES_MIN, 10):
        ledger.step(b"M" * 16, msgspec.structs.replace(put, start=start, since_us=start), 0)
    assert len(ledger.entries) >= ENTRIES_MIN
    assert ledger.known_from_us == min(start for _, start in ledger.entries) > 10
    ledger.check()
