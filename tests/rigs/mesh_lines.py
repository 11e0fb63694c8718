"""Lines of a virtual log, the rows that a worker makes of them, and the windows they belong to, by dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from elf.agent.simulator.world.rows import Paths, RowMaker
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.directory.job_spec import Version
from elf.jobmaster.plan import codec as plans
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.values.sql_types import BIGINT, STRING, TIMESTAMP
from elf.srt.messages.partial import Part

SECOND = 1_000_000
PATHS = Paths([f"/page/{i}" for i in range(12)])
SOURCES = {"access": {"time": TIMESTAMP, "path": STRING, "bytes": BIGINT, "status": BIGINT}}

LogLine = tuple[int, int, int]
"""(event time in microseconds, number of the path, bytes)."""
Window = dict[str, tuple[int, int]]
"""Path -> (hits, bytes)."""


@lru_cache
def plan_of(window: str = "10 seconds", where: str = "") -> Plan:
    """The query that virtual lines can answer. `window` as in `window(time, …)`; "" for none."""
    grouped = (
        f"window(time, {', '.join(repr(part) for part in window.split('/'))}), path" if window else "path"
    )
    chosen = "window, path" if window else "path"
    return compile_query(
        f"SELECT {chosen}, count(*) AS hits, sum(bytes) AS bytes FROM access {where} GROUP BY {grouped}",
        SOURCES,
    )


def version_of(plan: Plan) -> Version:
    return Version(plans.digest(plan), plans.encode(plan), plan.sql)


@lru_cache
def maker_of(plan: Plan) -> RowMaker:
    return RowMaker(plan, PATHS)


def part_of(plan: Plan, lines: Sequence[LogLine]) -> Part:
    """The rows of some lines."""
    columns = np.array(lines, dtype=np.int64).reshape(len(lines), 3)
    return maker_of(plan)(columns[:, 0], columns[:, 1], columns[:, 2])


def window_of(lines: Iterable[LogLine], start: int, stop: int) -> Window:
    """What [start, stop) holds: one pass over the lines."""
    out: Window = {}
    for at, path, size in lines:
        if start <= at < stop:
            hits, total = out.get(PATHS.paths[path], (0, 0))
            out[PATHS.paths[path]] = (hits + 1, total + size)
    return out


def counts_of(rows: Iterable[tuple[object, ...]]) -> Window:
    """Published rows (…, path, hits, bytes) in the same form."""
    return {str(row[-3]): (int(str(row[-2])), int(str(row[-1]))) for row in rows}
