"""The lines in agents' logs: how many, of which kinds, and whether reported causes are true."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.torture.schedule import Fault
from tests.torture.verdict import Verdict
from tests.torture.world import World

TRACEBACK = "Traceback (most recent call last)"
STARTED = "--- start "
"""Begins a line that the torture writes into an agent's log as it starts it."""
TWO_AGENTS = re.compile(r"two agents run with one key: one at (\S+), and one at (\S+), which")
MOVED = "counted further than this run of it has reported"
OF_MOVED = ("twin", "wipe", "restore")
"""Faults after which a job has counted more of a file than the agent's present run has reported."""
EMPTY = "state_dir was empty"
LOSS = re.compile(
    r"lines of \d+ files? (?:is|are) lost|was cut short|lines there are lost|windows that lack|damaged after byte"
    r"|do(?:es)? not count this agent"
)
COPIED = re.compile(
    r"lines of \d+ files? (?:is|are) lost|\(copytruncate\)|it was cut short, or a shorter one took its place"
    r"|it was deleted, emptied or moved away"
)
"""Losses where logs are copied and truncated. Nothing there is compressed, so nothing can be damaged."""
DAMAGED = re.compile(r"damaged after byte|the archive is damaged")
"""No fault damages a log."""
NUMBERS = re.compile(r"[0-9a-f]{6,}|\d+")


def judge_log_lines(world: World, faults: Sequence[Fault], verdict: Verdict) -> None:
    """Find reports of losses or twins that did not happen."""
    addresses = {name: agent.address for name, agent in world.agents.items()}
    for name, agent in world.agents.items():
        if not agent.log_file.exists():
            continue
        lines = agent.log_file.read_text(errors="replace").splitlines()
        verdict.counts["words"] += len(lines)
        is_copied = world.rotations[name].mode.is_lossy
        for line in untrue(name, lines, faults, addresses, is_copied=is_copied):
            verdict.add("explained", f"{name}: {line}")


def untrue(
    name: str, lines: Iterable[str], faults: Sequence[Fault], addresses: Mapping[str, str], *, is_copied: bool
) -> Iterator[str]:
    """The lines of that agent's log that report what did not happen. addresses: of all agents, by name.

    Any agent may report two agents with one key if one of them is at the address of an agent that had a twin. An agent that had a
    twin, or whose state was lost or restored, may report that it was counted further. One whose state was wiped may say until its
    next start that it lacks lines: a log that its side began meanwhile does lack them."""
    hosts: dict[str, set[str]] = {}
    for fault in faults:
        hosts.setdefault(fault.kind, set()).add(fault.host)
    twins = {addresses[host] for host in hosts.get("twin", ())}
    may_be_moved = any(name in hosts.get(kind, ()) for kind in OF_MOVED)
    has_empty_state = False
    for line in lines:
        has_empty_state = not line.startswith(STARTED) and (has_empty_state or EMPTY in line)
        is_wiped = has_empty_state and name in hosts.get("wipe", ())
        if (
            _is_untrue_of_twins(line, twins)
            or (MOVED in line and not may_be_moved)
            or _is_untrue_loss(line, is_copied=is_copied, is_wiped=is_wiped)
        ):
            yield line


def _is_untrue_of_twins(line: str, twins: set[str]) -> bool:
    both = TWO_AGENTS.search(line)
    return both is not None and not twins & set(both.groups())


def _is_untrue_loss(line: str, *, is_copied: bool, is_wiped: bool) -> bool:
    if not LOSS.search(line):
        return False
    is_explained = is_wiped or (is_copied and COPIED.search(line))
    return bool(DAMAGED.search(line)) or not is_explained


def kinds_of_log_lines(world: World, most: int = 30) -> list[tuple[str, int]]:
    """The most frequent lines, with numbers replaced."""
    counts: Counter[str] = Counter()
    for agent in world.agents.values():
        if agent.log_file.exists():
            counts.update(
                NUMBERS.sub("#", line)[:160]
                for line in agent.log_file.read_text(errors="replace").splitlines()
            )
    return counts.most_common(most)
