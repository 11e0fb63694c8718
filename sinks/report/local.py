"""Reports of small lakes without Spark: merged by the engine's own trees, in this process, within a second or two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from elf.errors import PeerError
from elf.jobmaster.plan.plan import Column, Key, Output, Plan
from elf.jobmaster.values.sql_types import BIGINT, TIMESTAMP
from elf.jobmaster.values.zones import DAY_US
from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.lake.every import Every, Span
from elf.sinks.lake.stored import Stored
from elf.sinks.lake.theta import Hashes
from elf.sinks.report import builtin, local_read
from elf.sinks.report.rows import Rows
from elf.sinks.report.run import NO_BOUNDS, Bounds, Keys, Run

SMALL_BYTES = 40 << 20
"""Lakes up to this size are merged without Spark: 40 MB of 6 million rows take 30 s of one core here, and 55 s in Spark on two
(benchmarks/report.py). With more cores Spark is faster from there on."""
_SHARE = Decimal("0.01")

Sums = tuple[int, int | None]
"""Requests and bytes; no bytes where no line had any."""


def is_small(folder: Path) -> bool:
    """Whether this process merges the lake itself: its size is small, and its plans are of this version of elf."""
    try:
        return local_read.size(folder) <= SMALL_BYTES and all(
            local_read.plan_of(stored) for stored in local_read.stored_jobs(folder)
        )
    except PeerError:
        return False


class LocalRun(Run):
    """A report without a session. Its answers are those of `Run`."""

    def __init__(
        self,
        folder: Path,
        lake: str,
        every: Every | None,
        zone: str,
        say: Callable[[str], None],
        bounds: Bounds = NO_BOUNDS,
    ) -> None:
        self._folder = folder
        super().__init__(None, lake, every, zone, say, bounds)  # type: ignore[arg-type]

    def _find(self) -> list[Stored]:
        return local_read.stored_jobs(self._folder)

    def _count(self, stored: Stored) -> tuple[Any, ...]:
        return local_read.counted(stored)

    def _find_incomplete(self, stored: Stored) -> list[Span]:
        return local_read.incomplete(stored) if self._counters(stored)[-1] else []

    def _results(self, stored: Stored) -> Rows:
        plan = local_read.plan_of(stored)
        columns = tuple(ColumnInfo(output.name, str(output.type)) for output in plan.select)
        return columns, local_read.results(stored, plan, self.every)

    def _sets_by_day(self, stored: Stored, column: str) -> Iterator[tuple[int, Hashes]]:
        return local_read.sets_by_day(stored, column, Every(DAY_US, self.zone))

    def _answer(self, each: builtin.Report, versions: Sequence[Stored], keys: Keys | None = None) -> Rows:
        merged: dict[tuple[int | None, Any], Sums] = {}
        for stored in versions:
            for start, key, *measured in self._measured(each, stored):
                if keys is not None and key not in keys:
                    continue
                found = dict(zip(each.needs, measured, strict=True))
                sums = (found.get("requests") or 0, found.get("bytes"))
                merged[start, key] = _plus(merged.get((start, key), (0, None)), sums)
        return _ANSWERS[each.chart](each, merged)

    def _measured(self, each: builtin.Report, stored: Stored) -> Iterator[tuple[Any, ...]]:
        """(start or None, key or None, the measures that the report needs) of each group of a version."""
        plan, at = local_read.plan_of(stored), builtin.key_index(stored, each.key) if each.key else None
        found = [builtin.measure(stored, needed) for needed in each.needs]
        numbers = [stored.recipe["aggregates"].index(measure) for measure in found]
        outputs = [Output(f"m{n}", Column(f"#a{n}", BIGINT), BIGINT) for n in numbers]
        keys: tuple[Key, ...] = () if at is None else (plan.keys[at],)
        if at is not None:
            outputs.insert(0, Output("key", Column("#k0", keys[0].expression.type), keys[0].expression.type))
        if each.every_us is not None:
            outputs.insert(0, Output("start", Column("#window_start", TIMESTAMP), TIMESTAMP))
        short = replace(
            plan, keys=keys, families=(), having=None, order=(), limit=None, select=tuple(outputs)
        )
        every = Every(each.every_us, self.zone) if each.every_us is not None else None
        for row in local_read.results(
            stored, _only(short, numbers), every, {0: at} if at is not None else {}
        ):
            cells = list(row)
            start = cells.pop(0) if every is not None else None
            key = cells.pop(0) if at is not None else None
            yield (start, key, *cells)


def _only(plan: Plan, numbers: Sequence[int]) -> Plan:
    """The plan with other aggregates replaced, which may need families that it has not any more."""
    kept = [each if n in numbers else plan.aggregates[numbers[0]] for n, each in enumerate(plan.aggregates)]
    return replace(plan, aggregates=tuple(kept))


def _plus(a: Sums, b: Sums) -> Sums:
    sent = b[1] if a[1] is None else a[1] if b[1] is None else a[1] + b[1]
    return a[0] + b[0], sent


# The built-in reports, from (start, key) -> sums: as their SQL.

Merged = dict[tuple[int | None, Any], Sums]


def _by(merged: Merged, name: Callable[[int | None, Any], Any]) -> dict[Any, Sums]:
    out: dict[Any, Sums] = {}
    for (start, key), sums in merged.items():
        at = name(start, key)
        out[at] = _plus(out.get(at, (0, None)), sums)
    return out


def _by_time(each: builtin.Report, merged: Merged) -> Rows:
    column, measure = each.select
    found = _by(merged, lambda start, key: start)
    rows = [(start, sums[each.needs[0] == "bytes"]) for start, sums in sorted(found.items())]
    return (ColumnInfo(column, "timestamp"), ColumnInfo(measure, "bigint")), rows[: each.limit]


def _classes(each: builtin.Report, merged: Merged) -> Rows:
    def name(start: int | None, key: Any) -> Any:
        return start, f"{key // 100}xx" if key is not None and 100 <= key <= 599 else "other"

    rows = [(*at, requests) for at, (requests, _) in sorted(_by(merged, name).items())]
    types = ("timestamp", "string", "bigint")
    return tuple(map(ColumnInfo, each.select, types)), rows[: each.limit]


def _errors(each: builtin.Report, merged: Merged) -> Rows:
    counts: dict[Any, list[int]] = {}
    for (start, key), (requests, _) in merged.items():
        row = counts.setdefault(start, [0, 0, 0])
        row[0] += requests
        if key is not None and 400 <= key <= 599:
            row[key // 100 - 3] += requests
    rows = [
        (start, *row, _percent(row[1], row[0]), _percent(row[2], row[0]))
        for start, row in sorted(counts.items())
    ]
    names = [sql.rpartition(" ")[2] for sql in each.select]
    types = ("timestamp", "bigint", "bigint", "bigint", "decimal(5,2)", "decimal(5,2)")
    return tuple(map(ColumnInfo, names, types)), rows[: each.limit]


def _percent(part: int, whole: int) -> Decimal | None:
    return Decimal(repr(100 * part / whole)).quantize(_SHARE, ROUND_HALF_UP) if whole else None


def _paths(each: builtin.Report, merged: Merged) -> Rows:
    found = _by(merged, lambda start, key: key)
    rows = sorted(found.items(), key=lambda item: (-item[1][0], item[0] is not None, item[0] or ""))
    columns = (ColumnInfo(each.select[0], "string"), ColumnInfo(each.select[1], "bigint"))
    return columns, [(path, requests) for path, (requests, _) in rows[: each.limit]]


_ANSWERS: dict[str, Callable[[builtin.Report, Merged], Rows]] = {
    "columns": _by_time,
    "stacked": _classes,
    "lines": _errors,
    "bars": _paths,
}
"""By the kind of the report's chart."""
