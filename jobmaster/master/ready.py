"""A window that was read and is ready to be published: as an entry of the log, and for sinks and watchers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from elf.jobmaster.log.entries import Final, Revision
from elf.jobmaster.log.job_state import WindowKey
from elf.jobmaster.master.window_rule import Coverage
from elf.jobmaster.windows.result import Lines
from elf.srt.messages.ids import JobId
from elf.srt.messages.messages import Ballot, Micros
from elf.srt.messages.results import PaneParts, Put


class Ready(msgspec.Struct, frozen=True):
    """A window's result, read at entry `at`. size_us: the window's size; 0 for the one window of a query without windows."""

    key: WindowKey
    size_us: Micros
    covers: tuple[Micros, Micros]
    status: str
    revision: Revision
    coverage: Coverage
    rows: Sequence[tuple[Any, ...]]
    lines: Lines
    digest: int
    at: int
    panes: tuple[PaneParts, ...] = ()
    others: int = 0

    @property
    def entry(self) -> Final:
        version, start = self.key
        about = (self.revision, self.digest, *self.coverage, self.at, self.covers, self.status != "final")
        return Final(version, start, *about)

    def as_put(self, job: JobId, ballot: Ballot) -> Put:
        """The message to sinks and watchers."""
        version, start = self.key
        return Put(
            job,
            ballot,
            version,
            start,
            start + self.size_us,
            self.covers,
            self.status,
            self.revision,
            self.digest,
            *self.coverage,
            self.lines.counts,
            self.rows,
            self.panes,
            others=self.others,
            not_converted=self.lines.not_converted,
        )
