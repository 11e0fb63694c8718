"""A finding of `elf doctor`, and the forms in which a list of them is printed."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from elf.agent.run.progress import count
from elf.sinks.console.cells import escape
from elf.sinks.console.grid import Style


class Severity(StrEnum):
    """In the order of the exit codes: 0, 1 and 2."""

    ok = "ok"
    warning = "warning"
    error = "error"


class Finding(msgspec.Struct, frozen=True):
    """check: what was tried. text: what was found, and for a warning or an error what to do. lines: an excerpt below it."""

    check: str
    severity: Severity
    text: str
    lines: tuple[str, ...] = ()


def ok(check: str, text: str) -> Finding:
    return Finding(check, Severity.ok, text)


def warning(check: str, text: str, lines: Sequence[str] = ()) -> Finding:
    return Finding(check, Severity.warning, text, tuple(lines))


def error(check: str, text: str, lines: Sequence[str] = ()) -> Finding:
    return Finding(check, Severity.error, text, tuple(lines))


def exit_code(findings: Sequence[Finding]) -> int:
    """0 if all is well, 1 with warnings only, 2 with an error."""
    return max((list(Severity).index(each.severity) for each in findings), default=0)


def as_text(findings: Sequence[Finding], style: Style) -> list[str]:
    """A line for each finding, its excerpt below it, and a line with the counts."""
    width = max(len(each.check) for each in findings)
    lines = []
    for each in findings:
        mark = each.severity.ljust(len(Severity.warning))
        shown = style.dim(mark) if each.severity is Severity.ok else style.red(mark)
        lines.append(f"{shown}  {each.check.ljust(width)}  {escape(each.text)}")
        lines += [f"{' ' * (len(mark) + width + 4)}{line}" for line in each.lines]
    good, doubtful, broken = (sum(each.severity is one for each in findings) for one in Severity)
    return [
        *lines,
        f"{count(broken, 'error')}, {count(doubtful, 'warning')}, {good} of {count(len(findings), 'check')} good",
    ]
