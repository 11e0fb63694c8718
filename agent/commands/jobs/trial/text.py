"""A job's window beside the trial's, as text: a table for people, a JSON object for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from elf.agent.commands.jobs.trial.comparison import Compared, Number, Row
from elf.agent.commands.mesh_text import cost_cells
from elf.agent.control.protocol import Cost
from elf.agent.run.progress import count
from elf.jobmaster.windows.result import ColumnInfo, Window
from elf.sinks.console.cells import escape, json_cell, number
from elf.sinks.console.grid import display, is_right, span, table

ROWS_SHOWN = 50
NONE = "-"
_json = msgspec.json.Encoder(decimal_format="number")


Costs = tuple[Cost | None, Cost | None]
"""What the present version and the trial cost, as far as agents have measured it."""
NO_COSTS: Costs = (None, None)


def as_table(job: str, compared: Compared, costs: Costs = NO_COSTS) -> str:
    """The two windows' figures, and a table: the keys, then of each other column both values and the difference."""
    now, tried = compared.windows
    assert now.start is not None
    lines = [
        f"── {escape(job)} · {span(now.start, now.end or now.start)} ──",
        *_figures(now, tried),
        *_cost_lines(costs),
    ]
    width = os.get_terminal_size().columns if sys.stdout.isatty() else None
    cells = [tuple(_cells(compared, row)) for row in compared.rows[:ROWS_SHOWN]]
    lines += table(list(_columns(compared)), cells, width=width)
    if (more := len(compared.rows) - ROWS_SHOWN) > 0:
        lines.append(f"… and {more:,} row{'s' * (more != 1)} more; --output json has all")
    return "\n".join([*lines, ""])


def _figures(now: Window, tried: Window) -> Iterator[str]:
    for title, window in (("now", now), ("try", tried)):
        lines = window.lines
        left_out = f", {count(window.left_out, 'row')} not sent" if window.left_out else ""
        yield (
            f"{title}  version {window.version} · {window.status} · {count(lines.read, 'line')}, {lines.rejected:,} rejected, "
            f"{lines.late:,} late · {window.agents_reporting} of {window.agents_expected} agents{left_out}"
        )


def _cost_lines(costs: Costs) -> Iterator[str]:
    for title, cost in zip(("now", "try"), costs, strict=True):
        if cost is not None:
            processor, sent, groups, memory = cost_cells(cost)
            yield f"{title}  costs {processor} · {sent} sent up · {groups} groups · {memory} of memory"


def _columns(compared: Compared) -> Iterator[ColumnInfo]:
    """All cells are texts; a type of numbers aligns them to the right."""
    for name, kind in compared.keys.items():
        yield ColumnInfo(name, "bigint" if is_right(kind) else "string")
    for name, kind in compared.columns.items():
        aligned = "bigint" if is_right(kind) else "string"
        yield ColumnInfo(f"{name} now", aligned)
        yield ColumnInfo(f"{name} try", aligned)
        if is_right(kind):
            yield ColumnInfo("±", "bigint")


def _cells(compared: Compared, row: Row) -> Iterator[str]:
    for name, kind in compared.keys.items():
        yield _cell(kind, row.keys, name)
    for name, kind in compared.columns.items():
        yield _cell(kind, row.now, name)
        yield _cell(kind, row.tried, name)
        if is_right(kind):
            yield _signed(row.difference.get(name))


def _cell(kind: str, values: Mapping[str, Any] | None, name: str) -> str:
    return NONE if values is None or name not in values else display(kind)(values[name])


def _signed(difference: Number | None) -> str:
    if difference is None:
        return NONE
    if difference == 0:
        return "0"
    return f"{difference:+f}" if isinstance(difference, Decimal) else f"{difference:+}"


def as_json(job: str, compared: Compared, costs: Costs = NO_COSTS) -> str:
    """One line."""
    now, tried = compared.windows
    kinds = {**compared.keys, **compared.columns}
    value = {
        "job": job,
        "start_us": now.start,
        "end_us": now.end,
        "now": _window(now, costs[0]),
        "try": _window(tried, costs[1]),
        "rows": [
            {
                "keys": _values(row.keys, kinds),
                "now": _values(row.now, kinds),
                "try": _values(row.tried, kinds),
                "difference": {
                    name: number(each) if isinstance(each, float) else each
                    for name, each in row.difference.items()
                },
            }
            for row in compared.rows
        ],
    }
    return _json.encode(value).decode()


def _window(window: Window, cost: Cost | None) -> dict[str, Any]:
    return {
        "version": window.version,
        "status": window.status,
        "lines": window.lines.named,
        "agents_reporting": window.agents_reporting,
        "agents_expected": window.agents_expected,
        "cost": msgspec.to_builtins(cost),
    }


def _values(values: Mapping[str, Any] | None, kinds: Mapping[str, str]) -> dict[str, Any] | None:
    if values is None:
        return None
    found = {}
    for name, value in values.items():
        ready = json_cell(kinds[name])
        found[name] = value if ready is None else ready(value)
    return found
