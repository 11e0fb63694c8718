"""Readers that come and go while sinks take final windows only, drawn from a generator of their own."""

from __future__ import annotations

from random import Random

import msgspec

from elf.agent.simulator.scenario.scenario import CALM_US, MS, SECOND, Reader, Scenario


def visited(plain: Scenario, share: float = 1 / 2) -> Scenario:
    """For that share of seeds, workers cut slowly unless a reader is there; up to six come and go, and sometimes one stays."""
    rng = Random(plain.seed ^ 0x5EED_0083)
    if rng.random() >= share:
        return plain
    readers: list[Reader] = []
    for _ in range(rng.choice((0, 1, 3, 6))):
        from_us = rng.randint(CALM_US, plain.trouble_us)
        until_us = (
            from_us + rng.choice((50 * MS, 500 * MS, 2 * SECOND, 8 * SECOND)) if rng.random() < 0.9 else 0
        )
        job, host = rng.randrange(len(plain.jobs)), rng.randrange(plain.hosts)
        readers.append(Reader(host=host, job=job, from_us=from_us, until_us=until_us))
    return msgspec.structs.replace(plain, finals_only=True, readers=tuple(readers))
