"""Operators who change a job every few seconds, stop and start one, or try another query beside one, for as long as there are
faults; each drawn from a generator of its own."""

from __future__ import annotations

from random import Random

import msgspec

from elf.agent.simulator.scenario.scenario import (
    CALM_US,
    MS,
    SECOND,
    AnyFault,
    Change,
    Scenario,
    Start,
    Stop,
    Tune,
)
from tests.soak.faults import with_faults


def busy(plain: Scenario, share: float = 1 / 3) -> Scenario:
    """For that share of seeds: updates of all modes, rollbacks and settings of one job, at any of its agents, one to three
    seconds apart, some while the one before is under way; sometimes a stop at the end. Not of a job that is stopped anyway."""
    rng = Random(plain.seed ^ 0x5EED_0083)
    stopped = {fault.job for fault in plain.faults if isinstance(fault, Stop)}
    jobs = [job for job in range(len(plain.jobs)) if job not in stopped]
    if rng.random() >= share or not jobs:
        return plain
    job, at_us = rng.choice(jobs), rng.randint(CALM_US, CALM_US + 2 * SECOND)
    faults: list[AnyFault] = []
    while at_us < plain.trouble_us:
        faults.append(_change(rng, plain, job, at_us))
        at_us += rng.choice((50 * MS, 300 * MS, SECOND, SECOND, 2 * SECOND, 3 * SECOND))
    if rng.random() < 0.2:
        faults.append(Stop(at_us=plain.trouble_us, host=rng.randrange(plain.hosts), job=job))
    return with_faults(plain, *faults)


def started_anew(plain: Scenario, share: float = 1 / 6) -> Scenario:
    """For that share of seeds: stops and starts of one job, at any of its agents, and now and then a change in between. Not of a
    job that is stopped anyway, nor of a trial, which ends by itself."""
    rng = Random(plain.seed ^ 0x5EED_0097)
    stopped = {fault.job for fault in plain.faults if isinstance(fault, Stop)}
    jobs = [at for at, job in enumerate(plain.jobs) if at not in stopped and not (job.agents or job.until_us)]
    if rng.random() >= share or not jobs:
        return plain
    job, at_us = rng.choice(jobs), rng.randint(CALM_US, CALM_US + 3 * SECOND)
    faults: list[AnyFault] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        stop, start = rng.randrange(plain.hosts), rng.randrange(plain.hosts)
        faults.append(Stop(at_us=at_us, host=stop, job=job, at_once=rng.random() < 0.5))
        at_us += rng.choice((100 * MS, 500 * MS, 2 * SECOND, 4 * SECOND))
        faults.append(Start(at_us=at_us, until_us=plain.trouble_us, host=start, job=job))
        at_us += rng.choice((300 * MS, SECOND, 3 * SECOND))
        if rng.random() < 0.5:
            faults.append(_change(rng, plain, job, at_us))
            at_us += rng.choice((20 * MS, SECOND, 3 * SECOND))
    return with_faults(plain, *(fault for fault in faults if fault.at_us < plain.trouble_us))


def tried(plain: Scenario, share: float = 1 / 8) -> Scenario:
    """For that share of seeds: a trial beside a job, on all or some agents, that ends by itself or is aborted; sometimes the job
    changes meanwhile, as by a promotion."""
    rng = Random(plain.seed ^ 0x5EED_0113)
    if rng.random() >= share:
        return plain
    job, at_us = (
        rng.randrange(len(plain.jobs)),
        rng.randint(CALM_US, max(CALM_US + 1, plain.trouble_us - 4 * SECOND)),
    )
    until_us = at_us + rng.choice((2 * SECOND, 4 * SECOND, 60 * SECOND))
    like, (first, *others) = plain.jobs[job], plain.jobs[job].windows
    agents = rng.choice(((), ("web[02468]",), ("web[1-3]", "web5*")))
    trial = msgspec.structs.replace(
        like,
        start_us=at_us,
        line_us=at_us,
        until_us=until_us,
        agents=agents,
        windows=(*others, first),
        alert=0,
        sample=0,
    )
    host, faults = rng.randrange(plain.hosts), list[AnyFault]()
    if rng.random() < 0.4:
        faults.append(
            Change(
                at_us=at_us + 2 * SECOND,
                host=host,
                job=job,
                mode=rng.choice(("split", "restate")),
                expects=True,
            )
        )
    if until_us - at_us > 4 * SECOND or rng.random() < 0.3:
        abort_us = at_us + rng.choice((500 * MS, 2 * SECOND + 20 * MS, 3 * SECOND))
        faults.append(
            Stop(at_us=abort_us, host=rng.randrange(plain.hosts), job=len(plain.jobs), at_once=True)
        )
    return with_faults(msgspec.structs.replace(plain, jobs=(*plain.jobs, trial)), *faults)


def _change(rng: Random, plain: Scenario, job: int, at_us: int) -> AnyFault:
    host = rng.randrange(plain.hosts)
    if rng.random() < 0.25:
        sink = rng.choice((-1, *range(plain.sinks))) if plain.sinks > 1 else -1
        return Tune(
            at_us=at_us, host=host, job=job, lateness_us=rng.choice((0, SECOND, 3 * SECOND)), sink=sink
        )
    about = {"back": rng.random() < 0.3, "expects": rng.random() < 0.3}
    return Change(at_us=at_us, host=host, job=job, mode=rng.choice(("split", "restate", "next")), **about)
