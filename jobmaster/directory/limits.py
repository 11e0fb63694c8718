"""Limits of a job: what it may cost each agent. A job's spec has its own, and each agent may have lower ones for every job.

A job that passes a limit at an agent fails there, as a job does that raises: it is shown with the reason, and no other job
notices. Instead, a job may ask that the groups past `groups` become one row, `other` (`elf.cbt.other`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from elf.errors import ElfError

Bound = Annotated[int, Meta(ge=0, lt=1 << 62)]


class Limits(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Upper bounds; 0: none. groups: in one pane at one agent. others: the groups past that become one row, and a window of the
    job has at most `groups` groups. sent_bytes: that an agent sends up the job's tree in a second, with what it forwards; cpu_us:
    processor time of an agent in a second, in microseconds."""

    groups: Bound = 0
    others: bool = False
    sent_bytes: Bound = 0
    cpu_us: Bound = 0

    def within(self, caps: Limits) -> Limits:
        """The lower one of each bound."""
        return Limits(
            _lower(self.groups, caps.groups),
            self.others,
            _lower(self.sent_bytes, caps.sent_bytes),
            _lower(self.cpu_us, caps.cpu_us),
        )

    @property
    def sample(self) -> int:
        """How many groups of a pane stay beside the row `other`; 0: all."""
        return self.groups if self.others else 0


NO_LIMITS = Limits()
LIMIT = "limit: "
"""How the reason of a failure begins that is no error, but a limit that was passed."""


class Over(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A trial has passed a limit at that agent, and so has ended everywhere. reason: which limit."""

    agent: Annotated[str, Meta(max_length=200)]
    reason: Annotated[str, Meta(max_length=300)]

    @property
    def text(self) -> str:
        return f"it passed a limit at {self.agent} ({self.reason.removeprefix(LIMIT)})"


class LimitPassed(ElfError):  # noqa: N818 (it is the job's, not an error of the program)
    """A job needs more at this agent than its limits, or the agent's, allow."""


def _lower(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other
