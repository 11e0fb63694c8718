"""What is not closed: sinks that are away for long or come late, and jobs that are stopped and started again."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from elf.agent.node.worker.delta_worker import State
from elf.agent.simulator.run import Run
from elf.agent.simulator.scenario import scenario as s
from elf.jobmaster.delivery.chunks import rows_bytes
from elf.jobmaster.delivery.ledger import Ledger
from elf.srt.messages.effects import Notice
from elf.srt.messages.messages import FIRST
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import LedgerRequest, Put
from tests.rigs.master_rig import LATE, SINK, T0, Rig, file, spec_of, targets
from tests.rigs.mesh_lines import SECOND, plan_of
from tests.rigs.quick import QUICK

A = b"A" * 16
FEW = 2_000


def filled(rig: Rig, first: int, windows: int) -> None:
    """One worker's lines, two in each second from `first` on, up to the last window's end."""
    lines = [(T0 + (first + i) * SECOND, page, 1) for i in range(windows) for page in (1, 2)]
    flags = FIRST if first == 0 else 0
    span = (10 * first, 10 * (first + windows), flags)
    rig.bundle({file(A): span}, lines, watermark=T0 + (first + windows + 10) * SECOND)
    rig.run(SECOND)


def away(bytes_max: int = FEW, keep_us: int = 600 * SECOND) -> Rig:
    """The sink has reported its ledger, and does not answer any more."""
    spec = spec_of(plan_of("1 second"), keep_us=keep_us)
    rig = Rig(spec, sinks=[SINK], parameters=Parameters(outbox_bytes_max=bytes_max))
    rig.run(SECOND)
    rig.deaf = True
    return rig


def kept(rig: Rig) -> int:
    waiting = rig.master.outbox._sinks["first"].waiting.values()
    return sum(rows_bytes(each.put) for each in waiting if each.put is not None)


def test_rows_for_a_sink_that_is_away_are_bounded_and_come_all_the_same() -> None:
    rig = away()
    filled(rig, 0, 40)
    assert rig.master.outbox.waiting == 40
    assert 0 < kept(rig) <= FEW < 40 * 64
    rig.deaf = False
    rig.run(10 * SECOND)
    assert rig.master.outbox.waiting == 0 == kept(rig)
    finals = {key[1]: (each.revision, each.digest) for key, each in rig.state.finals.items()}
    held = {key[1]: entry for key, entry in rig.ledgers[SINK].entries.items()}
    assert held == finals
    assert len(held) == 40


def test_a_window_that_changed_while_its_rows_were_not_kept_comes_as_the_newer_one() -> None:
    rig = away(bytes_max=0)
    filled(rig, 0, 3)
    rig.bundle({file(A): (30, 40, 0)}, [(T0 + SECOND, 1, 5)], watermark=T0 + 20 * SECOND)
    rig.deaf = False
    rig.run(5 * SECOND)
    assert rig.master.outbox.waiting == 0
    finals = {key: (each.revision, each.digest) for key, each in rig.state.finals.items()}
    assert rig.ledgers[SINK].entries == finals


def test_windows_that_could_not_be_sent_while_retained_are_reported() -> None:
    rig = away(bytes_max=0, keep_us=20 * SECOND)
    filled(rig, 0, 5)
    filled(rig, 5, 40)
    assert (rig.master.outbox.lost, rig.master.outbox.waiting) == (0, 45), "it may come back"
    rig.run(60 * SECOND)
    filled(rig, 45, 60)
    notices = [each for each in rig.effects if isinstance(each, Notice) and each.kind == "unsent"]
    assert notices
    assert rig.master.outbox.lost == 105 - rig.master.outbox.waiting > 0


def test_a_sink_that_a_new_spec_adds_is_asked_at_once_and_gets_what_is_final() -> None:
    rig = Rig(spec_of(plan_of("1 second"), sinks=("first", "second")), sinks=[SINK])
    filled(rig, 0, 5)
    assert len(rig.ledgers[SINK].entries) == 5
    rig.ledgers[LATE] = Ledger(rig.spec.id)
    rig.effects.clear()
    rig.do(rig.master.serve_sinks(targets([SINK, LATE]), rig.now))
    asked = [each for each in rig.effects if isinstance(getattr(each, "message", None), LedgerRequest)]
    assert [each.to for each in asked] == [LATE]  # type: ignore[union-attr]
    rig.run(3 * SECOND)
    assert rig.ledgers[LATE].entries == rig.ledgers[SINK].entries
    assert len(rig.ledgers[LATE].entries) == 5
    rig.effects.clear()
    rig.do(rig.master.serve_sinks(targets([LATE]), rig.now))
    filled(rig, 5, 2)
    puts = [each for each in rig.effects if isinstance(getattr(each, "message", None), Put)]
    assert {each.to for each in puts} == {LATE}  # type: ignore[union-attr]


def test_a_stopped_job_runs_nowhere_and_a_new_number_starts_it_everywhere() -> None:
    job = s.Job(start_us=2 * SECOND, windows=("1 second",), lateness_us=2 * SECOND)
    run = Run(s.Scenario(seed=1, hosts=5, jobs=(job,), parameters=QUICK))
    world, first = run.world, run.specs[0]

    def submit(number: int, stopped: bool) -> None:
        run.specs[0] = msgspec.structs.replace(first, number=number, stopped=stopped)
        run._submit(0, run.specs[0])

    for host in run.hosts:
        world.at(0, partial(run.start, host))
    world.at(2 * SECOND, partial(submit, 1, False))
    world.at(6 * SECOND, partial(submit, 2, True))
    world.run_until(5 * SECOND)
    seats = [host.node.seats[first.id] for host in run.hosts if host.node is not None]
    assert sum(seat.master is not None for seat in seats) == 1
    before = max(seat.succession.highest for seat in seats)
    world.run_until(10 * SECOND)
    for seat in seats:
        assert seat.is_stopped
        assert (seat.master, seat.cores, seat.tree.parent) == (None, (), None)
        assert seat.succession.replica.log.state is None
        assert seat.worker is not None
        assert seat.worker.state is State.ENDED
    world.at(11 * SECOND, partial(submit, 3, False))
    world.run_until(18 * SECOND)
    again = [host.node.seats[first.id] for host in run.hosts if host.node is not None]
    masters = [seat.master for seat in again if seat.master is not None]
    assert len(masters) == 1
    assert masters[0].ballot > before
    assert len(masters[0].state.finals) > 2
    states = [seat.worker.state for seat in again if seat.worker is not None]
    assert len(states) == 5
    assert State.ENDED not in states
    assert all(seat.tree.place.rooted for seat in again)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [(5, 13), (10, 14)])
@pytest.mark.parametrize("host", range(5))
def test_who_was_cut_off_when_a_job_was_stopped_or_started_takes_part_again(
    cut: tuple[int, int], host: int
) -> None:
    """One host hears of the stop and the start at once, or of the start later than the others."""
    job = s.Job(start_us=2 * SECOND, windows=("1 second",), lateness_us=2 * SECOND)
    away = s.Cut(at_us=cut[0] * SECOND, until_us=cut[1] * SECOND, hosts=(host,))
    run = Run(s.Scenario(seed=2, hosts=5, jobs=(job,), faults=(away,), parameters=QUICK))
    world, first = run.world, run.specs[0]

    def submit(number: int, stopped: bool) -> None:
        run.specs[0] = msgspec.structs.replace(first, number=number, stopped=stopped)
        run._submit((host + 1) % 5, run.specs[0])

    for each in run.hosts:
        world.at(0, partial(run.start, each))
    world.at(2 * SECOND, partial(submit, 1, False))
    world.at(6 * SECOND, partial(submit, 2, True))
    world.at(11 * SECOND, partial(submit, 3, False))
    run.faults.plan(0, away)
    world.run_until(24 * SECOND)
    seats = [each.node.seats[first.id] for each in run.hosts if each.node is not None]
    masters = [seat.master for seat in seats if seat.master is not None]
    assert len(masters) == 1
    assert all(seat.tree.place.rooted for seat in seats)
    workers = [seat.worker for seat in seats if seat.worker is not None]
    assert all(worker.schedule == masters[0].state.schedule for worker in workers)
    assert len(masters[0].state.watermarks) == 5
    marks = masters[0].state.watermarks.values()
    assert max(marks) - min(marks) < 3 * SECOND
