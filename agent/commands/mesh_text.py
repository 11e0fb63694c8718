"""The output of `elf mesh …` and `elf job list`: tables for people, JSON for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from elf.agent.config import units
from elf.agent.control.protocol import AuditLine, Cost, JobLine, LagLine, Member, Status, TreeNode, TrialLine
from elf.jobmaster.values.conversion import timestamp_text
from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.console.cells import escape
from elf.sinks.console.grid import table

SQL_SHOWN = 60
ID_SHOWN = 12
COSTS_SHOWN = 5
LATE_US = 5_000_000
"""A window that has waited for so long is late: a sink in order takes one within a second."""
SHOWN_BYTES = 100 << 10
"""Owners of less memory are not listed."""


def is_table(output: str | None) -> bool:
    """Whether to print a table: with `--output table`, or without the option on a terminal."""
    return output == "table" or (output is None and sys.stdout.isatty())


def as_json(value: Any) -> str:
    """Indented, one object or list."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def job_table(jobs: Sequence[JobLine]) -> str:
    if not jobs:
        return "no jobs; start one with: elf job start NAME --sql SQL"
    columns = ["job", "state", "source", "agents", "master", "lateness", "sinks", "query"]
    rows: list[tuple[Any, ...]] = [
        (
            job.name,
            job.state,
            job.source,
            job.agents,
            job.master or "-",
            units.duration_text(job.lateness_us),
            ", ".join(job.sinks) or "-",
            _clipped(job.sql),
        )
        for job in jobs
    ]
    if any(job.label for job in jobs):  # of a folder of job files, or of the agent's own file
        columns.insert(2, "from")
        rows = [(*row[:2], job.label or "-", *row[2:]) for row, job in zip(rows, jobs, strict=True)]
    failing = [
        f"failing: job {escape(job.name)} at {escape(failure.agent)}: {escape(failure.text)}"
        for job in jobs
        for failure in job.failing
    ]
    untimed = [
        f"job {escape(job.name)}: {job.untimed:,} rejected lines are in no window, since no line before them in their file could "
        "be parsed; elf mesh status names the agents whose lines are rejected"
        for job in jobs
        if job.untimed
    ]
    return "\n".join([table_of(columns, rows), *failing, *untimed])


def _clipped(sql: str) -> str:
    line = " ".join(sql.split())
    return line if len(line) <= SQL_SHOWN else line[: SQL_SHOWN - 1] + "…"


def status_table(status: Status) -> str:
    """Members, then their problems."""
    columns = ["agent", "id", "state", "address", "roles", "version", "lag", "clock", "memory", "bare", "up"]
    rows = [_member_row(member, member.id == status.me) for member in status.members]
    lines = [table_of(columns, rows)]
    if status.not_asked:
        lines.append(f"{status.not_asked:,} more members, which were not asked")
    lines += [sink_table(status.members)] if any(member.delivering for member in status.members) else []
    lags = [(member, lag) for member in status.members for lag in member.lags if is_late(lag)]
    lines += [lag_table(lags)] if lags else []
    lines += [cost_table(status.costs)] if status.costs else []
    lines += [trial_text(trial) for trial in status.trials]
    lines += [
        f"job {escape(name)} is being stopped; it ends when its windows are final"
        for name in status.finishing
    ]
    lines += [_memory_line(member) for member in status.members if member.id == status.me and member.memory]
    lines += [f"problem: {escape(problem)}" for problem in status.problems]
    return "\n".join(lines)


def audit_table(lines: Sequence[AuditLine]) -> str:
    """A line for each request, and for each reason a count of those without a valid signature."""
    if not lines:
        return "no job was changed yet, and no key revoked"
    columns = ["when", "operator", "key", "agent", "job", "change", "version", "outcome", "reason"]
    rows = [
        (
            time_text(line.at_us),
            line.operator or "-",
            line.key[:ID_SHOWN] or "-",
            line.agent or "-",
            line.job or "-",
            line.what,
            line.version or "-",
            line.outcome + (f", {line.times} times" if line.times > 1 else ""),
            line.reason or "-",
        )
        for line in lines
    ]
    return table_of(columns, rows)


def sink_table(members: Sequence[Member]) -> str:
    """The sinks of all agents, and the last problem of each."""
    columns = ["sink", "agent", "delivered", "waiting", "oldest", "refused", "failures", "problem"]
    rows = [
        (
            escape(sink.name),
            escape(member.name),
            f"{sink.delivered:,}",
            f"{sink.waiting:,}",
            roughly(sink.oldest_us / 1e6) if sink.waiting else "-",
            f"{sink.refusals:,}",
            f"{sink.failures:,}",
            escape(sink.problem) or "-",
        )
        for member in members
        for sink in member.delivering
    ]
    return table_of(columns, rows)


def is_late(lag: LagLine) -> bool:
    """Whether windows wait for a sink that takes none at present, or were lost for it."""
    return lag.lost > 0 or lag.oldest_us >= LATE_US


