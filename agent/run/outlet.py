"""Where the windows of a live run go: standard output, and lakes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from elf.agent.host.only_job import NewSink
from elf.jobmaster.windows.result import Sink


class Outlet(NamedTuple):
    """new: makes what draws on standard output; None: nothing is printed. is_open: whether it shows open windows. lakes: their
    folders."""

    new: NewSink | None
    is_open: bool = False
    lakes: Sequence[Path] = ()

    def printers(self) -> list[Sink]:
        """What prints, for a caller that writes on standard output itself."""
        return [] if self.new is None else [self.new(None)]
