"""Bugs of single jobs, drawn from generators of their own."""

from __future__ import annotations

from random import Random

from elf.agent.simulator.scenario.scenario import CALM_US, MS, SECOND, Bug, FailPoint, Scenario
from tests.soak.faults import with_faults


class Bugs:
    """Adds bugs of single jobs, drawn from a generator of their own."""

    KINDS: tuple[tuple[FailPoint, tuple[str, ...]], ...] = (
        (
            "message",
            (
                "Bundle",
                "Commit",
                "Split",
                "Append",
                "Install",
                "Held",
                "StateRequest",
                "StateReport",
                "Adopt",
            ),
        ),
        ("message", ("Hello", "Welcome", "PutReply", "LedgerReport", "Leave", "Handover", "")),
        ("tick", ("Master", "Reducer", "DeltaWorker", "Succession", "TreeSeat", "")),
        ("entry", ("Accept", "Final", "Serve", "ControlEntry", "Add")),
        ("cut", ("",)),
        ("settle", ("",)),
        ("restore", ("",)),
    )

    def __init__(self, plain: Scenario) -> None:
        self.plain, self.rng = plain, Random(plain.seed ^ 0x5EED_0011)

    def scenario(self) -> Scenario:
        if self.rng.random() < 0.55:
            return self.plain
        bugs = [self._bug() for _ in range(self.rng.choice((1, 1, 2, 3)))]
        return with_faults(self.plain, *bugs)

    def _bug(self) -> Bug:
        rng, trouble_us = self.rng, self.plain.trouble_us
        at = rng.randint(CALM_US, trouble_us - 2 * SECOND)
        on, kinds = rng.choice(self.KINDS)
        return Bug(
            at_us=at,
            until_us=min(trouble_us, at + int(rng.random() ** 2 * 10 * SECOND) + 50 * MS),
            job=rng.randrange(len(self.plain.jobs)),
            on=on,
            kind=rng.choice(kinds),
            host=rng.choice((-1, rng.randrange(self.plain.hosts))),
            once=rng.random() < 0.5,
        )


def spoilt(plain: Scenario, share: float = 1 / 12) -> Scenario:
    """For that share of seeds: a message of a job cannot be encoded, once or for some time. All messages are bytes then, so a
    simulation takes twice as long."""
    rng = Random(plain.seed ^ 0x5EED_0089)
    if rng.random() >= share:
        return plain
    at = rng.randint(CALM_US, plain.trouble_us - 2 * SECOND)
    bug = Bug(
        at_us=at,
        until_us=min(plain.trouble_us, at + rng.choice((50 * MS, SECOND, 5 * SECOND))),
        job=rng.randrange(len(plain.jobs)),
        on="encode",
        kind=rng.choice(("Bundle", "Append")),
        host=rng.choice((-1, rng.randrange(plain.hosts))),
        once=rng.random() < 0.5,
    )
    return with_faults(plain, bug)
