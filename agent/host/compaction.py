"""Keeps lakes in few files, and as long as they are to be kept: once an hour, the small files of past hours become one, and old
days expire, while the agent keeps working."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import msgspec

from elf.agent.config.units import Age
from elf.sinks.lake.frames import CompactFrame

EVERY_S = 3600.0
AGE_US = 3_600_000_000
"""Time after the end of an hour until its files are compacted: by then few late lines are expected, each of which would make a
small file again."""


class Care(msgspec.Struct, frozen=True):
    """What is done for a lake. keep: the age at which its days expire; None: never. compact_after_us: that at which a day becomes
    one file."""

    folder: Path
    keep: Age | None = None
    compact_after_us: int | None = None

    def request(self, now_us: int) -> CompactFrame:
        """What its writer does at that time."""
        days_before = None if self.compact_after_us is None else now_us - self.compact_after_us
        expire_before = None if self.keep is None else self.keep.before(now_us)
        return CompactFrame(str(self.folder), now_us - AGE_US, days_before, expire_before)


class Compaction:
    """The lakes of one agent. `look` is called often and costs nothing; a child process does the work and a
    thread waits for it, so lines are read meanwhile."""

    def __init__(self, lakes: Sequence[Care], moment: float, every_s: float = EVERY_S) -> None:
        """moment: seconds of a clock that does not go back, the same one as in `look`."""
        self._lakes, self._every_s, self._next = list(lakes), every_s, moment + every_s
        self._thread: Thread | None = None
        self._failures: list[str] = []

    def look(self, moment: float, now_us: int) -> list[str]:
        """Start if it is due. Returns failures since the last call, one line each; a failure loses no data."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
        if self._lakes and self._thread is None and moment >= self._next:
            self._next = moment + self._every_s
            self._thread = Thread(target=self._compact, args=(now_us,), daemon=True)
            self._thread.start()
        failures, self._failures = self._failures, []
        return failures

    def wait(self) -> None:
        """Wait until a started compaction is done."""
        if self._thread is not None:
            self._thread.join()

    def _compact(self, now_us: int) -> None:
        from elf.sinks.lake.parquet import care_for, cause

        for lake in self._lakes:
            try:
                care_for(lake.request(now_us))
            except OSError as error:
                self._failures.append(
                    f"lake {lake.folder}: {cause(error)}; its small files and old days stay until the next hour"
                )
