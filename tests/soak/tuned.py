"""Changes of a job's settings, drawn from a generator of their own."""

from __future__ import annotations

from random import Random

from elf.agent.simulator.scenario.scenario import CALM_US, KEEP_US, MS, SECOND, AnyFault, Scenario, Tune
from tests.soak.faults import with_faults


def tuned(plain: Scenario, share: float = 1 / 3) -> Scenario:
    """For that share of seeds, change a job's lateness, retention and sinks several times."""
    rng = Random(plain.seed ^ 0x5EED_0071)
    if rng.random() >= share:
        return plain
    at, job, sinks = (
        rng.randint(CALM_US, plain.trouble_us - 2 * SECOND),
        rng.randrange(len(plain.jobs)),
        plain.sinks,
    )
    faults: list[AnyFault] = []
    for _ in range(rng.choice((1, 2, 4))):
        spans = rng.choice((0, 0, SECOND, 4 * SECOND)), rng.choice((0, 0, 10 * SECOND, KEEP_US))
        sink, host = rng.choice((-1, *range(sinks))), rng.randrange(plain.hosts)
        at = min(at, plain.trouble_us)
        faults.append(
            Tune(
                at_us=at,
                host=host,
                job=job,
                lateness_us=spans[0],
                keep_us=spans[1],
                sink=sink if sinks > 1 else -1,
            )
        )
        at += rng.choice((0, 20 * MS, SECOND, 3 * SECOND))
    return with_faults(plain, *faults)
