"""Estimates as text."""

from __future__ import annotations

from elf.agent.commands.jobs.estimate import estimate_lines
from elf.agent.control.protocol import AgentEstimate, Estimates
from elf.jobmaster.plan.codec import encode
from tests.rigs.mesh_lines import plan_of

PLAN = encode(plan_of("10 seconds"))
SECOND = 1_000_000


def test_the_most_of_the_sample_is_named_with_its_size() -> None:
    one = AgentEstimate("web1", 1 << 20, 9_000, 60 * SECOND, 412, 1_500)
    two = AgentEstimate("web2", 1 << 19, 1_000, 90 * SECOND, 77, 2_048)
    assert list(estimate_lines(PLAN, Estimates((one, two), 16))) == [
        "estimate: up to 412 groups in a pane and 2 KiB/s sent up, at an agent; from the last 10,000 lines (1.5 MiB) at 2 of 16 "
        "agents"
    ]


def test_a_sample_shorter_than_a_pane_says_so() -> None:
    short = AgentEstimate("web1", 100, 1, 4 * SECOND, 1, 100)
    assert list(estimate_lines(PLAN, Estimates((short,), 1))) == [
        "estimate: up to 1 group in a pane and 100 B/s sent up, at an agent; from the last 1 lines (100 B) at 1 of 1 agent",
        "  a pane has 10s, these lines are of 4 s at most, so a pane may have more groups",
    ]


def test_agents_without_an_estimate_are_named() -> None:
    silent = [AgentEstimate(f"web{number}", problem="it does not answer\x1b") for number in (1, 2)]
    lines = list(estimate_lines(PLAN, Estimates(tuple(silent), 2)))
    assert lines == ["no estimate of web1, web2: it does not answer\\u001b"]
    assert list(estimate_lines(PLAN, Estimates((), 0))) == []
