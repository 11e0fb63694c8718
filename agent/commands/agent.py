"""`elf agent run`: one agent until a signal stops it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from elf.agent.commands.process.reload import Reload, begin_again
from elf.agent.commands.process.streams import notices
from elf.agent.commands.validate import check, check_formats
from elf.agent.config import config
from elf.agent.config.config import Config


def agent_command(path: Path, flags: Mapping[str, str], quiet: bool) -> int:
    """Serve until SIGTERM (exit code 0, the regular end of an agent) or Ctrl-C (130); after SIGHUP begin again with the
    configuration as it is then, if it is good. Raises `ElfError`."""
    settings = _checked(path, flags)
    say = notices(quiet)
    reload = Reload(lambda: check(_checked(path, flags), in_child=True), say)
    from elf.agent.host.startup import light_event_loop

    light_event_loop(with_uvloop=settings.mesh.listen is not None)
    from elf.agent.host.process import serve_mesh

    code = serve_mesh(settings, say, reload.ask)
    if reload.is_due and code is None:
        begin_again()
    return code or 0


def _checked(path: Path, flags: Mapping[str, str]) -> Config:
    """The configuration, without its queries, which are compiled as their jobs start."""
    settings = config.load(path, environ=os.environ, flags=flags)
    config.check_logs(settings)
    check_formats(settings)
    return settings
