"""`elf mesh …`: the mesh as the agent on this host sees it."""

from __future__ import annotations

from pathlib import Path

from elf.agent.commands.jobs.job import connect
from elf.agent.commands.mesh_text import as_json, audit_table, is_table, status_table, tree_dot, tree_text
from elf.agent.config.names import check_asked
from elf.agent.control import protocol as w

LEAVE_S = 90.0
"""Seconds: an agent waits a minute for the mesh to have all its lines."""


def status_command(output: str | None, agent: Path | None) -> str:
    """All members, as text. Raises `ElfError`."""
    with connect(agent) as control:
        answer = control.one(w.MeshStatus())
    assert isinstance(answer, w.Status)
    return status_table(answer) if is_table(output) else as_json(answer)


def audit_command(output: str | None, agent: Path | None) -> str:
    """All changes of jobs that agents list, oldest first, as text. Raises `ElfError`."""
    with connect(agent) as control:
        answer = control.one(w.MeshAudit())
    assert isinstance(answer, w.Audit)
    return audit_table(answer.lines) if is_table(output) else as_json(answer.lines)


def leave_command(agent: Path | None) -> str:
    """Make the agent on this host leave for good. Returns the line to print. Raises `ElfError`."""
    with connect(agent) as control:
        control.one(w.MeshLeave(), LEAVE_S)
    return "this agent has left: the mesh has all its lines, and waits for no more of them"


def tree_command(job: str, output: str, agent: Path | None) -> str:
    """A job's tree, as text. Raises `ElfError`."""
    check_asked(job)
    with connect(agent) as control:
        answer = control.one(w.MeshTree(job))
    assert isinstance(answer, w.Tree)
    forms = {"tree": tree_text, "json": as_json, "dot": tree_dot}
    return forms[output](answer.root)
