"""The lines in agents' logs: how many, of which kinds, and whether reported causes are true."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tests.torture.schedule import Fault
from tests.torture.verdict import Verdict
from tests.torture.world import World

TRACEBACK = "Traceback (most recent call last)"
NAMESAKE = "another agent reports"
STARTED = "--- start "
"""Begins a line that the torture writes into an agent's log as it starts it."""
EMPTY = "state_dir was empty"
LOSS = re.compile(r"lines of \d+ files? (?:is|are) lost|was cut short|lines there are lost|windows that lack")
NUMBERS = re.compile(r"[0-9a-f]{6,}|\d+")


def judge_log_lines(world: World, faults: Sequence[Fault], verdict: Verdict) -> None:
    """Find reports of losses or twins that did not happen. An agent that had a twin may report it, and one whose state was wiped
    may say until its next start that it lacks lines: a log that its side began meanwhile does lack them."""
    twins = {fault.host for fault in faults if fault.kind == "twin"}
    wiped = {fault.host for fault in faults if fault.kind == "wipe"}
    for name, agent in world.agents.items():
        if not agent.log_file.exists():
            continue
        lines = agent.log_file.read_text(errors="replace").splitlines()
        verdict.counts["words"] += len(lines)
        is_lossy = world.rotations[name].mode.is_lossy
        has_empty_state = False
        for line in lines:
            has_empty_state = not line.startswith(STARTED) and (has_empty_state or EMPTY in line)
            is_excused = is_lossy or (has_empty_state and name in wiped)
            if (NAMESAKE in line and name not in twins) or (LOSS.search(line) and not is_excused):
                verdict.add("explained", f"{name}: {line}")


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
