"""`elf verify`: a job's windows in a lake against its own text, run by Spark over the raw logs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elf.agent.commands.arguments import bounds_of, checked_timezone
from elf.errors import UsageError

if TYPE_CHECKING:
    from elf.agent.spark.verify import Verified

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def verify_command(
    job: str,
    lake: Path,
    logs: Sequence[str],
    since: str | None,
    until: str | None,
    format: str,
    timezone: str,
    master: str | None,
) -> int:
    """Print what agrees and what differs. Returns the exit code: 1 if anything differs. Raises ElfError."""
    from elf.agent.spark.logs import found
    from elf.sinks.lake.layout import existing_tables

    zone = checked_timezone(timezone)
    bounds = bounds_of(since, until, time.time_ns() // 1_000, zone)
    existing_tables(lake, job)  # mistakes are refused before Spark starts
    found(logs, format, zone)
    from elf.agent.spark.verify import verify
    from elf.sinks.report.run import one_line_errors
    from elf.sinks.report.spark import session

    spark = session(master, "elf verify")
    with one_line_errors():
        answer = verify(
            spark, lake, job, list(logs), since=bounds[0], until=bounds[1], format=format, timezone=zone
        )
    if not answer.windows:
        raise UsageError(f"job {job}: neither the lake nor the logs have a window in that time")
    print("\n".join(lines_of(answer)))
    return 0 if answer.equal == answer.windows else 1


def lines_of(answer: Verified) -> list[str]:
    """The lines of the report."""
    span = f" from {moment(answer.since)} to {moment(answer.until)}" if answer.since is not None else ""
    count = f"{answer.windows:,} window{'s' if answer.windows != 1 else ''}"
    lines = [f"job {answer.job}, version {answer.version}: {count}{span}"]
    differ = answer.windows - answer.equal
    lines.append("all equal" if not differ else f"{answer.equal:,} equal, {differ:,} DIFFER")
    lines.append(
        f"lines in the lake: {answer.parsed:,} parsed, {answer.rejected:,} rejected, {answer.late:,} late"
    )
    if answer.incomplete:
        lines.append(f"windows that lack an agent: {answer.incomplete:,}")
    lines.append(f"compared: {', '.join(answer.columns)}")
    lines += [f"not compared: {name} ({reason})" for name, reason in answer.left_out]
    for row in answer.rows:
        times = f", {row.count} times" if row.count > 1 else ""
        lines.append(f"only in the {row.side}{times}: {', '.join(shown(value) for value in row.values)}")
    return lines


def shown(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%SZ}"
    if isinstance(value, tuple) and len(value) == 2:  # a window
        return f"{shown(value[0])}/{shown(value[1])}"
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    return "NULL" if value is None else str(value)


def moment(at: int | None) -> str:
    return shown(EPOCH + timedelta(microseconds=at or 0))
