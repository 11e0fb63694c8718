"""The table [limits] of a job file, and of an agent's file, where it holds for every job."""

from __future__ import annotations

import re
from typing import Any

from elf.agent.config import units
from elf.agent.config.specs import read_cores
from elf.agent.config.toml_values import Key, meant_key, read_choice
from elf.jobmaster.directory.limits import Limits

GROUPS_EXPECTED = "a whole number above 0"
RATE_EXPECTED = 'bytes a second, like "512KiB"'
MICROS = 1_000_000


def read_groups(value: Any) -> int:
    """Raises ValueError with what was expected."""
    if isinstance(value, bool) or not re.fullmatch("[1-9][0-9]{0,17}", str(value)):
        raise ValueError(GROUPS_EXPECTED)
    return int(value)


def read_rate(value: Any) -> int:
    """Raises ValueError with what was expected."""
    try:
        rate = units.size(str(value))
    except ValueError:
        rate = 0
    if not rate:
        raise ValueError(RATE_EXPECTED)
    return rate


CAP_KEYS = {"groups": Key(read_groups, 0), "bytes": Key(read_rate, 0), "processor": Key(read_cores, 0.0)}
"""The keys of the table in an agent's file."""


def limits_of(values: dict[str, Any]) -> Limits:
    """Limits from the values of `CAP_KEYS`, and of `over`."""
    is_other = values.get("over") == "other"
    return Limits(values["groups"], is_other, values["bytes"], round(values["processor"] * MICROS))


def read_limits(value: Any) -> Limits:
    """The table of a job file. Raises ValueError with what was expected."""
    keys = CAP_KEYS | {"over": Key(lambda over: read_choice(("fail", "other"), over), "fail")}
    if not isinstance(value, dict):
        raise ValueError(f"a table [limits] with {', '.join(keys)}")
    found = {name: key.default for name, key in keys.items()}
    for name, each in value.items():
        if name not in keys:
            raise ValueError(f"other keys than {name}; {meant_key(name, list(keys))}")
        try:
            found[name] = keys[name].read(each)
        except ValueError as error:
            raise ValueError(f"{name} = {error}") from error
    if found["over"] == "other" and not found["groups"]:
        raise ValueError('groups = N beside over = "other"')
    return limits_of(found)


def limits_text(limits: Limits) -> str:
    """Limits on one line; "none" without any."""
    found = []
    if limits.groups:
        found.append(f"{limits.groups:,} groups{', the rest as one row' * limits.others}")
    if limits.sent_bytes:
        found.append(f"{units.size_text(limits.sent_bytes)}/s sent")
    if limits.cpu_us:
        found.append(f"{limits.cpu_us / MICROS:g} cores")
    return ", ".join(found) or "none"


def limits_table(limits: Limits) -> list[str]:
    """The lines of the table in a job file; none without limits."""
    found = {
        "groups": str(limits.groups) if limits.groups else "",
        "over": '"other"' if limits.others else "",
        "bytes": str(limits.sent_bytes) if limits.sent_bytes else "",
        "processor": f"{limits.cpu_us / MICROS!r}" if limits.cpu_us else "",
    }
    lines = [f"{name} = {value}" for name, value in found.items() if value]
    return ["", "[limits]", *lines] if lines else []
