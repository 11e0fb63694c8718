"""The simulator with logs on disk: its virtual servers write to files that are rotated and compressed, and `MeshSource`
reads it. Everything else, faults and oracle included, is the simulator's own."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import numpy as np

from elf.agent.simulator.run import Run
from elf.agent.simulator.world.places import Actor
from elf.agent.simulator.world.sources import IDLE_GRACE_US, Loss, Traffic, VirtualFile, VirtualSource
from elf.agent.simulator.world.world import PATHS
from elf.agent.work.mesh_source import MeshSource
from elf.cbt.budget import Budget
from elf.jobmaster.log.schedule import plan_of
from elf.srt.messages.effects import Read
from elf.srt.messages.events import Cut
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Line, Schedule

SECOND = 1_000_000
LONG_US = 30 * SECOND


class WrittenSource(VirtualSource):
    """A virtual server's lines in real files, whose times are whole seconds. `folder` is set before any is made."""

    folder: Path
    made: list[WrittenSource]

    def __init__(
        self,
        worker: NodeId,
        seed: int,
        traffic: Traffic,
        start_us: int,
        stop_us: int,
        skew_us: int = 0,
        *,
        steps: Sequence[tuple[int, int]] = (),
        losses: Sequence[tuple[int, Loss]] = (),
        rejects: Sequence[tuple[int, int, float]] = (),
    ) -> None:
        assert not losses, "nobody deletes these files"
        assert not rejects
        super().__init__(worker, seed, traffic, start_us, stop_us, skew_us, steps=steps)
        for file in self.files:
            file.event_us -= file.event_us % SECOND
            file.highest_us = np.maximum.accumulate(file.event_us) if len(file.event_us) else file.event_us
        self.grace_s = traffic.close_after_us / SECOND
        self.log = self.folder / worker.hex()[:8] / "access.log"
        self.state = self.folder / (worker.hex()[:8] + ".state")
        self.log.parent.mkdir()
        self.state.mkdir()
        self._handles: list[BinaryIO] = []
        self._written: list[int] = []
        self._packed = 0
        self.mesh: MeshSource | None = None
        self.made.append(self)

    def start(self, wipe: bool = False) -> None:
        """Another life of the agent."""
        if self.mesh is not None:
            self.mesh._source.close()  # a crash saves nothing
        if wipe:
            (self.state / "source-access").unlink(missing_ok=True)
        patterns = [str(self.log) + "*"]
        self.mesh = MeshSource(
            "access",
            patterns,
            "combined",
            "UTC",
            self.worker,
            Budget(256 << 20),
            self.state,
            idle_grace_us=IDLE_GRACE_US,
            grace_s=self.grace_s,
        )

    def read(
        self,
        read: Read,
        now_us: int,
        clock_us: int,
        schedule: Schedule,
        rows: Callable[[Line], object],
    ) -> Cut:
        """Like the simulator's, by way of the disk."""
        self.write(now_us)
        assert self.mesh is not None
        for line in schedule:
            plan_of(line.plan)
        cut = self.mesh.read(read, schedule, clock_us, now_us / SECOND)
        assert not cut.gaps
        return cut

    def write(self, now_us: int) -> None:
        """Write all lines up to then."""
        for number, file in enumerate(self.files):
            if file.created_us > now_us:
                break
            if number == len(self._handles):
                self._rotate(now_us)
            until = file.lines_at(now_us)
            data = b"".join(_line(file, i) for i in range(self._written[number], until))
            if data:
                self._handles[number].write(data)
                self._written[number] = until

    def _rotate(self, now_us: int) -> None:
        count = len(self._handles)
        for number in range(count, 0, -1):
            for ending in ("", ".gz"):
                old = self._name(number - 1, ending)
                if old.exists():
                    old.rename(self._name(number, ending))
        done = [n for n in range(count) if (self.files[n].closed_us or now_us) < now_us - 2 * SECOND]
        for n in done[self._packed :]:
            plain = self._name(count - n, "")
            if n % 2:  # of each two, one
                self._name(count - n, ".gz").write_bytes(gzip.compress(plain.read_bytes()))
                plain.unlink()
        self._packed = len(done)
        self._handles.append(self.log.open("ab", buffering=0))
        self._written.append(0)

    def _name(self, number: int, ending: str) -> Path:
        return self.log.with_name(f"access.log.{number}{ending}") if number else self.log

    def close(self) -> None:
        for handle in self._handles:
            handle.close()
        if self.mesh is not None:
            self.mesh.close()


def _line(file: VirtualFile, i: int) -> bytes:
    stamp = datetime.fromtimestamp(int(file.event_us[i]) / SECOND, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    path, size = PATHS.paths[int(file.key[i])], int(file.bytes[i])
    unique = f"{file.identity:x}/{i}"
    return f'10.0.0.1 - - [{stamp}] "GET {path} HTTP/1.1" 200 {size} "-" "{unique}"\n'.encode()


def follow_lives(run: Run) -> None:
    """A starting agent opens its source again; with a lost disk, without saved state."""
    wiped: set[NodeId] = set()

    def look(now_us: int, what: str, who: Actor | None, about: object) -> None:
        if who is None or not isinstance(who.source, WrittenSource):
            return
        if what == "crash" and about:
            wiped.add(who.id)
        elif what == "start":
            who.source.start(wipe=who.id in wiped)
            wiped.discard(who.id)

    run.world.observers.append(look)
