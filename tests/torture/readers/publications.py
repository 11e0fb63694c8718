"""A publication of a window: one revision, with its rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.torture.oracle import Count, Group

Revision = tuple[int, str, int]


@dataclass
class Publication:
    """where: the reader that received it. is_all: `rows` are all of the window, not only changed ones. at_s: when it was
    received, if known."""

    where: str
    job: str
    start_s: int
    status: str
    revision: Revision
    reporting: int
    expected: int
    lines_read: int
    lines_rejected: int
    lines_late: int
    is_all: bool
    at_s: float | None = None
    rows: dict[Group, Count] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether it claims to hold every line of its window."""
        is_over = self.status in {"final", "revised"}
        return is_over and self.reporting == self.expected and not self.lines_late and not self.lines_rejected

    def __str__(self) -> str:
        epoch, node, n = self.revision
        said = f"{self.status} {self.reporting}/{self.expected} at revision {epoch}.{node[:6]}.{n}"
        return f"{self.job} {self.start_s} {said} ({self.where})"
