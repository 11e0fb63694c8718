"""Chooses seeds for the tests: the cheapest of many that together go each way of the protocol, and have each kind of fault.

Greedy cover (Chvátal 1979): the next seed is the one that adds most of what is still needed for each second of a processor. Then
seeds that later ones made needless are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from tests.soak.census import RARE, WAYS

WANTED, WANTED_RARE = 6, 2
"""Chosen seeds that go each way: with some to spare, since any change of the protocol is another draw."""


class Ran(msgspec.Struct, frozen=True):
    """A seed's run: seconds of a processor, and what occurred."""

    cpu_s: float
    occurred: frozenset[str]


def wanted(runs: Iterable[Ran]) -> dict[str, int]:
    """In how many of the chosen seeds each way, and each kind of fault that occurs at all, has to occur."""
    faults = {name for run in runs for name in run.occurred if name.startswith("fault: ")}
    return {way: WANTED_RARE if way in RARE else WANTED for way in WAYS} | dict.fromkeys(faults, 1)


def choose(runs: Mapping[int, Ran], wanted: Mapping[str, int]) -> list[int]:
    """The seeds, in order. Where fewer have something than are wanted, all that have it. O(seeds chosen · seeds)."""
    missing, chosen = Counter(wanted), set[int]()

    def gain(seed: int) -> float:
        return sum(missing[name] > 0 for name in runs[seed].occurred) / runs[seed].cpu_s

    while (best := max(runs.keys() - chosen, key=gain, default=None)) is not None and gain(best) > 0:
        chosen.add(best)
        missing.subtract(runs[best].occurred & wanted.keys())
    for seed in sorted(chosen, key=lambda seed: -runs[seed].cpu_s):
        if all(missing[name] < 0 for name in runs[seed].occurred & wanted.keys()):
            chosen.remove(seed)
            missing.update(runs[seed].occurred & wanted.keys())
    return sorted(chosen)


def missing(runs: Mapping[int, Ran], seeds: Collection[int], wanted: Mapping[str, int]) -> dict[str, int]:
    """In how many of the seeds something occurs that should in more."""
    found = Counter(name for seed in seeds for name in runs[seed].occurred)
    return {name: found[name] for name, count in wanted.items() if found[name] < count}
