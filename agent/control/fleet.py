"""Agents that cannot take part in a job, because they do not know a feature of its plans, or read lines otherwise: as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elf.agent.control.columns import AGENTS_NAMED_MAX, named
from elf.agent.control.protocol import HeldFeatures
from elf.jobmaster.directory.job_spec import AgentAdvert, JobSpec
from elf.jobmaster.plan.features import READING, Features, lacking

READS = frozenset({READING})
FEATURES_MAX = 32
"""Kinds of agents in one answer: a fleet has two or three versions of elf."""


def held_features(adverts: Iterable[AgentAdvert], source: str) -> tuple[HeldFeatures, ...]:
    """What the agents that follow a source know, the most frequent first. O(agents)."""
    found: dict[bytes, list[str]] = {}
    for advert in adverts:
        if source in advert.sources and not advert.until_us:
            found.setdefault(advert.features, []).append(advert.name)
    most = sorted(found.items(), key=lambda each: -len(each[1]))[:FEATURES_MAX]
    return tuple(
        HeldFeatures(each, len(names), tuple(sorted(names)[:AGENTS_NAMED_MAX])) for each, names in most
    )


def unable(held: Sequence[HeldFeatures], needs: Features) -> str:
    """Which of these agents cannot take part in a job with such needs, and why, and which read lines otherwise; "" if none."""
    lacks = [(each, lacking(each.features, needs)) for each in held if each.features]
    cannot = [(each, features) for each, features in lacks if features]
    others = [each for each, features in lacks if not features and lacking(each.features, READS)]
    texts = []
    if cannot:
        texts.append(
            f"{_who([each for each, _ in cannot], held, 'cannot run this query')}: their version of elf does not know its "
            f"{cannot[0][1][0]}; windows count them as missing until their elf is upgraded"
        )
    if others:
        texts.append(
            f"{_who(others, held, 'read lines by the rules of another version of elf')}: which lines they reject, texts that "
            "are not UTF-8 and sizes of - may differ in the same window, until all have one version"
        )
    return "; ".join(texts)


def _who(some: Sequence[HeldFeatures], held: Sequence[HeldFeatures], do: str) -> str:
    count, total = sum(each.count for each in some), sum(each.count for each in held)
    names = [name for each in some for name in each.agents][:AGENTS_NAMED_MAX]
    return f"{count} of {total} agents {do} ({named(names, count)})"


def unable_in(spec: JobSpec, adverts: Iterable[AgentAdvert]) -> str:
    """The same of a job's agents."""
    taking = [advert for advert in adverts if spec.takes(advert.name, advert.sources)]
    return unable(held_features(taking, spec.source), spec.needs)
