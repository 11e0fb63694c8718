"""`elf alerts`: the alerts of jobs, and their states."""

from __future__ import annotations

from pathlib import Path

from elf.agent.commands.jobs.job import connect
from elf.agent.commands.mesh_text import as_json, is_table, table_of, time_text
from elf.agent.control import protocol as w
from elf.errors import ElfError
from elf.sinks.console.cells import escape

TEST_S = 60.0
"""Seconds: sixteen sinks, one after another."""
NONE = "no job has an alert; a job file can have some: see elf help alerts"


def list_command(output: str | None, agent: Path | None) -> str:
    """All alerts, as text. Raises `ElfError`."""
    with connect(agent) as control:
        answer = control.one(w.AlertList())
    assert isinstance(answer, w.Alerts)
    if not is_table(output):
        return as_json(answer)
    return alerts_table(answer) if answer.alerts else NONE


def alerts_table(answer: w.Alerts) -> str:
    """One row for each instance, and for each alert without one."""
    columns = ["job", "alert", "state", "since", "keys", "text"]
    rows = [
        (
            escape(each.job),
            escape(each.alert),
            each.state,
            time_text(each.since_us) if each.since_us else "-",
            escape(", ".join(f"{name}={value}" for name, value in each.keys.items())) or "-",
            escape(each.text) or "-",
        )
        for each in answer.alerts
    ]
    notes = [
        f"job {escape(job)}: {count} more instances were left out, or had no room"
        for job, count in answer.left_out.items()
    ]
    return "\n".join([table_of(columns, rows), *notes])


def test_command(name: str, job: str | None, agent: Path | None) -> str:
    """Send a test notification. Returns the text to print. Raises `ElfError`, also if a sink has not got it."""
    with connect(agent) as control:
        answer = control.one(w.AlertTestRequest(name, job or ""), TEST_S)
    assert isinstance(answer, w.AlertTested)
    lines = [
        f"sink {escape(sink)}: {escape(problem) or 'has a test notification'}"
        for sink, problem in answer.problems.items()
    ]
    if any(answer.problems.values()):
        raise ElfError(f"alert {name} of job {answer.job}: {'; '.join(lines)}")
    return "\n".join(lines)
