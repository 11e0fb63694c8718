"""`elf agent run`: one agent until a signal stops it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from elf.agent.commands.process.signals import stop_on_signals
from elf.agent.commands.process.streams import notices
from elf.agent.commands.validate import check_formats
from elf.agent.config import config


def agent_command(path: Path, flags: Mapping[str, str], quiet: bool) -> int:
    """Serve until SIGTERM (exit code 0, the regular end of an agent) or Ctrl-C (130). Raises `ElfError`."""
    settings = config.load(path, environ=os.environ, flags=flags)
    config.check_logs(settings)
    check_formats(settings)  # queries are compiled by `serve`, in a child process, to stay small
    if settings.mesh is not None:
        from elf.agent.host.process import serve_mesh

        return serve_mesh(settings, notices(quiet))
    from elf.agent.single.node import serve

    with stop_on_signals() as stop:
        serve(settings, notices(quiet), stop.event)
    return stop.exit_code if stop.exit_code == 130 else 0
