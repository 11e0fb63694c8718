"""Which sinks take a job that does not name them: those whose agents say so, by patterns of jobs' names."""

from __future__ import annotations

from elf.jobmaster.delivery.outbox import Target
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import decode_agent
from elf.srt.messages.ids import NodeId
from elf.srt.messages.patterns import is_named

TAKERS_MAX = 16
"""Sinks of one job, besides those that it names: with 16 of these, 32 of the outbox's bounds of memory."""


class Taking:
    """Of all agents in the directory; shared by the seats of a node. The adverts are read once after each change."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._digest = -1
        self._found: list[tuple[str, NodeId, tuple[str, ...], bool]] = []

    def of(self, job: str) -> list[Target]:
        """One for each name of a sink, by name: the node with the lowest id that serves it. O(sinks with patterns)."""
        if self._digest != self._directory.digest:
            self._digest = self._directory.digest
            self._found = sorted(self._read())
        targets: dict[str, Target] = {}
        for name, node, patterns, takes_rows in self._found:
            if name not in targets and is_named(job, patterns):
                targets[name] = Target(name, node, takes_rows, takes_all=True)
        return list(targets.values())[:TAKERS_MAX]

    def _read(self) -> list[tuple[str, NodeId, tuple[str, ...], bool]]:
        adverts = ((item.name, decode_agent(item)) for item in self._directory.items("agent"))
        return [
            (name, node, patterns, name in advert.streams)
            for node, advert in adverts
            if not advert.until_us
            for name, patterns in advert.takes
        ]
