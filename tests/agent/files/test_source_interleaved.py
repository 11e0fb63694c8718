"""Rotation between any two system calls of the reader: by seed, so that failures can be repeated.

The calls through which the reader looks at files are taken over by ones that first let the rotating tool do some of its
steps: copy a part, empty the file, write a piece of an archive, rename. The scans of a live reader are milliseconds apart; here a
whole rotation may pass within one.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from elf.agent.files.source import Source, SourceState
from tests.rigs.source_rig import CALLS, REAL, bytes_of, put_in_parts

SEEDS = 15
ROTATIONS = 3
REST = "rest"


class Rotation:
    """The web server and its rotating tool; each `next` of `steps` is one thing that they do. The writer waits while the log
    is copied, as otherwise the tool itself would lose lines."""

    def __init__(self, rng: Random, folder: Path, kind: str) -> None:
        self.rng, self.path, self.kind, self.written = rng, folder / "access.log", kind, 0
        self.write()
        self.steps = self._steps()

    def write(self) -> None:
        self._append(self.path, self.rng.randrange(1, 60))

    def _append(self, path: Path, lines: int) -> None:
        descriptor = REAL["open"](path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for _ in range(lines):
            os.write(descriptor, f"{self.written:08d} GET /some/path/of/a/request HTTP/1.1\n".encode())
            self.written += 1
        os.close(descriptor)

    def _steps(self) -> Iterator[str]:
        for number in range(ROTATIONS):
            yield from self._writes(6)
            yield REST
            if self.kind == "by date":
                self.path = self.path.with_name(f"access.log-2024010{number + 1}")
                continue
            yield from self._shift()
            yield from self._copy() if self.kind.startswith("copy") else self._rename()
            yield from self._writes(4)
            if self.kind.endswith("gzip"):
                yield from self._gzip()
        yield from self._writes(4)

    def _writes(self, most: int) -> Iterator[str]:
        for _ in range(self.rng.randrange(most)):
            self.write()
            yield "written"

    def _shift(self) -> Iterator[str]:
        for number in range(ROTATIONS + 1, 0, -1):
            for ending in ("", ".gz"):
                old = Path(f"{self.path}.{number}{ending}")
                if os.path.lexists(old):
                    old.rename(f"{self.path}.{number + 1}{ending}")
                    yield "shifted"

    def _rename(self) -> Iterator[str]:
        self.path.rename(f"{self.path}.1")
        yield "renamed"
        if self.rng.random() < 0.5:
            self._append(Path(f"{self.path}.1"), 3)
            yield "written to the renamed one"
        self.write()
        yield "made anew"

    def _copy(self) -> Iterator[str]:
        data = bytes_of(self.path)
        yield from put_in_parts(Path(f"{self.path}.1"), data, self.rng.choice([600, 2_000, 100_000]))
        os.truncate(self.path, 0)
        yield "emptied"

    def _gzip(self) -> Iterator[str]:
        rotated, packed = Path(f"{self.path}.1"), Path(f"{self.path}.1.gz")
        status = REAL["stat"](rotated)
        data = gzip.compress(bytes_of(rotated), 1)
        yield from put_in_parts(packed, data, max(self.rng.choice([3, 100, 1_000]), len(data) // 8))
        os.utime(packed, ns=(status.st_atime_ns, status.st_mtime_ns))
        yield "dated back"
        rotated.unlink()
        yield REST


class Interleaved:
    """A reader, and a rotation that advances at its system calls.

    looks: where only the plain name is followed, a file that comes and goes between two looks is never seen; so the rotation
    rests until there were so many more.
    """

    def __init__(self, rng: Random, folder: Path, kind: str, pattern: str) -> None:
        self.rng, self.rotation = rng, Rotation(rng, folder, kind)
        self.rate = rng.choice([0.02, 0.1, 0.3])
        self.looks = 2 if pattern == "access.log" else 0
        self.scans, self.until, self.is_over, self._inside = 0, self.looks, False, False
        self._options: dict[str, Any] = {"start": "beginning", "line_max": 1024, "grace_s": 0.5}
        self._options["block_bytes"] = rng.choice([2_048, 16_384])
        self._patterns = [str(folder / pattern)]
        self.source = Source("access", self._patterns, **self._options)
        self.lines: list[bytes] = []

    def advance(self) -> None:
        if self._inside or self.is_over or self.scans < self.until:
            return
        self._inside = True
        step = next(self.rotation.steps, None)
        self._inside, self.is_over = False, step is None
        if step == REST:
            self.until = self.scans + self.looks

    def taken_over(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            while not self._inside and self.rng.random() < self.rate:
                self.advance()
            return REAL[name](*args, **options)

        return call

    def step(self, now: float) -> None:
        self.source.scan(now)
        self.scans += 1
        while (block := self.source.read(now)) is not None:
            self.lines += bytes(block.data).splitlines()
        self.advance()

    def restart(self) -> None:
        saved = msgspec.msgpack.encode(self.source.positions())
        self.source.close()
        for _ in range(self.rng.randrange(3)):
            self.advance()
        state = msgspec.msgpack.decode(saved, type=SourceState)
        self.source = Source("access", self._patterns, state=state, **self._options)


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        *((kind, pattern) for kind in ("rename", "copy") for pattern in ("access.log*", "access.log")),
        *(
            (kind + ", gzip", pattern)
            for kind in ("rename", "copy")
            for pattern in ("access.log*", "access.log")
        ),
        ("by date", "access.log*"),
    ],
)
def test_every_line_once_wherever_a_rotation_comes_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, pattern: str, restarts: bool
) -> None:
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        rng = Random(seed)
        run = Interleaved(rng, folder, kind, pattern)
        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, run.taken_over(name))
            now = 100.0
            while not run.is_over:
                now += rng.choice([0.0005, 0.003])
                run.step(now)
                if restarts and rng.random() < 0.1:
                    run.restart()
        for _ in range(40):  # four times the grace
            now += 0.05
            run.step(now)
        run.source.close()
        numbers = sorted(int(line[:8]) for line in run.lines)
        assert numbers == list(range(run.rotation.written)), f"seed {seed}"
