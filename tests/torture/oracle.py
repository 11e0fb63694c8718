"""The reference: one pass of plain Python over the logs that were never rotated.

Where a line may be counted or not by the nature of things, a count has two ends: `least`, the lines that everybody must see, and
`most`, all that were logged. copytruncate loses lines between its copy and its truncation, but whoever reads the log as it
grows may have seen them; and of an agent whose keys were taken back nobody says up to which line it was believed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tests.torture.jobs import Job
from tests.torture.rotation import open_text

TEXT = rb'"((?:[^"\\]|\\.)*)"'
PLAIN = re.compile(rb"(\d+\.\d{3}) \S+ " + TEXT + rb" (\d{3}) (\d+) " + TEXT)
COMBINED = re.compile(rb"\S+ \S+ .*? ?\[([^]]+)\] " + TEXT + rb" (\d{3}) (\d+|-) " + TEXT + b" " + TEXT)

Group = tuple[str | int, ...]


class Line(NamedTuple):
    """One line of a log. at_ms: its time. path: of a page's request, else ""."""

    at_ms: int
    agent: str
    status: int
    bytes: int
    path: str


class Count(NamedTuple):
    hits: int = 0
    bytes: int = 0


@dataclass
class Bounds:
    """One window: the minimum and maximum count of each group, and of all lines."""

    least: dict[Group, Count] = field(default_factory=dict)
    most: dict[Group, Count] = field(default_factory=dict)
    lines_most: int = 0

    @property
    def is_exact(self) -> bool:
        return self.least == self.most


@lru_cache(maxsize=4_096)
def _second(text: bytes) -> int:
    return int(datetime.strptime(text.decode(), "%d/%b/%Y:%H:%M:%S %z").timestamp()) * 1_000


def _page(request: bytes) -> str:
    parts = request.split(b" ")
    return parts[1].partition(b"?")[0].decode() if len(parts) == 3 and parts[1].startswith(b"/p/") else ""


def parse(text: bytes, agent: str, *, is_plain: bool) -> Iterator[Line]:
    """Lines of a log. Raises ValueError for a line that cannot be parsed: no server here writes one."""
    form = PLAIN if is_plain else COMBINED
    for line in text.split(b"\n")[:-1]:
        match = form.fullmatch(line)
        if match is None:
            raise ValueError(f"{agent}: the oracle cannot read {line!r}")
        at, request, status, size = match.group(1, 2, 3, 4)
        at_ms = int(at.replace(b".", b"")) if is_plain else _second(at)
        yield Line(at_ms, agent, int(status), 0 if size == b"-" else int(size), _page(request))


@dataclass(frozen=True)
class Log:
    """The logs of one agent. rotated: all that was ever visible of a log that is rotated with loss; empty if no line can be lost.
    doubtful_ms: lines from then on may count or not."""

    agent: str
    oracle: Path
    is_plain: bool
    rotated: tuple[Path, ...] = ()
    doubtful_ms: int | None = None

    def most(self) -> list[Line]:
        return (
            list(parse(self.oracle.read_bytes(), self.agent, is_plain=self.is_plain))
            if self.oracle.exists()
            else []
        )

    def least(self, most: list[Line]) -> list[Line]:
        lines = most
        if self.rotated:
            text = b"".join(open_text(str(path)) for path in self.rotated)
            lines = list(parse(text, self.agent, is_plain=self.is_plain))
        until = self.doubtful_ms
        return lines if until is None else [line for line in lines if line.at_ms < until]


class Oracle:
    """All lines of a run, and the content of each job's windows. `lost`: lines that copytruncate lost, by agent."""

    def __init__(self, logs: Iterable[Log]) -> None:
        self.most: list[Line] = []
        self.least: list[Line] = []
        self.lost: dict[str, int] = {}
        for log in logs:
            most = log.most()
            least = log.least(most)
            self.most += most
            self.least += least
            if log.rotated:
                self.lost[log.agent] = len(most) - len(log.least(most))

    def windows(self, job: Job, *, as_panes: bool = False) -> dict[int, Bounds]:
        """The expected windows by their start in seconds; or the panes of a lake, whose length is the slide."""
        size_s = job.slide_s if as_panes else job.size_s
        windows: dict[int, Bounds] = defaultdict(Bounds)
        most = [line for line in self.most if job.is_in_force(line.at_ms)]
        sure = [line for line in self.least if job.is_read(line.agent, line.at_ms)]
        least = [line for line in sure if job.is_in_force(line.at_ms)]
        for start, counts in _count(most, job, size_s).items():
            windows[start].most = counts
        for start, counts in _count(least, job, size_s).items():
            windows[start].least = counts
        for line in most:
            for start in _starts(line.at_ms, size_s, job.slide_s):
                windows[start].lines_most += 1
        return dict(windows)


def _starts(at_ms: int, size_s: int, slide_s: int) -> Iterator[int]:
    """The starts of the windows that contain the time."""
    start = at_ms // 1_000 // slide_s * slide_s
    while start > at_ms / 1_000 - size_s:
        yield start
        start -= slide_s


def _count(lines: Iterable[Line], job: Job, size_s: int) -> dict[int, dict[Group, Count]]:
    hits: dict[int, Counter[Group]] = defaultdict(Counter)
    sizes: dict[int, Counter[Group]] = defaultdict(Counter)
    for line in lines:
        if not job.counts(line.status, line.path):
            continue
        group = tuple(getattr(line, key) for key in job.keys)
        for start in _starts(line.at_ms, size_s, job.slide_s):
            hits[start][group] += 1
            sizes[start][group] += line.bytes if job.has_bytes else 0
    return {
        start: {group: Count(count, sizes[start][group]) for group, count in counts.items()}
        for start, counts in hits.items()
    }


def top(groups: dict[Group, Count], limit: int) -> dict[Group, Count]:
    """The groups that a LIMIT leaves: the most hits, then the order of the keys."""
    if not limit:
        return groups
    return dict(sorted(groups.items(), key=lambda item: (-item[1].hits, item[0]))[:limit])
