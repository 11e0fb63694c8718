"""Every file of a state_dir and a bundle of keys, mutated, cut short or replaced by anything: refused with an error that says
what to do, or begun anew with a notice; and whatever is taken can be worked with."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from elf.agent.disk.state_dir import JOURNAL
from elf.agent.disk.store import Store
from elf.agent.host.identity import claim, own_key
from elf.agent.work.file_notes import MAGIC, Notes
from elf.agent.work.mesh_source import MeshSource
from elf.cbt.budget import Budget
from elf.errors import ElfError, StateError
from elf.srt.messages.effects import Read
from elf.srt.messages.ids import node_id
from elf.srt.messages.messages import Position
from elf.srt.security.certificates import Authority
from elf.srt.security.files import load_keys, save_keys
from tests.rigs import wire_values
from tests.rigs.mesh_log_rig import ME, SECOND, START_S, Job, Log, Server, check_exact, line_of, plan_of

TRIES = 80
ONE = (line_of(plan_of(), 1, 0),)
NOW_S = 1_790_000_000


def changed(good: bytes, rng: Random) -> bytes:
    """Good bytes with some others in them, fewer or more of them, or none of them."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    data = bytearray(good)
    if kind == 1:
        del data[rng.randrange(len(data) + 1) :]
    if kind == 2:
        data += rng.randbytes(rng.randrange(1, 20))
    if kind == 3:
        at = rng.randrange(len(data))
        del data[at : at + rng.randrange(1, 9)]
    for _ in range(rng.randrange(1, 4)) if kind > 3 else ():
        data[rng.randrange(len(data))] = rng.choice((0, 0x7F, 0x80, 0xC0, 0xCF, 0xFF, rng.randrange(256)))
    return bytes(data)


class TestNotes:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        """A source with a past: rotations, an archive, a job that has read."""
        (tmp_path / "log").mkdir()
        (tmp_path / "state").mkdir()
        server = Server(tmp_path / "log", Random(3), rejects=0.0)
        server.write(20)
        log = Log(server, tmp_path / "state", start="end")  # type: ignore[arg-type]
        job = Job(log, ONE)
        for _ in range(3):
            server.write(20)
            job.settle()
            server.rotate()
        server.compress()
        server.write(5)
        job.settle()
        log.source.close()
        Log.made.remove(log)
        return log

    def reopened(self, log: Log, data: bytes) -> list[str]:
        """A source that finds these notes reads its log for a job that begins and for one that goes on. What it says."""
        (log.state / "source-access").write_bytes(data)
        source = MeshSource(
            "access", [f"{log.server.log}*"], "combined", "UTC", ME, Budget(64 << 20), log.state, start="end"
        )
        try:
            for job, positions in ((b"a" * 16, {}), (b"b" * 16, {(ME, 5, 0): Position(3)})):
                read = Read(job, 1, 1, dict(positions), START_S * SECOND)
                cut = source.read(read, ONE, (log.server.now_s + 3) * SECOND, 1_000.0)
                assert all(start <= end for start, end, _ in cut.spans.values())
            return source.take_notices()
        finally:
            source.close()

    @pytest.mark.slow
    def test_other_bytes_begin_anew_with_a_notice(self, log: Log) -> None:
        path, rng = log.state / "source-access", Random(1)
        good = path.read_bytes()
        assert not any("damaged" in text for text in self.reopened(log, good))
        for _ in range(TRIES):
            data = changed(good, rng)
            said = self.reopened(log, data)
            assert data == good or any("damaged; files are identified again" in text for text in said)

    @pytest.mark.slow
    def test_values_that_no_agent_writes_begin_anew_or_are_worked_with(self, log: Log) -> None:
        """Altered values with a correct checksum."""
        good = (log.state / "source-access").read_bytes()[len(MAGIC) + 4 :]
        rng = Random(2)
        for _ in range(TRIES):
            data = changed(good, rng)
            self.reopened(log, MAGIC + zlib.crc32(data).to_bytes(4) + data)

    @pytest.mark.slow
    def test_each_value_replaced_by_any_other(self, log: Log) -> None:
        good = msgspec.msgpack.decode(
            (log.state / "source-access").read_bytes()[len(MAGIC) + 4 :], strict=False
        )
        rng = Random(3)
        odd: list[Any] = [
            None,
            [],
            {},
            "",
            "x",
            b"\xff",
            -1,
            0,
            1 << 40,
            (1 << 63) - 1,
            -(1 << 63),
            (1 << 64) - 1,
            True,
            1.5,
        ]
        for _ in range(TRIES):
            mutated = msgspec.msgpack.decode(msgspec.msgpack.encode(good))
            place(mutated, rng, rng.choice(odd))
            data = msgspec.msgpack.encode(mutated)
            self.reopened(log, MAGIC + zlib.crc32(data).to_bytes(4) + data)

    def test_a_log_whose_name_is_no_text_is_kept_in_mind(self, tmp_path: Path) -> None:
        (tmp_path / "log").mkdir()
        (tmp_path / "state").mkdir()
        server = Server(tmp_path / "log", Random(3), rejects=0.0)
        server.log = tmp_path / "log" / os.fsdecode(b"access\xff.log")
        log = Log(server, tmp_path / "state")
        log.source.close()
        server.log.with_name("access.log").rename(server.log)
        for _ in range(3):
            log.source = MeshSource(
                "access", [f"{tmp_path}/log/*"], "combined", "UTC", ME, Budget(64 << 20), log.state
            )
            job = Job(log, ONE)
            server.write(20)
            job.settle()
            check_exact(job, server.files)
            log.source.close()
        Log.made.remove(log)

    def test_an_unreadable_file_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "source-access").mkdir()
        said: list[str] = []
        notes = Notes(tmp_path / "source-access", said.append)
        notes.save(None, None)
        assert notes.is_new
        assert len(said) == 2


