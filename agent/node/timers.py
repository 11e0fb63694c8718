"""Timers of cores: finds the cores whose deadline has come, without reading the deadlines of all."""

from __future__ import annotations

from typing import Protocol

from elf.agent.node._timers import Timers

__all__ = ["Timed", "Timers"]


class Timed(Protocol):
    """A core with a `deadline`: the earliest time at which its `tick` has work, or None."""

    @property
    def deadline(self) -> int | None: ...
