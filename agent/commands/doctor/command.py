"""`elf doctor`: all findings about one agent's configuration on this host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from elf.agent.commands.doctor.finding import Finding, as_text, error, exit_code, ok
from elf.agent.commands.doctor.logs import log_findings
from elf.agent.commands.doctor.machine import machine_findings
from elf.agent.commands.doctor.mesh import mesh_findings
from elf.agent.commands.doctor.state import state_findings
from elf.agent.commands.startable import obstacles
from elf.agent.commands.validate import check
from elf.agent.config import config
from elf.agent.config.config import Config
from elf.agent.control import protocol as w
from elf.agent.control.client import Control, socket_path
from elf.agent.host.identity import claimant
from elf.errors import ConfigError, ElfError
from elf.sinks.console.grid import Style
from elf.sinks.console.terminal import is_coloured


def doctor_command(path: Path, output: str) -> int:
    """Try all, print the findings, and return the exit code: 0, 1 with warnings, 2 with errors."""
    findings = list(all_findings(path))
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode(findings), indent=2).decode())
    else:
        print("\n".join(as_text(findings, Style(is_coloured("auto")))))
    return exit_code(findings)


def all_findings(path: Path) -> Iterator[Finding]:
    """An error in the configuration hides only what depends on it."""
    try:
        settings = config.load(path, environ=os.environ)
    except ConfigError as problem:
        yield error("configuration", str(problem))
        return
    yield from _configuration(settings)
    status = _status(settings, path)
    yield from log_findings(settings)
    yield from state_findings(settings)
    yield from machine_findings(settings, status is not None)
    yield from mesh_findings(settings.mesh, status)


def _configuration(settings: Config) -> Iterator[Finding]:
    found = list(obstacles(settings))
    try:
        check(settings)
    except ConfigError as problem:
        found.append(str(problem))
    for text in found:
        yield error("configuration", text)
    if not found:
        yield ok("configuration", f"{settings.path}: an agent can start with it")


def _status(settings: Config, path: Path) -> w.Status | None:
    """What the agent that runs here with this configuration's state sees of its mesh; None if none answers."""
    try:
        with Control(socket_path(None, path, os.environ)) as control:
            status = control.one(w.MeshStatus())
    except ElfError:
        return None
    assert isinstance(status, w.Status)
    held = claimant(settings.agent.state_dir)
    return status if held in ("", status.me) else None
