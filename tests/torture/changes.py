"""Operators who change the job `changing` while faults happen: other values, rollbacks, trials, lateness and keep. What its
history says in the end decides which version each line counts in."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tests.torture.agents import Agent, RefusedError, elf
from tests.torture.jobs import CHANGING, Job
from tests.torture.options import Options
from tests.torture.world import World

KINDS = {"set": 6, "rollback": 2, "promote": 1, "abort": 1, "settings": 2}
"""By weight. A trial starts, and is promoted or aborted after `TRIAL_S`."""
MODES = ("now", "now", "next", "restate")
LEAST = (200, 201, 300, 304, 400, 404)
SETTINGS = {
    200: ("--lateness", "3s"),
    201: ("--lateness", "8s"),
    300: ("--keep", "1h"),
    304: ("--lateness", "5s", "--keep", "2h"),
    400: ("--lateness", "4s"),
    404: ("--keep", "90m"),
}
"""Options of `elf job update`, by the parameter that is drawn. All keep windows for longer than a run takes."""
TRIAL_S = 6.0
NO_TIME = ((0.0, 0.0),)
"""When a version is in force that was lost before it was ever."""
NOBODY: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Change:
    """at_s: since the first visitors. host: whose agent is asked. least: the parameter's new value."""

    at_s: float
    kind: str
    host: str
    least: int
    mode: str


def drawn(options: Options, hosts: Sequence[str]) -> list[Change]:
    """All changes of a run, in order."""
    draws, at_s, changes = random.Random(options.seed ^ 0x0C4A), 0.0, []
    while (at_s := at_s + draws.uniform(0.2, 1.8) * options.change_s) < options.seconds:
        [kind] = draws.choices(list(KINDS), list(KINDS.values()))
        changes.append(Change(at_s, kind, draws.choice(hosts), draws.choice(LEAST), draws.choice(MODES)))
    return changes


def make(world: World, change: Change) -> None:
    """Type its commands. One that is refused, as by an agent that is alone, changes nothing."""
    asked = world.agents[change.host]
    agent = asked if asked.is_running and asked.socket.exists() else world.well(change.host)
    event = world.recorder.event("change", agent.name, f"{change.kind} least={change.least} at {change.mode}")
    try:
        for arguments in commands(change):
            if arguments is None:
                world.pause(TRIAL_S)
            else:
                _command(world, agent, arguments)
    except RefusedError as error:
        event["text"] = f"{event['text']}: {error}"
    event["until"] = time.time()


def commands(change: Change) -> Iterable[Sequence[str] | None]:
    """The arguments of each command; None: wait for some windows."""
    value = f"least={change.least}"
    if change.kind == "set":
        yield "set", CHANGING.name, value, "--at", change.mode
    elif change.kind == "rollback":
        yield "rollback", CHANGING.name, "--at", change.mode
    elif change.kind == "settings":
        yield "update", CHANGING.name, *SETTINGS[change.least]
    else:
        yield "try", CHANGING.name, "--set", value, "--windows", "0", "--for", "1m"
        yield None
        yield change.kind, CHANGING.name


def _command(world: World, agent: Agent, arguments: Sequence[str]) -> None:
    elf("job", *arguments, "--keys", world.authority.operator, "--agent", agent.socket)


def history(agent: Agent) -> list[dict[str, Any]]:
    """The changes of the job, as that agent knows them. Raises RefusedError."""
    said = elf("job", "history", CHANGING.name, "--agent", agent.socket, "--output", "json")
    steps: list[dict[str, Any]] = json.loads(said)
    return steps


def _unread_of_gone(
    steps: Sequence[Mapping[str, Any]], doubtful_ms: Mapping[str, int]
) -> tuple[tuple[str, float, float], ...]:
    """When lines of agents that were taken out may be missing: from the first line of a change that came after, or so shortly
    before that its lines may not have been read again by then. Also of one that was superseded: the next one reads on."""
    found = {
        agent: [
            step["from_us"] / 1_000
            for step in steps
            if step["from_us"] is not None and (step["asked_us"] or 0) / 1_000 > since_ms
        ]
        for agent, since_ms in doubtful_ms.items()
    }
    return tuple((agent, min(times), float("inf")) for agent, times in found.items() if times)


def _unread_by_twins(
    steps: Sequence[Mapping[str, Any]], twins: Sequence[tuple[str, float, float]]
) -> tuple[tuple[str, float, float], ...]:
    """When lines of agents may be missing because of a change that was asked for while a process with the agent's key and other
    logs was in its place: that process has none of the lines that the change has read again."""
    return tuple(
        (agent, step["from_us"] / 1_000, step["asked_us"] / 1_000)
        for agent, low_ms, high_ms in twins
        for step in steps
        if step["from_us"] is not None and low_ms <= (step.get("asked_us") or 0) / 1_000 < high_ms
    )


def versions(
    steps: Sequence[Mapping[str, Any]],
    doubtful_ms: Mapping[str, int] = NOBODY,
    twins: Sequence[tuple[str, float, float]] = (),
) -> list[Job]:
    """The job in each of its versions that are or were in force. doubtful_ms: agents that were taken out, and since when their
    lines count or not. twins: agents in whose place another process with their key was, and from and to when, in milliseconds."""
    unread = _unread_of_gone(steps, doubtful_ms) + _unread_by_twins(steps, twins)
    held = [step for step in steps if step["state"] in ("in force", "replaced")]
    ends = [step["from_us"] / 1_000 for step in held[1:]] + [float("inf")]
    jobs: dict[str, Job] = {}
    for step, until_ms in zip(held, ends, strict=True):
        former = jobs.get(step["version"])
        stretch = (step["from_us"] / 1_000, until_ms)
        stretches = (*(former.stretches if former is not None else ()), stretch)
        least = int(step["parameters"]["least"])
        jobs[step["version"]] = replace(
            CHANGING, version=step["version"], stretches=stretches, least=least, unread=unread
        )
    return list(jobs.values())
