"""Rotation while a writer keeps writing throughout, in a thread, with the real clock; and the events that wake the reader."""

from __future__ import annotations

import os
import select
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from elf.agent.files.source import Source, SourceState
from tests.rigs.source_rig import compress

DEADLINE_S = 30.0
ROTATIONS = 6


class Server(threading.Thread):
    """Writes numbered lines as fast as it can, and reopens its log some time after the request."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.written = path, 0
        self.may_write = threading.Event()
        self.may_write.set()
        self.pause = threading.Lock()
        self.told = self.done = False

    def run(self) -> None:
        descriptor = self._open()
        while not self.done:
            with self.pause:
                line = f"{self.written:08d} GET /some/path/of/a/request HTTP/1.1\n".encode()
                os.write(descriptor, line)
                self.written += 1
            if self.told and self.written % 50 == 0:  # until then it goes on in the renamed file
                os.close(descriptor)
                descriptor = self._open()
                self.told = False
            if self.written % 20 == 0:
                time.sleep(0.0005)
        os.close(descriptor)

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def reopen(self) -> None:
        self.told = True
        while self.told:
            time.sleep(0.0002)

    def write_some(self, lines: int = 300) -> None:
        until = self.written + lines
        while self.written < until:
            time.sleep(0.0005)


def shift(path: Path) -> None:
    for number in range(ROTATIONS + 1, 0, -1):
        for ending in ("", ".gz"):
            old = path.with_name(f"{path.name}.{number}{ending}")
            if old.exists():
                old.rename(path.with_name(f"{path.name}.{number + 1}{ending}"))


def by_rename(server: Server, path: Path, number: int) -> None:
    shift(path)
    path.rename(f"{path}.1")
    server.reopen()


def by_date(server: Server, path: Path, number: int) -> None:
    path.rename(f"{path}-2024010{number}")
    server.reopen()


def by_rename_and_late_gzip(server: Server, path: Path, number: int) -> None:
    if (last := path.with_name(path.name + ".1")).exists():
        compress(last)
    by_rename(server, path, number)


def by_copy_while_the_writer_waits(server: Server, path: Path, number: int) -> None:
    with server.pause:
        by_copy(server, path, number)


def by_copy(server: Server, path: Path, number: int) -> None:
    shift(path)
    shutil.copyfile(path, f"{path}.1")
    os.truncate(path, 0)


def by_copy_and_gzip(server: Server, path: Path, number: int) -> None:
    by_copy_while_the_writer_waits(server, path, number)
    compress(Path(f"{path}.1"))


Rotate = Callable[[Server, Path, int], None]


class Agent(threading.Thread):
    """Scans and reads until it is stopped, starting again from its saved positions every `restart_every` blocks."""

    def __init__(self, pattern: str, restart_every: int) -> None:
        super().__init__(daemon=True)
        self.pattern, self.restart_every = pattern, restart_every
        self.options = {"start": "beginning", "block_bytes": 16384, "line_max": 1024, "grace_s": 0.5}
        self.lines: list[bytes] = []
        self.source = Source("access", [pattern], **self.options)  # type: ignore[arg-type]
        self.error: BaseException | None = None
        self.done = False

    def run(self) -> None:
        try:
            blocks = 0
            while not self.done:
                now = time.monotonic()
                self.source.scan(now)
                while (block := self.source.read(now)) is not None:
                    self.lines += bytes(block.data).splitlines()
                    blocks += 1
                    if blocks % self.restart_every == 0:
                        self._restart()
                        break
                else:
                    select.select([self.source], [], [], 0.01)
        except BaseException as error:
            self.error = error

    def _restart(self) -> None:
        saved = msgspec.msgpack.encode(self.source.positions())
        self.source.close()
        state = msgspec.msgpack.decode(saved, type=SourceState)
        self.source = Source("access", [self.pattern], state=state, **self.options)  # type: ignore[arg-type]


def lines_on_disk(folder: Path) -> set[bytes]:
    import gzip

    found: set[bytes] = set()
    for path in folder.iterdir():
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found |= set(content.splitlines())
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "access.log")
    yield server
    server.done = True
    server.join(DEADLINE_S)


def run(
    server: Server, rotate: Rotate, pattern: str, restart_every: int, complete: Callable[[Agent], bool]
) -> Agent:
    server.start()
    server.write_some(1)
    agent = Agent(str(server.path.parent / pattern), restart_every)
    agent.start()
    for number in range(1, ROTATIONS + 1):
        server.write_some()
        rotate(server, server.path, number)
        agent_has_seen = len(agent.lines)
        deadline = time.monotonic() + DEADLINE_S
        while len(agent.lines) == agent_has_seen and agent.error is None and time.monotonic() < deadline:
            time.sleep(0.001)
    server.write_some()
    server.done = True
    server.join(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while not complete(agent) and agent.error is None and time.monotonic() < deadline:
        time.sleep(0.005)
    agent.done = True
    agent.join(DEADLINE_S)
    agent.source.close()
    if agent.error is not None:
        raise agent.error
    return agent


def numbers(lines: list[bytes]) -> list[int]:
    return sorted(int(line[:8]) for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("restart_every", [1_000_000, 3])
@pytest.mark.parametrize("pattern", ["access.log*", "access.log"])
@pytest.mark.parametrize(
    "rotate", [by_rename, by_date, by_rename_and_late_gzip, by_copy_while_the_writer_waits, by_copy_and_gzip]
)
def test_every_line_once_while_the_writer_never_stops(
    server: Server, rotate: Rotate, pattern: str, restart_every: int
) -> None:
    agent = run(server, rotate, pattern, restart_every, lambda agent: len(agent.lines) >= server.written)
    assert numbers(agent.lines) == list(range(server.written))


@pytest.mark.parametrize("restart_every", [1_000_000, 3])
def test_copytruncate_loses_only_what_the_tool_loses(server: Server, restart_every: int) -> None:
    """Lines between the tool's copy and its emptying are on no disk: they may be read or not, but never twice."""
    agent = run(
        server,
        by_copy,
        "access.log*",
        restart_every,
        lambda agent: lines_on_disk(server.path.parent) <= set(agent.lines),
    )
    assert lines_on_disk(server.path.parent) <= set(agent.lines)
    assert max(Counter(agent.lines).values()) == 1


def test_a_write_wakes_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(b"one\n")
    source = Source("access", [str(path)], start="end")
    source.scan(0.0)
    assert source.fileno() >= 0
    assert source.poll_s == 1.0
    source.wake()
    assert select.select([source], [], [], 0)[0] == []
    with path.open("ab") as log:
        log.write(b"two\n")
    assert select.select([source], [], [], 5)[0] == [source]
    assert source.wake()
    block = source.read(1.0)
    assert block is not None
    assert bytes(block.data) == b"two\n"
    source.close()