def lag_table(lags: Sequence[tuple[Member, LagLine]]) -> str:
    """What waits at masters for the sinks of their jobs, the longest wait first."""
    columns = ["job", "sink", "master", "waiting", "oldest", "delivered", "lost"]
    rows = [
        (
            escape(lag.job),
            escape(lag.sink),
            escape(member.name),
            f"{lag.waiting:,}",
            roughly(lag.oldest_us / 1e6) if lag.waiting else "-",
            f"{lag.delivered:,}",
            f"{lag.lost:,}",
        )
        for member, lag in sorted(lags, key=lambda each: -each[1].oldest_us)
    ]
    return table_of(columns, rows)


def cost_table(costs: Sequence[Cost]) -> str:
    """The most expensive jobs."""
    columns = ["costly jobs", "processor", "sent up", "groups", "memory", "agents"]
    rows = [(escape(cost.job), *cost_cells(cost), cost.agents) for cost in costs[:COSTS_SHOWN]]
    return table_of(columns, rows)


def cost_cells(cost: Cost) -> tuple[str, str, str, str]:
    """Processor time, bytes sent up, groups and memory, as texts."""
    return (
        f"{cost.cpu_ms:.1f} core-ms/s",
        f"{units.size_text(cost.sent_bytes)}/s",
        f"{cost.groups:,}",
        units.size_text(cost.held_bytes),
    )


def trial_text(trial: TrialLine) -> str:
    """A trial that runs, as a line."""
    agents = ", ".join(trial.agents) or "all agents"
    return (
        f"trial of job {escape(trial.job)}: version {escape(trial.version)} beside {escape(trial.compared_with)}, on "
        f"{escape(agents)}, until {time_text(trial.until_us)} UTC"
    )


def _member_row(member: Member, is_me: bool) -> tuple[Any, ...]:
    roles = member.roles or {}
    return (
        member.name + (" (here)" if is_me else ""),
        member.id[:ID_SHOWN],
        member.state,
        member.address or "-",
        ", ".join(f"{count} {role}" for role, count in roles.items() if count) or "-",
        member.version or "-",
        "-" if member.lag_bytes is None else units.size_text(member.lag_bytes),
        "-" if member.skew_us is None else f"{member.skew_us / 1000:+.1f} ms",
        "-"
        if member.memory_bytes is None
        else f"{units.size_text(member.memory_bytes)} of {units.size_text(member.memory_max or 0)}",
        "-" if member.memory_bare is None else units.size_text(member.memory_bare),
        "-" if member.up_s is None else roughly(member.up_s),
    )


def _memory_line(member: Member) -> str:
    """The owners of an agent's memory, the largest first."""
    owners = sorted((member.memory or {}).items(), key=lambda owner: (-owner[1], owner[0]))
    held = ", ".join(
        f"{escape(name)} {units.size_text(size)}" for name, size in owners if size >= SHOWN_BYTES
    )
    return f"memory of {escape(member.name)}: {held or 'next to nothing'}"


def table_of(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    infos = [ColumnInfo(name, "bigint" if name == "agents" else "string") for name in columns]
    width = os.get_terminal_size().columns if sys.stdout.isatty() else None
    return "\n".join(table(infos, [tuple(row) for row in rows], width=width))


def time_text(us: int) -> str:
    """2015-05-17 10:05:03.25: to the millisecond, UTC."""
    return timestamp_text(us - us % 1000)


def roughly(seconds: float) -> str:
    """3d 4h, 5m 10s, 7s: the two largest units."""
    parts, left = [], int(seconds)
    for name, unit in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= unit:
            parts.append(f"{left // unit}{name}")
            left %= unit
    return " ".join(parts[:2]) or "0s"


def tree_text(root: TreeNode) -> str:
    """Branches drawn with lines."""
    return "\n".join([_label(root), *_branches(root, "")])


def _label(node: TreeNode) -> str:
    silent = "  (no answer)" if node.silent else ""
    return f"{escape(node.name)}  {node.id[:ID_SHOWN]}{silent}"


def _branches(node: TreeNode, indent: str) -> Iterator[str]:
    for number, child in enumerate(node.children, start=1):
        is_last = number == len(node.children)
        yield f"{indent}{'└─' if is_last else '├─'} {_label(child)}"
        yield from _branches(child, indent + ("   " if is_last else "│  "))


def tree_dot(root: TreeNode) -> str:
    """A graph for Graphviz, children pointing at their parent."""
    return "\n".join(["digraph tree {", "  rankdir=BT;", *_dot(root), "}"])


def _dot(node: TreeNode) -> Iterator[str]:
    name = msgspec.json.encode(escape(node.name)).decode()
    yield f'  "{node.id}" [label={name}];'
    for child in node.children:
        yield from _dot(child)
        yield f'  "{child.id}" -> "{node.id}";'
