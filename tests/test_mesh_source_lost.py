"""An agent that was killed, and perhaps lost its state folder, while its log was rotated and compressed: every line once.

Rotation comes before the restart, after the first read, or between any two system calls of the reader, by seed. What cannot be
told is a gap, and never a wrong count.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import zstandard

from tests.mesh_log_rig import GRACE_S, Job, Log, Server, check_exact, line_of, plan_of

ONE = (line_of(plan_of(), 1, 0),)
KINDS = ("rename", "gz", "zst", "date", "date gz", "delayed gz", "copy", "copy gz", "tmp gz")
SEEDS = 4
CALLS = ("open", "stat", "fstat", "pread", "preadv", "scandir")
REAL = {name: getattr(os, name) for name in CALLS}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while Log.made:
        Log.made.pop().source.close()


class Rotation:
    """What the server's rotating tool does, step by step; the writer waits while it copies."""

    def __init__(self, server: Server, rng: Random, kind: str) -> None:
        self.server, self.rng, self.kind, self.count = server, rng, kind, 0
        self.log = server.log

    def _numbered(self, number: int) -> Path:
        return self.log.with_name(f"access.log.{number}")

    def steps(self) -> Iterator[str]:
        """One rotation."""
        self.server.finish_line()
        self.count += 1
        if self.kind.startswith("date"):
            rotated = self.log.with_name(f"access.log-202611{self.count:02d}")
        else:
            yield from self._shift()
            rotated = self._numbered(1)
        yield from self._copy(rotated) if self.kind.startswith("copy") else self._rename(rotated)
        if self.kind.startswith("delayed"):
            rotated = self._numbered(2)
        if rotated.exists() and self.kind.rsplit(maxsplit=1)[-1] in ("gz", "zst"):
            yield from self._compress(rotated)

    def _shift(self) -> Iterator[str]:
        for number in range(5, 0, -1):
            for ending in ("", ".gz", ".zst"):
                old = self.log.with_name(f"access.log.{number}{ending}")
                if os.path.lexists(old):
                    old.rename(self.log.with_name(f"access.log.{number + 1}{ending}"))
                    yield "shifted"

    def _rename(self, rotated: Path) -> Iterator[str]:
        self.log.rename(rotated)
        yield "renamed"
        self.log.touch()
        self.server.files.append([])
        yield "made anew"

    def _copy(self, rotated: Path) -> Iterator[str]:
        yield from self._put(rotated, _bytes(self.log), 1_000)
        os.truncate(self.log, 0)
        self.server.files.append([])
        yield "emptied"

    def _compress(self, rotated: Path) -> Iterator[str]:
        data, status = _bytes(rotated), REAL["stat"](rotated)
        is_zst = self.kind.endswith("zst")
        packed = rotated.with_name(rotated.name + (".zst" if is_zst else ".gz"))
        out = packed.with_name(packed.name + ".tmp") if self.kind.startswith("tmp") else packed
        data = zstandard.compress(data) if is_zst else gzip.compress(data, 1)
        yield from self._put(out, data, max(len(data) // 5, 3))
        os.utime(out, ns=(status.st_atime_ns, status.st_mtime_ns))
        if out != packed:
            rotated.unlink()
            yield "original gone"
            out.rename(packed)
        else:
            rotated.unlink()
        yield "compressed"

    def _put(self, path: Path, data: bytes, step: int) -> Iterator[str]:
        descriptor = REAL["open"](path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        yield "created"
        for at in range(0, len(data), step):
            os.write(descriptor, data[at : at + step])
            yield "a part"
        os.close(descriptor)
        yield "whole"

    def run(self) -> None:
        for _ in self.steps():
            pass


def _bytes(path: Path) -> bytes:
    descriptor = REAL["open"](path, os.O_RDONLY)
    data: bytes = REAL["pread"](descriptor, 1 << 24, 0)
    os.close(descriptor)
    return data


class World:
    """A server and an agent that has reported a part of its log, and then was killed."""

    def __init__(
        self, folder: Path, kind: str, seed: int, pattern: str = "access.log", start: str = "end"
    ) -> None:
        (folder / "log").mkdir(parents=True)
        (folder / "state").mkdir()
        self.rng = Random(seed)
        self.server = Server(folder / "log", self.rng, rejects=0.0)
        self.rotation = Rotation(self.server, self.rng, kind)
        self.log = Log(self.server, folder / "state", pattern=pattern, start=start)  # type: ignore[arg-type]
        self.jobs = [Job(self.log, ONE, name=name) for name in (b"a", b"b")]

    def write(self) -> None:
        self.server.write(self.rng.randrange(5, 40))

    def live(self) -> None:
        """Some rotations that the agent sees, and a position in the midst of the last file."""
        for _ in range(2):
            for _ in range(3):
                self.write()
                for job in self.jobs:
                    job.read()
                self.log.now_s += 0.3
            for job in self.jobs:
                job.settle()
            self.rotation.run()
        self.write()
        for job in self.jobs:
            job.settle()
        self.write()

    def restart(self, state: str) -> None:
        self.log.restart(crash=True, wipe=state == "lost")
        for job in self.jobs:
            job.lose()

    def settle(self) -> None:
        self.write()
        self.server.finish_line()
        self.log.now_s += GRACE_S
        for job in self.jobs:
            job.settle()

    def check(self) -> None:
        for job in self.jobs:
            assert not job.gaps, self.log.source.take_notices()
            check_exact(job, self.server.files)


@pytest.mark.parametrize("pattern", ["access.log", "access.log*"])
@pytest.mark.parametrize("start", ["end", "beginning"])
@pytest.mark.parametrize("state", ["kept", "lost"])
@pytest.mark.parametrize("kind", KINDS)
def test_rotated_before_the_restart(tmp_path: Path, kind: str, state: str, start: str, pattern: str) -> None:
    for seed, times in enumerate((1, 3)):
        world = World(tmp_path / str(seed), kind, seed, pattern, start)
        world.live()
        for _ in range(times):
            world.rotation.run()
            world.write()
        world.restart(state)
        world.settle()
        world.check()


@pytest.mark.parametrize("pattern", ["access.log", "access.log*"])
@pytest.mark.parametrize("state", ["kept", "lost"])
@pytest.mark.parametrize("kind", KINDS)
def test_rotated_after_the_restart(tmp_path: Path, kind: str, state: str, pattern: str) -> None:
    for seed in range(2):
        world = World(tmp_path / str(seed), kind, seed, pattern)
        world.live()
        world.restart(state)
        if seed % 2:
            world.jobs[0].read()
        world.rotation.run()
        world.write()
        world.settle()
        world.check()


@pytest.mark.parametrize("pattern", ["access.log", "access.log*"])
@pytest.mark.parametrize("state", ["kept", "lost"])
@pytest.mark.parametrize("kind", KINDS)
def test_rotated_between_any_two_system_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, state: str, pattern: str
) -> None:
    for seed in range(SEEDS):
        world = World(tmp_path / str(seed), kind, seed, pattern)
        world.live()
        steps = world.rotation.steps()
        for _ in range(world.rng.randrange(4)):
            next(steps, None)
        world.restart(state)
        rate, rng = world.rng.choice([0.02, 0.1, 0.3]), Random(seed)
        with monkeypatch.context() as patch:
            inside: list[bool] = []
            for name in CALLS:
                patch.setattr(os, name, interleaved(REAL[name], steps, rng, rate, inside))
            for _ in range(12):
                for job in world.jobs:
                    job.read()
                world.log.now_s += rng.choice([0.0, 0.05, 0.4])
        for _ in steps:
            pass
        world.settle()
        for job in world.jobs:
            assert not job.gaps, (seed, world.log.source.take_notices())
            check_exact(job, world.server.files)


def interleaved(
    real: Callable[..., object], steps: Iterator[str], rng: Random, rate: float, inside: list[bool]
) -> Callable[..., object]:
    """inside: what the rotating tool calls itself is not interrupted."""

    def call(*about: object, **options: object) -> object:
        while not inside and rng.random() < rate:
            inside.append(True)
            is_over = next(steps, None) is None
            inside.clear()
            if is_over:
                break
        return real(*about, **options)

    return call
