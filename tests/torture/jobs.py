"""The jobs of a run, as data for the command and for the oracle."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """keys: columns that group, of `agent`, `status` and `path`. limit: of rows by hits, then path. sinks: its lakes. only_pages:
    counts only answered pages. is_judged: False for a job that fails on purpose."""

    name: str
    keys: tuple[str, ...]
    size_s: int
    slide_s: int
    sinks: tuple[str, ...] = ()
    has_bytes: bool = False
    only_pages: bool = False
    limit: int = 0
    is_judged: bool = True
    hits: str = "hits"

    @property
    def sql(self) -> str:
        columns = ", ".join(
            [
                "window",
                *self.keys,
                f"count(*) AS {self.hits}",
                *(["sum(bytes) AS bytes"] if self.has_bytes else []),
            ]
        )
        where = "WHERE status < 400 AND path LIKE '/p/%' " if self.only_pages else ""
        slide = f", '{self.slide_s} seconds'" if self.slide_s != self.size_s else ""
        window = f"window(time, '{self.size_s} seconds'{slide})"
        order = f" ORDER BY {self.hits} DESC, {', '.join(self.keys)} LIMIT {self.limit}" if self.limit else ""
        return f"SELECT {columns} FROM access {where}GROUP BY {window}, {', '.join(self.keys)}{order}"


JOBS = (
    Job("agents", ("agent", "status"), 5, 5, ("east", "west"), has_bytes=True),
    Job("paths", ("path",), 10, 5, ("west",), only_pages=True, limit=7),
    Job("totals", ("status",), 10, 10),
)
DOOMED = Job("doomed", ("status",), 5, 5, is_judged=False, hits="doomed")
"""The job that the bug affects; the bug recognises it by its column."""
