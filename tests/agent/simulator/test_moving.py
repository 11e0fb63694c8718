"""Rule Moving in whole meshes: sinks whose receivers are elsewhere, at several agents, of which one that is alive delivers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elf.agent.node import job_sinks
from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.jobmaster.delivery.known import Known
from elf.srt.messages.ids import closeness, job_id, node_id
from tests.rigs.canaries import meshes
from tests.rigs.canaries.meshes import SECOND
from tests.soak.alerted import with_alert

pytestmark = pytest.mark.slow

DIES_US, OVER_US = 8 * SECOND, 25 * SECOND
MASTER, NEXT, AFTER, *_ = sorted(
    range(6), key=lambda host: closeness(job_id("job0"), node_id(f"web{host}".encode()))
)


def ran(scenario: s.Scenario) -> tuple[str, Run]:
    kept: list[Run] = []
    violation = simulate(scenario, prepare=kept.append).violation
    return violation, kept[0]


def dying(*victims: int, carriers: tuple[int, ...]) -> s.Scenario:
    """These hosts die, and come back when all is over."""
    faults: list[s.AnyFault] = [
        s.Crash(at_us=DIES_US, until_us=OVER_US, target="host", host=each) for each in victims
    ]
    plain = meshes.mesh(3, faults, finals_only=True, carriers=carriers, trouble_us=OVER_US)
    job = replace(plain.jobs[0], keep_us=60 * SECOND)
    return replace(plain, jobs=(job,), parameters=replace(plain.parameters, hold_us_max=SECOND))


@pytest.mark.parametrize("seed", range(6))
def test_every_window_and_alert_arrives_while_agents_with_the_sink_die_in_turn(seed: int) -> None:
    scenario = meshes.carried(seed)
    if seed % 2:
        scenario = with_alert(scenario)
    violation, run = ran(scenario)
    assert not violation
    assert run.oracle.finals + run.oracle.revisions >= 40
    assert all(len(heard) >= 10 for heard in run.alert_sinks.heard.values())


@pytest.mark.parametrize("is_broken", [False, True])
def test_windows_go_on_while_the_agent_that_delivered_is_dead(
    monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    if is_broken:
        servers_of = job_sinks.servers_of
        monkeypatch.setattr(
            job_sinks,
            "servers_of",
            lambda name, job, adverts, is_dead: servers_of(name, job, adverts, lambda *_: False),
        )
    meanwhile: list[int] = []
    kept: list[Run] = []

    def prepare(run: Run) -> None:
        kept.append(run)
        run.world.put_observers.append(
            lambda put, now_us: (
                meanwhile.append(put.start) if DIES_US + 4 * SECOND < now_us < OVER_US else None
            )
        )

    assert not simulate(dying(NEXT, carriers=(NEXT, AFTER)), prepare=prepare).violation
    assert (len(set(meanwhile)) >= 10) != is_broken
    assert kept[0].world.carriers.repeats == 0


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_master_that_dies_with_the_agent_that_delivers_repeats_what_was_not_shared(
    monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    """Two seconds of it at most, since that is shared each second; without that, all that the log retains."""
    if is_broken:
        monkeypatch.setattr(Known, "share_with", lambda self, node, about: None)
    violation, run = ran(dying(MASTER, carriers=(MASTER, NEXT)))
    assert not violation
    assert (run.world.carriers.repeats <= 2) != is_broken
