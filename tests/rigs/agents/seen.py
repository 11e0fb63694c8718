"""The windows that watchers of a job on real agents receive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elf.agent.control import protocol as w
from elf.agent.control.client import Control
from elf.errors import ElfError
from elf.srt.codec import wire
from elf.srt.messages.results import Put

WAIT_S = 60.0
"""No wait of a test takes longer, unless something is broken, also on a slow machine that does other work."""

Totals = dict[int, dict[int, tuple[int, int]]]
"""Start of a window in µs -> status -> (hits, bytes)."""


class Seen:
    """The windows of several watchers, each in a thread, together. If an agent ends, its watcher continues when that is back."""

    def __init__(self, path: Path, job: str, *more: Path) -> None:
        self.puts: list[tuple[float, Put]] = []
        """As they came, with the moment of `time.time`."""
        self.latest: dict[int, Put] = {}
        """Window start -> what holds for it. Replaced by a new dictionary, never changed: any thread may read it."""
        self._job = job
        self._changed = threading.Condition()
        self._is_closed = False
        self._controls: dict[Path, Control] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(each,), daemon=True) for each in (path, *more)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, path: Path) -> None:
        while not self._is_closed:
            try:
                self._listen(path)
            except (ElfError, OSError, ValueError):
                time.sleep(0.02)

    def _listen(self, path: Path) -> None:
        with Control(path) as control:
            self._controls[path] = control
            if self._is_closed:  # `close` may have looked for it before
                return
            for answer in control.ask(w.JobWatch(self._job)):
                if isinstance(answer, w.Published):
                    put = wire.decode(answer.put)
                    assert isinstance(put, Put)
                    self._take(put)

    def _take(self, put: Put) -> None:
        with self._changed:
            self.puts.append((time.time(), put))
            held = self.latest.get(put.start)
            is_final = held is not None and held.status == "open" and put.status != "open"
            if held is None or held.revision < put.revision or (is_final and held.revision[:2] < put.ballot):
                self.latest = {**self.latest, put.start: put}
            self._changed.notify_all()

    @property
    def final_starts(self) -> set[int]:
        return {start for start, put in self.latest.items() if put.status != "open"}

    @property
    def finals(self) -> int:
        """How many windows are final."""
        return len(self.final_starts)

    def wait(
        self,
        happened: Callable[[], bool],
        what: Callable[[], str] = lambda: "it did not happen",
        seconds: float = WAIT_S,
    ) -> None:
        """Until that holds, looked at after each window that comes."""
        with self._changed:
            assert self._changed.wait_for(happened, seconds), f"after {seconds:.0f} s: {what()}"

    def wait_finals(self, more: int = 1) -> None:
        """Until so many windows more are final than are now."""
        wanted = self.finals + more
        self.wait(lambda: self.finals >= wanted, lambda: f"{self.finals} windows are final, not {wanted}")

    def totals(self) -> Totals:
        """The totals in the windows of `SQL`."""
        return {start: totals_of(put) for start, put in sorted(self.latest.items())}

    def close(self) -> None:
        self._is_closed = True
        for control in list(self._controls.values()):
            control.close()
        for thread in self._threads:
            thread.join(WAIT_S)


def totals_of(put: Put) -> dict[int, tuple[int, int]]:
    """The rows of a window of `SQL`."""
    return {int(row[1]): (int(row[2]), int(row[3])) for row in rows_of(put)}


def rows_of(put: Put) -> list[tuple[Any, ...]]:
    """The rows of a window."""
    return [tuple(row) for row in put.rows]
