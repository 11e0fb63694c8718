"""Tries what joins an agent to its mesh: keys and their terms, seeds, and what the agent here says of its neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import time

from elf.agent.commands.doctor.finding import Finding, error, ok, warning
from elf.agent.commands.doctor.machine import reached
from elf.agent.config.specs import MeshSection
from elf.agent.control import protocol as w
from elf.agent.control.status import SKEW_US_MAX
from elf.errors import ConfigError
from elf.srt.security.certificates import DAY_S, moment
from elf.srt.security.files import load_agent_keys

RENEW_DAYS = 30


def mesh_findings(mesh: MeshSection, status: w.Status | None) -> Iterator[Finding]:
    """status: from the agent that runs here; None if none does."""
    if mesh.advertise is not None:
        yield _keys(mesh)
        for seed in (seed for seed in mesh.seeds if seed.endpoint != mesh.advertise.endpoint):
            yield reached("seed", seed, "this agent joins its mesh there")
    if mesh.listen is None:
        yield from _problems(status.problems if status is not None else ())
    elif status is None:
        yield warning("mesh", "no agent with this configuration runs here, so its neighbours were not asked")
    else:
        yield from neighbours(status)


def _keys(mesh: MeshSection) -> Finding:
    if mesh.bundle is None or mesh.security != "curve":
        return ok("keys", "none: this mesh is on loopback addresses only")
    try:
        held = load_agent_keys(mesh.bundle, int(time())).certificate
    except ConfigError as problem:
        return error("keys", str(problem))
    left = (held.not_after_s - int(time())) // DAY_S
    text = f"{mesh.bundle}: of agent {held.name}, valid until {moment(held.not_after_s)}"
    if left < RENEW_DAYS:
        return warning("keys", f"{text}, {left} days; renew them with: elf keys renew {mesh.bundle}")
    return ok("keys", text)


def neighbours(status: w.Status) -> Iterator[Finding]:
    """What the agent here sees of the others. That they answered it means that they are reached in both directions."""
    others = [each for each in status.members if each.id != status.me and each.state != "left"]
    alive = [each for each in others if each.state == "alive"]
    silent = [f"{each.name} ({each.state})" for each in others if each.state != "alive"]
    text = f"{len(alive)} of {len(others)} other agents answer"
    if silent:
        yield error(
            "mesh", f"{text}; not: {', '.join(silent[:8])}; check that they run, and the network between"
        )
    else:
        yield ok("mesh", text)
    skews = [
        (abs(each.skew_us), each.name, each.round_trip_us or 0) for each in alive if each.skew_us is not None
    ]
    if skews:
        far, name, trip = max(skews)
        about = f"{name}'s is {far / 1e6:.3f} s off this one, the most of {len(skews)}"
        is_far = far > SKEW_US_MAX + trip // 2
        yield (warning if is_far else ok)("clocks", about + ("; set the clocks (NTP)" if is_far else ""))
    yield from _problems(status.problems)


def _problems(problems: Sequence[str]) -> Iterator[Finding]:
    for problem in problems:
        yield warning("problem", problem)
