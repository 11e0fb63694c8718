"""Estimates for `--dry-run`: a plan runs over the last lines of real logs, at a sample of agents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import to_builtins

from elf.agent.config.units import duration_text, size_text
from elf.agent.control import protocol as w
from elf.jobmaster.log.schedule import plan_of
from elf.sinks.console.cells import escape


def again_values(found: w.Estimates | None, span_us: int) -> list[dict[str, Any]]:
    """About what each agent of the sample would read again of so much time, at the rate of its last lines."""
    made = [each for each in found.agents if not each.problem] if found is not None else []
    times = {each.agent: max(0, span_us) / max(each.span_us, 1_000_000) for each in made}
    return [
        {
            "agent": each.agent,
            "lines": round(each.lines * times[each.agent]),
            "bytes": round(each.read_bytes * times[each.agent]),
        }
        for each in made
    ]


def again_lines(found: w.Estimates | None, span_us: int) -> Iterator[str]:
    """The same as lines of text."""
    for each in again_values(found, span_us):
        yield (
            f"estimate: {escape(each['agent'])} would read {each['lines']:,} lines ({size_text(each['bytes'])}) again, at the "
            "rate of its last lines"
        )


def estimate_values(found: w.Estimates | None) -> dict[str, Any] | None:
    """The estimates for programs."""
    return None if found is None else {"agents": to_builtins(found.agents), "of": found.of}


def estimate_lines(plan: bytes, found: w.Estimates) -> Iterator[str]:
    """The estimates of an encoded plan as lines of text."""
    made = [each for each in found.agents if not each.problem]
    problems: dict[str, list[str]] = {}
    for each in found.agents:
        if each.problem:
            problems.setdefault(each.problem, []).append(each.agent)
    for problem, agents in problems.items():
        yield f"no estimate of {escape(', '.join(agents))}: {escape(problem)}"
    if not made:
        return
    groups = max(each.groups for each in made)
    rate, nbytes = max(each.sent_bytes for each in made), sum(each.read_bytes for each in made)
    lines, span_us = sum(each.lines for each in made), max(each.span_us for each in made)
    yield (
        f"estimate: up to {groups:,} group{'s' * (groups != 1)} in a pane and {size_text(rate)}/s sent up, at an agent; from the "
        f"last {lines:,} lines ({size_text(nbytes)}) at {len(made)} of {found.of} agent{'s' * (found.of != 1)}"
    )
    window = plan_of(plan).window
    if window is not None and span_us < window.pane_us:
        yield (
            f"  a pane has {duration_text(window.pane_us)}, these lines are of {span_us / 1e6:.0f} s at most, so a pane may have "
            "more groups"
        )
