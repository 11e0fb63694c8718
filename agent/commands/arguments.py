"""Converts arguments from text, with checks. Each raises `UsageError` that names the flag, what it expects and what was given."""

from __future__ import annotations

import os
from collections.abc import Sequence

from elf.agent.config import units
from elf.errors import UsageError
from elf.sinks import spec
from elf.sinks.spec import SinkSpec

QUERY_MAX = 1 << 16
"""Characters of a query in a file."""
MEMORY_MIN = 1 << 20
"""A smaller number is probably a forgotten unit: the run would spill every few lines."""


def checked_timezone(name: str, flag: str = "--timezone") -> str:
    """The name of a time zone that exists. Raises `UsageError`."""
    if name == "UTC":
        return name
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name).key
    except (KeyError, ValueError, OSError) as error:
        city = name.lower().replace(" ", "_")
        meant = min(
            (zone for zone in available_timezones() if zone.lower().split("/")[-1] == city), default=""
        )
        hint = f"; did you mean {meant}?" if meant else ""
        raise UsageError(f'{flag}: expected a name like "Europe/Berlin", found {name!r}{hint}') from error


def report_query(name: str) -> str:
    """The SQL of `--report`. Raises `UsageError`."""
    from elf.jobmaster.compile.reports import REPORTS

    if name not in REPORTS:
        raise UsageError(f"--report: expected {', '.join(REPORTS)} or all, found {name!r}")
    return REPORTS[name]


def is_query(text: str) -> bool:
    """Whether this is the text of a query, and no name of a file."""
    return text.lstrip("( \t\n")[:6].upper().startswith(("SELECT", "WITH ", "WITH\n", "--", "/*"))


def query_of(report: str | None, file: str | None) -> str:
    """The SQL of `--report`, or that in the `--file`. Raises `UsageError`."""
    if report is not None:
        return report_query(report)
    assert file is not None
    try:
        with open(file, encoding="utf-8-sig") as opened:
            text = opened.read(QUERY_MAX + 1)
    except OSError as error:
        raise UsageError(f"--file: {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--file: {file}: is not text in UTF-8, so it is no query") from error
    if len(text) > QUERY_MAX or not text.strip():
        why = "is empty" if not text.strip() else f"has more than {QUERY_MAX:,} characters"
        raise UsageError(f"--file: {file}: {why}, so it is no query")
    return text


def values_of(texts: Sequence[str], flag: str = "--param") -> dict[str, str]:
    """Values of a query's parameters, as NAME=VALUE. Raises `UsageError`."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"{flag}: expected NAME=VALUE, found {text!r}")
        if name in values:
            raise UsageError(f"{flag}: {name} is given twice")
        values[name] = value
    return values


def moment(flag: str, text: str | None, now_us: int, zone: str) -> int | None:
    """The time of `--since` or `--until`, microseconds since 1970. Raises `UsageError`."""
    try:
        return None if text is None else units.moment_us(text, now_us=now_us, timezone=zone)
    except ValueError as error:
        raise UsageError(f"{flag}: expected {error}, found {text!r}") from error


def bounds_of(since: str | None, until: str | None, now_us: int, zone: str) -> tuple[int | None, int | None]:
    """The times of `--since` and `--until`. Raises `UsageError`."""
    since_us, until_us = moment("--since", since, now_us, zone), moment("--until", until, now_us, zone)
    if since_us is not None and until_us is not None and since_us >= until_us:
        raise UsageError(f"--since: {since} is not before --until {until}; no line can be between them")
    return since_us, until_us


def duration(flag: str, text: str | None, least: str = "0s") -> int | None:
    """Microseconds of a duration, at least `least`. Raises `UsageError`."""
    try:
        value = None if text is None else units.duration_us(text)
    except ValueError as error:
        raise UsageError(f"{flag}: expected {error}, found {text!r}") from error
    if value is not None and value < units.duration_us(least):
        raise UsageError(f"{flag}: expected at least {least}, found {text!r}")
    return value


def memory(text: str | None) -> int:
    """Bytes of `--memory-max`; without it half of the machine's memory. Raises `UsageError`."""
    if text is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    try:
        size = units.size(text)
    except ValueError as error:
        raise UsageError(f"--memory-max: expected {error}, found {text!r}") from error
    if size < MEMORY_MIN:
        raise UsageError(f"--memory-max: expected at least 1MiB, found {text!r}; a bare number means bytes")
    return size


def sink_specs(texts: Sequence[str]) -> list[SinkSpec]:
    """The sinks of `--sink`. Raises `UsageError`."""
    try:
        return [spec.parse(text) for text in texts]
    except ValueError as error:
        raise UsageError(f"--sink: expected {error}, found {', '.join(texts)!r}") from error
