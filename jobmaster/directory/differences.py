"""What is different between two versions of a job, for people. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from elf.jobmaster.compile.explain import described
from elf.jobmaster.directory.job_spec import Version
from elf.jobmaster.directory.versions import parameter_texts
from elf.jobmaster.log.schedule import plan_of

PARTS = ("where", "window", "keys", "select", "having", "order", "limit")


class Difference(msgspec.Struct, frozen=True):
    """A part of a query or the name of a parameter, and its text in both versions; "none" where a version does not have it."""

    part: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.part}: {self.before}  ->  {self.after}"


def differences(old: Version, new: Version) -> list[Difference]:
    """The parameters with other values, by name, and the parts of the query that differ in meaning."""
    values, new_values = parameter_texts(old), parameter_texts(new)
    names = sorted(values.keys() | new_values.keys())
    before, after = parts_of(old), parts_of(new)
    every = [(name, values.get(name, "none"), new_values.get(name, "none")) for name in names]
    every += [(part, before[part], after[part]) for part in PARTS]
    return [Difference(*each) for each in every if each[1] != each[2]]


def parts_of(version: Version) -> dict[str, str]:
    """The parts of a version's query, each in a line."""
    about = described(plan_of(version.plan))
    return {part: _shown(about[part]) for part in PARTS}


def _shown(part: Any) -> str:
    """A part of a plan as `described` gives it, in a line."""
    if part is None or part == []:
        return "none"
    if isinstance(part, list):
        return ", ".join(_named(each) if "name" in each else _ordered(each) for each in part)
    if isinstance(part, dict):
        size, slide = part["size_us"] / 1e6, part["slide_us"] / 1e6
        return f"{size:g} s" if size == slide else f"{size:g} s every {slide:g} s"
    return str(part)


def _named(column: dict[str, Any]) -> str:
    """The name alone if it says it all: a change of the expression under one name must be seen."""
    name, expression = str(column["name"]), str(column["expression"])
    return name if expression == name else f"{expression} AS {name}"


def _ordered(order: dict[str, Any]) -> str:
    return f"{order['expression']} {'DESC' if order['descending'] else 'ASC'}"
