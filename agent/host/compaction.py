"""Keeping lakes in few files: once an hour the small files of hours that are over become one, beside the agent's own work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Thread

EVERY_S = 3600.0
AGE_US = 3_600_000_000
"""How long an hour must be over: by then few late lines are to be expected, and each of them would be a file again."""


class Compaction:
    """The lakes of one agent. `look` is called often and costs nothing; the work is done by a child process, and a thread
    waits for it, so lines are read meanwhile."""

    def __init__(self, lakes: Sequence[Path], moment: float, every_s: float = EVERY_S) -> None:
        """moment: seconds of a clock that does not go back, the same one as in `look`."""
        self._lakes, self._every_s, self._next = list(lakes), every_s, moment + every_s
        self._thread: Thread | None = None
        self._failures: list[str] = []

    def look(self, moment: float, now_us: int) -> list[str]:
        """Start when it is time; returns what went wrong since the last call, one line each. Nothing is lost by that."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
        if self._lakes and self._thread is None and moment >= self._next:
            self._next = moment + self._every_s
            self._thread = Thread(target=self._compact, args=(now_us - AGE_US,), daemon=True)
            self._thread.start()
        failures, self._failures = self._failures, []
        return failures

    def wait(self) -> None:
        """Until what was started is done."""
        if self._thread is not None:
            self._thread.join()

    def _compact(self, older_than_us: int) -> None:
        from elf.sinks.lake.parquet import cause, compact

        for folder in self._lakes:
            try:
                compact(folder, older_than_us)
            except OSError as error:
                self._failures.append(
                    f"lake {folder}: {cause(error)}; its small files stay until the next hour"
                )
