"""For an agent whose PYTHONPATH leads here: notes in the file `delivered` when each final window is committed, and when each sink
has acknowledged it.

See `benchmarks/sinks.py`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from elf.agent.host.sinks.outlets import Outlet
from elf.jobmaster.delivery.dispatch import Delivery
from elf.jobmaster.log.entries import Final
from elf.jobmaster.master.master import Master

_file = open("delivered", "a", buffering=1)  # noqa: SIM115 (open as long as the process)
_react, _ended = Master._react, Outlet._ended


def react(self: Master, *arguments: Any, **named: Any) -> Any:
    entry = arguments[1]
    if type(entry) is Final:
        _file.write(f"committed {entry.start} {time.time():.6f}\n")
    return _react(self, *arguments, **named)


def ended(self: Outlet, delivery: Delivery, outcome: asyncio.Future[None]) -> None:
    if not outcome.cancelled() and outcome.exception() is None:
        _file.write(f"{self.name} {delivery.start} {time.time():.6f}\n")
    _ended(self, delivery, outcome)


Master._react = react  # type: ignore[method-assign]
Outlet._ended = ended  # type: ignore[method-assign]
