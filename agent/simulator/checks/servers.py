"""What the oracle knows of web servers, and of their lines that no agent can parse."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from elf.agent.simulator.world.sources import UNREAD_MIN, VirtualFile, VirtualSource
from elf.srt.messages.messages import Micros

ALWAYS = 1 << 62


class Server(msgspec.Struct, frozen=True):
    """A web server, for the oracle.

    known_us: event time from which the mesh certainly knew its agent; `ALWAYS` if the mesh may not know the agent before the end,
    or if another process may promise in its name. ahead_us: how far its clock, or the times of its lines, are at most ahead of
    the virtual epoch plus world time.
    """

    number: int
    source: VirtualSource
    known_us: Micros
    ahead_us: Micros


class Unread:
    """Rejected lines: the time at which each is counted, 0 if in no window, the time in the line itself, and that of the next
    parsed line in its file."""

    def __init__(self, files: Sequence[tuple[Server, VirtualFile]]) -> None:
        columns = [
            (
                file.event_us[file.rejected],
                file.true_us[file.rejected],
                file.written_us[file.rejected],
                server.number,
                _next_read(file)[file.rejected],
            )
            for server, file in files
            if file.rejected is not None and file.true_us is not None
        ]
        empty = np.empty(0, dtype=np.int64)
        self._counted = np.concatenate([empty, *(column[0] for column in columns)])
        self._true = np.concatenate([empty, *(column[1] for column in columns)])
        self._written = np.concatenate([empty, *(column[2] for column in columns)])
        self._host = np.concatenate([empty, *(np.full(len(column[0]), column[3]) for column in columns)])
        self._next = np.concatenate([empty, *(column[4] for column in columns)])
        self.numbers = {server.number for server, _ in files}

    def counted(self, low: Micros, high: Micros, now_us: int) -> int:
        at = (self._counted >= low) & (self._counted < high) & (self._written <= now_us)
        return int(np.count_nonzero(at))

    def from_before(self, low: Micros, retained_us: Micros) -> int:
        """Lines before `low` whose own window may have been past retention: the window from `low` on may count them."""
        return self.may_be_late(1, low, retained_us)

    def may_be_late(self, low: Micros, high: Micros, retained_us: Micros) -> int:
        """Lines that are counted in [low, high), unless that is past retention when they are read."""
        at = (self._counted >= low) & (self._counted < high)
        return int(np.count_nonzero(at & (self._written > self._counted + retained_us)))

    def blind(self, low: Micros, high: Micros) -> list[int]:
        """Servers with `UNREAD_MIN` or more rejected lines in [low, high), which their agents must notice: not those before a
        parsed line of an earlier time, by which an agent knows that lines of that time can be parsed again."""
        if not self.numbers:
            return []
        hosts = self._host[(self._true >= low) & (self._true < high) & (self._true <= self._next)]
        return [number for number in self.numbers if np.count_nonzero(hosts == number) >= UNREAD_MIN]


def _next_read(file: VirtualFile) -> NDArray[np.int64]:
    """For each line the event time of the first parsed one from it on; `ALWAYS` if there is none."""
    places = np.where(is_read(file), np.arange(len(file.key)), len(file.key))
    following = np.minimum.accumulate(places[::-1])[::-1]
    return np.append(file.event_us, ALWAYS)[following]


def is_read(file: VirtualFile) -> NDArray[np.bool_]:
    """Mask of lines that an agent can parse."""
    return np.ones(len(file.key), dtype=bool) if file.rejected is None else ~file.rejected
