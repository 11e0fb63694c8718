"""The jobs of a run, as data for the command and for the oracle."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """keys: columns that group, of `agent`, `status` and `path`. limit: of rows by hits, then path. sinks: its lakes. receivers:
    its other sinks. only_pages: counts only answered pages. is_judged: False for a job that fails on purpose. least: if it
    changes, it counts statuses from this on. version, stretches: one of its versions, and the times [from, to) in milliseconds
    at which that is in force. unread: agents, and the times [from, to) in milliseconds in which their lines may be missing,
    because a change had lines read again that only they could read, and they were taken out for good, or another process held
    their key."""

    name: str
    keys: tuple[str, ...]
    size_s: int
    slide_s: int
    sinks: tuple[str, ...] = ()
    receivers: tuple[str, ...] = ()
    has_bytes: bool = False
    only_pages: bool = False
    limit: int = 0
    is_judged: bool = True
    hits: str = "hits"
    least: int | None = None
    version: str = ""
    stretches: tuple[tuple[float, float], ...] = ()
    unread: tuple[tuple[str, float, float], ...] = ()

    def is_in_force(self, at_ms: int) -> bool:
        return not self.stretches or any(low <= at_ms < high for low, high in self.stretches)

    def is_read(self, agent: str, at_ms: int) -> bool:
        """Whether a line of that agent and time must count."""
        return not any(name == agent and low <= at_ms < high for name, low, high in self.unread)

    def counts(self, status: int, path: str) -> bool:
        """Whether its query counts such a line."""
        return status >= (self.least or 0) and not (self.only_pages and (status >= 400 or not path))

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
        where = where if self.least is None else "WHERE status >= :least "
        slide = f", '{self.slide_s} seconds'" if self.slide_s != self.size_s else ""
        window = f"window(time, '{self.size_s} seconds'{slide})"
        order = f" ORDER BY {self.hits} DESC, {', '.join(self.keys)} LIMIT {self.limit}" if self.limit else ""
        return f"SELECT {columns} FROM access {where}GROUP BY {window}, {', '.join(self.keys)}{order}"


JOBS = (
    Job("agents", ("agent", "status"), 5, 5, ("east", "west"), ("broker", "hook"), has_bytes=True),
    Job("paths", ("path",), 10, 5, ("west",), ("hook",), only_pages=True, limit=7),
    Job("totals", ("status",), 10, 10),
)
CHANGING = Job("changing", ("status",), 5, 5, ("east",), has_bytes=True, least=200)
"""The job that operators change."""
DOOMED = Job("doomed", ("status",), 5, 5, is_judged=False, hits="doomed")
"""The job that the bug affects; the bug recognises it by its column."""