def place(value: Any, rng: Random, what: Any) -> None:
    """Somewhere in it."""
    while True:
        inner = list(value) if isinstance(value, dict) else range(len(value))
        at = rng.choice(list(inner))
        below = value[at]
        if not (isinstance(below, list | dict) and below) or rng.random() < 0.2:
            value[at] = what
            return
        value = below


def opened(folder: Path) -> Any:
    async def main() -> Any:
        store, records = Store.open(folder, lambda text: None)
        store.close()
        return records

    return asyncio.run(main())


def test_a_journal_gives_what_was_written_or_is_refused(tmp_path: Path) -> None:
    async def write() -> None:
        store, _ = Store.open(tmp_path, lambda text: None)
        for number in range(1, 8):
            store.begin(wire_values.write(number, Random(number)))
        store.close()

    asyncio.run(write())
    path, rng = tmp_path / JOURNAL, Random(4)
    good = path.read_bytes()
    whole = opened(tmp_path)
    refused: list[str] = []
    for _ in range(TRIES):
        path.write_bytes(changed(good, rng))
        try:
            records = opened(tmp_path)
        except StateError as error:
            refused.append(str(error))
        else:
            assert records.keys() <= whole.keys()
    assert len(refused) > TRIES // 4
    assert all(str(path) in text or text.startswith("state: ") for text in refused)
    assert not any("\n" in text for text in refused)


def read_key(path: Path) -> Any:
    return own_key(path.parent)


def read_claim(path: Path) -> Any:
    return claim(path.parent, node_id(bytes(32)))


def bundle_in(folder: Path) -> bytes:
    save_keys(Authority(bytes(range(32))).issue("web1", "agent", NOW_S), folder / "good.keys")
    return (folder / "good.keys").read_bytes()


@pytest.mark.parametrize(
    ("name", "good", "read"),
    [
        ("id", lambda folder: bytes(range(32)), read_key),
        ("node", lambda folder: node_id(bytes(32)).hex().encode(), read_claim),
        ("web1.keys", bundle_in, load_keys),
    ],
)
def test_what_identifies_an_agent(
    name: str, good: Callable[[Path], bytes], read: Callable[[Path], Any], tmp_path: Path
) -> None:
    path, rng, data = tmp_path / name, Random(5), good(tmp_path)
    path.write_bytes(data)
    path.chmod(0o600)
    read(path)
    said: list[str] = []
    for _ in range(TRIES):
        path.write_bytes(changed(data, rng))
        try:
            read(path)
        except ElfError as error:
            said.append(str(error))
    assert said
    assert all(str(tmp_path) in text and "\n" not in text for text in said)
