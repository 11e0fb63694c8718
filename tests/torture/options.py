"""The options of a run: its seed, its length, and how hard it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Options:
    """seconds: of faults; starting and settling come on top. rate: requests a second at each server. gap_s: mean time between
    faults. change_s: mean time between changes of a job. load: busy loops beside it all. faults: the kinds to draw from, all if
    empty. without: kinds that are left out. allowed: kinds of findings that do not make a run bad. mode: how all logs are
    rotated; "" for each in a way of its own."""

    seconds: float
    seed: int
    out: Path
    agents: int = 5
    rate: float = 40.0
    gap_s: float = 6.0
    rotate_s: float = 20.0
    change_s: float = 20.0
    load: int = 0
    is_quick: bool = False
    keeps: bool = False
    faults: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    mode: str = ""

    @property
    def folder(self) -> Path:
        """Of this run alone."""
        return self.out / str(self.seed)

    @property
    def lateness_s(self) -> float:
        return 2.0 if self.is_quick else 5.0

    @property
    def timings(self) -> dict[str, str]:
        """Of [mesh]. A short run cannot wait a minute for an agent that is down."""
        return {"hold_max": "15s", "idle_grace": "2s"} if self.is_quick else {}

    @property
    def settle_s_max(self) -> float:
        """How long the mesh may take to recover once the faults are over: a window waits `hold_max` for an agent."""
        return 180.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"out": str(self.out)}
