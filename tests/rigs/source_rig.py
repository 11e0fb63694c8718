"""Shared by tests of following: a reader that checks every block, and a log that is rotated like a real one."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from elf.agent.files.blocks import FileKey
from elf.agent.files.source import Source, SourceState

GRACE_S = 3.0
CALLS = ("open", "stat", "fstat", "pread", "preadv", "scandir")
REAL = {name: getattr(os, name) for name in CALLS}
"""The calls through which a reader looks at files. Tests that take them over rotate logs by the real ones."""


def bytes_of(path: Path) -> bytes:
    descriptor = REAL["open"](path, os.O_RDONLY)
    data: bytes = REAL["pread"](descriptor, 1 << 24, 0)
    os.close(descriptor)
    return data


def put_in_parts(path: Path, data: bytes, step: int) -> Iterator[str]:
    """Write a file, `step` bytes at a time; yields after each call of the system."""
    descriptor = REAL["open"](path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    yield "created"
    for at in range(0, len(data), step):
        os.write(descriptor, data[at : at + step])
        yield "a part"
    os.close(descriptor)
    yield "whole"


class Reader:
    """Drives a `Source` with a clock of its own, checks every block against the contract, and keeps the lines."""

    def __init__(
        self, *patterns: str, start: str = "beginning", block_bytes: int = 2048, line_max: int = 512
    ) -> None:
        self.patterns = patterns
        self.options = {"start": start, "block_bytes": block_bytes, "line_max": line_max, "grace_s": GRACE_S}
        self.now = 1000.0
        self.lines: list[bytes] = []
        self.too_long = 0
        self.lost_bytes = 0
        self.notices: list[str] = []
        self.ends: dict[FileKey, int] = {}
        self.closed: set[FileKey] = set()
        self.source = Source("access", patterns, **self.options)  # type: ignore[arg-type]

    def step(self, blocks: int = 1 << 30, seconds: float = 0.25) -> int:
        """Scan, then read at most so many blocks; how many there were."""
        self.now += seconds
        self.source.scan(self.now)
        count = 0
        while count < blocks and self.read_block():
            count += 1
        self._collect()
        return count

    def read_block(self) -> bool:
        block = self.source.read(self.now)
        if block is None:
            return False
        data = bytes(block.data)
        previous = self.ends.get(block.file)
        if previous is not None:
            assert block.start == previous, "a gap between blocks of one file"
        assert block.first == (block.start == 0)
        assert block.end - block.start >= len(data)
        if not block.too_long:
            assert block.end - block.start == len(data)
        if data and not block.last:
            assert data.endswith(b"\n")
        if data:
            assert block.file.fingerprint != 0
        lines = data.splitlines()
        assert all(len(line) <= int(self.options["line_max"]) for line in lines)  # type: ignore[call-overload]
        self.lines += lines
        self.too_long += block.too_long
        self.ends[block.file] = block.end
        if block.last:
            self.closed.add(block.file)
        return True

    def _collect(self) -> None:
        self.notices += self.source.notices
        self.source.notices.clear()

    def wait(self, seconds: float) -> None:
        """Let time pass, stepping as an agent does."""
        until = self.now + seconds
        while self.now < until:
            self.step(seconds=1.0)

    def settle(self) -> None:
        """Read on until there is nothing left and every grace period is over."""
        self.wait(3 * GRACE_S)
        assert self.source.at_end, self.source.lag_bytes()

    def restart(self) -> None:
        """Stop without closing, and start again from the saved positions, decoded as from disk."""
        self.stop()
        self.resume()

    def stop(self) -> None:
        self._collect()
        self.saved = msgspec.msgpack.encode(self.source.positions())
        self.lost_bytes += self.source.lost_bytes
        self.source.close()

    def resume(self) -> None:
        state = msgspec.msgpack.decode(self.saved, type=SourceState)
        known = {file.generation for file in state.files}
        self.ends = {key: end for key, end in self.ends.items() if key.generation in known}
        self.source = Source("access", self.patterns, state=state, **self.options)  # type: ignore[arg-type]

    def close(self) -> None:
        self._collect()
        self.source.close()


class Log:
    """`access.log` in a folder: numbered lines, and what logrotate does."""

    def __init__(self, folder: Path, width: int = 40) -> None:
        self.folder, self.path, self.width = folder, folder / "access.log", width
        self.written: list[bytes] = []
        self.half = b""
        self.writer = self._open()

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def line(self) -> bytes:
        line = f"{len(self.written):08d} ".encode().ljust(self.width, b".")
        self.written.append(line)
        return line

    def append(self, count: int = 1) -> None:
        if count:
            self.end_line()
        os.write(self.writer, b"".join(self.line() + b"\n" for _ in range(count)))

    def begin_line(self) -> None:
        """Half of a line, as a server's buffer leaves it."""
        if not self.half:
            line = self.line() + b"\n"
            os.write(self.writer, line[: self.width // 2])
            self.half = line[self.width // 2 :]

    def end_line(self) -> None:
        os.write(self.writer, self.half)
        self.half = b""

    def reopen(self) -> None:
        """What a server does on USR1: until then it writes to the renamed file."""
        self.end_line()
        os.close(self.writer)
        self.writer = self._open()

    def move(self, folder: Path) -> None:
        """The server, which was stopped, logs there."""
        self.folder, self.path = folder, folder / "access.log"
        self.writer = self._open()

    def rotated(self, number: int) -> Path:
        return self.folder / f"access.log.{number}"

    def shift(self, *, keep: int = 60) -> None:
        """access.log.1 -> .2, .1.gz -> .2.gz, and so on."""
        for number in range(keep, 0, -1):
            for ending in ("", ".gz"):
                source = self.folder / f"access.log.{number}{ending}"
                if source.exists():
                    source.rename(self.folder / f"access.log.{number + 1}{ending}")

    def rename(self) -> None:
        self.shift()
        self.path.rename(self.rotated(1))

    def copy(self) -> None:
        self.end_line()  # a line that is cut in two by the tool is lost by the tool
        self.shift()
        shutil.copyfile(self.path, self.rotated(1))

    def truncate(self) -> None:
        os.truncate(self.path, 0)

    def dated(self, day: int) -> Path:
        return self.folder / f"access.log-202401{day:02d}"

    def rename_dated(self, day: int) -> None:
        self.path.rename(self.dated(day))

    def compress(self, number: int) -> None:
        compress(self.rotated(number))

    def compress_dated(self, day: int) -> None:
        compress(self.dated(day))

    def do(self, step: str) -> None:
        """Several of these methods, as "append 3; copy; truncate"."""
        for action in step.split("; "):
            name, *arguments = action.split()
            getattr(self, name)(*map(int, arguments))

    def close(self) -> None:
        os.close(self.writer)


def compress(path: Path) -> None:
    """What gzip does: the archive appears, then the original goes."""
    packed = path.with_name(path.name + ".gz")
    with path.open("rb") as plain, gzip.open(packed, "wb") as out:
        shutil.copyfileobj(plain, out)
    os.utime(packed, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    path.unlink()


def read_all(*patterns: Path | str, start: str = "beginning") -> Reader:
    """A reader that was given all there is."""
    reader = Reader(*map(str, patterns), start=start)
    reader.step()
    return reader
