"""Log formats by name, by a server's own format string, from its configuration, or by detection."""

from __future__ import annotations

from difflib import get_close_matches

from elf.agent.fields import Convert, Format
from elf.agent.presets import PRESETS
from elf.errors import FormatError
from elf.jobmaster.vector import BIGINT, MICROS, STRING, TIMESTAMP, SqlType

NAMES: tuple[str, ...] = tuple(PRESETS)

_TIMES = {convert for convert in Convert if convert.value.startswith("time_")} | {Convert.DATE}
_DURATIONS = {
    Convert.SECONDS,
    Convert.MILLISECONDS,
    Convert.MICROSECONDS,
    Convert.NANOSECONDS,
    Convert.SECONDS_LIST,
    Convert.DURATION,
}
_INTEGERS = {Convert.INT, Convert.STATUS}


def column_types(plan: Format) -> dict[str, SqlType]:
    """The SQL type of every column that `plan` can fill, plus `agent`. It is the source's schema for a query."""
    types = {column: type_of(convert) for column, convert in plan.columns().items()}
    return {**types, "agent": STRING}


def type_of(convert: Convert) -> SqlType:
    """The SQL type of a column that `convert` fills."""
    if convert in _TIMES:
        return TIMESTAMP
    if convert in _INTEGERS:
        return BIGINT
    return MICROS if convert in _DURATIONS else STRING


def resolve(spec: str, *, sample: bytes = b"") -> Format:
    """The format that `spec` names.

    Raises FormatError for a name that is unknown.
    """
    if spec in PRESETS:
        return PRESETS[spec]
    near = get_close_matches(spec, NAMES, n=1)
    meant = f"did you mean {near[0]}?" if near else "one of " + ", ".join(NAMES)
    raise FormatError(f"format {spec!r} is not known; {meant}")
