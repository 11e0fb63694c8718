"""When which core has work next, without asking all of them each time."""

from __future__ import annotations

from typing import Protocol

from elf.agent.node._timers import Timers

__all__ = ["Timed", "Timers"]


class Timed(Protocol):
    """Something with a `deadline`: the earliest moment at which its `tick` has work, or None."""

    @property
    def deadline(self) -> int | None: ...
