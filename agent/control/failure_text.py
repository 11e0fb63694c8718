"""The text of a job's failure at an agent, for `elf job list` and `elf mesh status`."""

from __future__ import annotations

from elf.agent.control.protocol import Failure


def failure_text(failure: Failure) -> str:
    """The failure as a clause: why, how often, and what happens next."""
    times = "" if failure.failures == 1 else f", {failure.failures} times by now"
    again = f"begins again in {failure.again_s:.0f} s" if failure.again_s else "runs again"
    return f"fails ({failure.reason}){times}, and {again}"
