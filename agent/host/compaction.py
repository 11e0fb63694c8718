"""Keeps lakes in few files, and as long as they are to be kept: once an hour, the small files of past hours become one, old days
get longer windows, and older ones expire, while the agent keeps working."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

import msgspec

from elf.agent.config.units import Age, Coarser
from elf.sinks.lake.frames import CompactFrame, Level

EVERY_S = 3600.0
AGE_US = 3_600_000_000
"""Time after the end of an hour until its files are compacted: by then few late lines are expected, each of which would make a
small file again."""


class Care(msgspec.Struct, frozen=True):
    """What is done for a lake. keep: the age at which its days expire; None: never. compact_after_us: that at which a day becomes
    one file. coarsen: those at which its windows become longer."""

    folder: Path
    keep: Age | None = None
    compact_after_us: int | None = None
    coarsen: tuple[Coarser, ...] = ()

    def request(self, now_us: int, late_us: int = 0) -> CompactFrame:
        """What its writer does at that time. late_us: how long after its end a window may be revised, and so stays as it is."""
        levels = (
            Level(each.pane_us, min(each.after.before(now_us), now_us - late_us), each.job)
            for each in self.coarsen
        )
        days_before = None if self.compact_after_us is None else now_us - self.compact_after_us
        expire_before = None if self.keep is None else self.keep.before(now_us)
        return CompactFrame(str(self.folder), now_us - AGE_US, days_before, expire_before, tuple(levels))


class Compaction:
    """The lakes of one agent. `look` is called often and costs nothing; a child process does the work and a
    thread waits for it, so lines are read meanwhile."""

    def __init__(
        self,
        lakes: Sequence[Care],
        moment: float,
        every_s: float = EVERY_S,
        late_us: Callable[[], int] = lambda: 0,
    ) -> None:
        """moment: seconds of a clock that does not go back, the same one as in `look`. late_us: see `Care.request`."""
        self._late_us = late_us
        self._lakes, self._every_s, self._next = list(lakes), every_s, moment + every_s
        self._thread: Thread | None = None
        self._failures: list[str] = []

    def look(self, moment: float, now_us: int) -> list[str]:
        """Start if it is due. Returns failures since the last call, one line each; a failure loses no data."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
        if self._lakes and self._thread is None and moment >= self._next:
            self._next = moment + self._every_s
            late_us = self._late_us()
            requests = [lake.request(now_us, late_us) for lake in self._lakes]
            self._thread = Thread(target=self._compact, args=(requests,), daemon=True)
            self._thread.start()
        failures, self._failures = self._failures, []
        return failures

    def wait(self) -> None:
        """Wait until a started compaction is done."""
        if self._thread is not None:
            self._thread.join()

    def _compact(self, requests: Sequence[CompactFrame]) -> None:
        from elf.sinks.lake.parquet import care_for, cause

        for request in requests:
            try:
                care_for(request)
            except OSError as error:
                self._failures.append(
                    f"lake {request.directory}: {cause(error)}; its small files and old days stay until the next hour"
                )
