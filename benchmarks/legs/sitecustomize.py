"""For an agent whose PYTHONPATH leads here: notes in the file `legs` when lines pass each stage of their way.

See `benchmarks/light.py`. A stage without lines, such as a cut that only says how far a quiet log is, is not noted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from elf.agent.control.service import ControlService
from elf.agent.node.mesh_node import MeshNode
from elf.agent.work.mesh_source import MeshSource
from elf.jobmaster.delivery.watchers import Watchers
from elf.jobmaster.log.entries import Accept
from elf.jobmaster.master.master import Master
from elf.srt.messages.messages import Bundle
from elf.srt.messages.results import Shown

_file = open("legs", "a", buffering=1)  # noqa: SIM115 (open as long as the process)


def _note(owner: type, method: str, leg: str, has_lines: Callable[[tuple[Any, ...], Any], bool]) -> None:
    """Note a leg at each call with lines. has_lines: of the arguments without self, and the result."""
    plain = getattr(owner, method)

    @wraps(plain)
    def noted(self: Any, *arguments: Any, **named: Any) -> Any:
        began_s = time.time()
        result = plain(self, *arguments, **named)
        if has_lines(arguments, result):
            _file.write(f"{leg} {time.time() if leg == 'noticed' else began_s:.6f}\n")
        return result

    setattr(owner, method, noted)


_note(MeshSource, "_read_front", "noticed", lambda given, block: block is not None)
_note(MeshNode, "cut", "cut", lambda given, _: bool(given[0].parts))
_note(MeshNode, "_to_seat", "hop", lambda given, _: type(given[1]) is Bundle and bool(given[1].parts))
_note(Master, "_react", "committed", lambda given, _: type(given[1]) is Accept and bool(given[1].parts))
_note(Watchers, "publish", "published", lambda given, _: given[0].lines[0] > 0)
_note(ControlService, "_receive", "arrived", lambda given, _: type(given[1]) is Shown)
