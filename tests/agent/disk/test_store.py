"""A mesh agent's disk: records reported durable survive, in order, wherever the file is cut; writes to full disks wait; files
stay small."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from elf.agent.disk import store as store_module
from elf.agent.disk.state_dir import JOURNAL
from elf.agent.disk.store import Store
from elf.errors import StateError
from elf.jobmaster.log.job_log import Promise
from elf.jobmaster.log.record_codec import RecordEncoder
from elf.jobmaster.log.stored import Needed
from elf.srt.messages.effects import Write
from tests.rigs import paths
from tests.rigs.wire_values import same, write
from tests.srt.codec.test_wire import shown

GOLDEN = paths.GOLDEN / "journal" / "mesh-store-v1"
JOBS = [bytes([n]) * 16 for n in range(3)]


def ballot(epoch: int, job: bytes = JOBS[0]) -> Write:
    return Write(("ballot", job), Promise((epoch, b"M" * 16)), replace=True)


def run(
    folder: Path, use: Callable[[Store], Coroutine[Any, Any, None]], *, is_lasting: bool = True
) -> list[str]:
    """Open the folder's store, use it on a loop, close it. Returns its notices."""
    said: list[str] = []

    async def main() -> None:
        store, _ = Store.open(folder, said.append, is_lasting=is_lasting)
        try:
            await use(store)
        finally:
            store.close()

    asyncio.run(main())
    return said


def content(folder: Path) -> dict[tuple[str, bytes], list[Any]]:
    store, records = Store.open(folder, lambda text: None)
    store.close()
    try:
        return {key: list(values) for key, values in records.items()}
    finally:
        records.close()


def model(writes: list[Write]) -> dict[tuple[str, bytes], list[Any]]:
    records: dict[tuple[str, bytes], list[Any]] = {}
    for each in writes:
        records[each.key] = [each.record] if each.replace else [*records.get(each.key, []), each.record]
    return records


def some_writes(seed: int, count: int) -> list[Write]:
    """Of all kinds, for few jobs, so that keys come again."""
    rng = Random(seed)
    made = []
    for _ in range(count):
        each = write(rng.choice([1, 2, 3, 4, 4, 5, 5, 5, 6, 7]), rng)
        key = (each.key[0], rng.choice(JOBS) if each.key[1] else b"")
        made.append(Write(key, each.record, each.replace))
    return made


@pytest.mark.parametrize("is_lasting", [True, False])
def test_all_that_was_written_is_read_in_order(tmp_path: Path, is_lasting: bool) -> None:
    writes = some_writes(1, 60)
    done: list[int] = []

    async def use(store: Store) -> None:
        for number, each in enumerate(writes):
            store.write(each, lambda number=number: done.append(number))  # type: ignore[misc]
            if number % 7 == 0:
                await asyncio.sleep(0)
        await store.drain(5)
        assert store.writes == len(writes)
        assert store.syncs < len(writes), "what waits shares a sync"

    run(tmp_path, use, is_lasting=is_lasting)
    assert done == list(range(len(writes)))
    assert same(content(tmp_path), model(writes))


def test_little_that_is_not_synced_is_written_without_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But much of it, or a journal that is to be rewritten, would keep the loop from its work."""
    threads: list[bool] = []
    commit = Store._commit

    def noted(store: Store, fresh: list[bytes]) -> str:
        threads.append(threading.current_thread() is threading.main_thread())
        return commit(store, fresh)

    monkeypatch.setattr(Store, "_commit", noted)

    async def use(store: Store) -> None:
        for length in (1, store_module.SMALL_BYTES + 1, 1):
            store.write(replace(ballot(1), encoded=b"x" * length), lambda: None)
            await store.drain(5)
        monkeypatch.setattr(store_module, "GROWTH_BYTES", 0)
        monkeypatch.setattr(Store, "_compact", lambda store: None)
        store.write(replace(ballot(1), encoded=b"x"), lambda: None)
        await store.drain(5)

    run(tmp_path, use, is_lasting=False)
    assert threads == [True, False, True, False]


def test_nothing_is_done_before_the_disk_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)

    async def use(store: Store) -> None:
        store.write(ballot(1), lambda: seen.append(len(synced)))
        assert not seen
        await store.drain(5)

    seen: list[int] = []
    run(tmp_path, use)
    assert seen == [1]


def test_a_life_begins_on_disk(tmp_path: Path) -> None:
    async def use(store: Store) -> None:
        store.begin(Write(("node", b""), 7, replace=True))
        assert (tmp_path / JOURNAL).stat().st_size == store.size > 0

    run(tmp_path, use)
    assert content(tmp_path) == {("node", b""): [7]}


@settings(derandomize=True, deadline=None, max_examples=25)
@given(seed=st.integers(0, 1 << 20), cut=st.floats(0, 1))
def test_cut_anywhere_it_holds_the_first_of_the_writes(
    tmp_path_factory: pytest.TempPathFactory, seed: int, cut: float
) -> None:
    folder = tmp_path_factory.mktemp("store")
    writes = some_writes(seed, 8)
    ends: list[int] = []

    async def use(store: Store) -> None:
        for each in writes:
            store.write(each, lambda: None)
            await store.drain(5)
            ends.append(store.size)

    run(folder, use)
    path = folder / JOURNAL
    size = int(path.stat().st_size * cut)
    os.truncate(path, size)
    whole = sum(end <= size for end in ends)
    assert same(content(folder), model(writes[:whole]))


def test_a_full_disk_is_retried_reported_once_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "RETRY_S", 0.01)
    tries = 0
    sync = os.fdatasync

    def refuse(file: int) -> None:
        nonlocal tries
        tries += 1
        if tries <= 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    monkeypatch.setattr(os, "fdatasync", refuse)
    writes = some_writes(2, 20)
    done: list[int] = []

    async def use(store: Store) -> None:
        for number, each in enumerate(writes):
            store.write(each, lambda number=number: done.append(number))  # type: ignore[misc]
            if number == 10:
                while tries < 2:
                    await asyncio.sleep(0.001)
                assert not done
                assert store.is_refused
        await store.drain(5)
        assert not store.is_refused

    said = run(tmp_path, use)
    assert done == list(range(len(writes)))
    assert same(content(tmp_path), model(writes))
    assert [text.partition(";")[0] for text in said] == [
        f"{tmp_path / JOURNAL}: No space left on device",
        f"{tmp_path / JOURNAL}: works again",
    ]


def test_what_was_replaced_goes_when_the_file_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "GROWTH_BYTES", 20_000)
    writes = [*some_writes(4, 30), *(ballot(epoch) for epoch in range(2_000))]

    async def use(store: Store) -> None:
        largest = 0
        for number, each in enumerate(writes):
            store.write(each, lambda: None)
            if number % 100 == 0:
                await store.drain(5)
                largest = max(largest, store.size)
        await store.drain(5)
        needed = Needed()
        for each in writes:
            needed.note(0, RecordEncoder().encode(each))
        needed_bytes = sum(length for _, length in needed.places())
        assert largest < 3 * needed_bytes + 3 * 20_000

    run(tmp_path, use)
    assert same(content(tmp_path), model(writes))


def test_a_disk_too_full_to_rewrite_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "GROWTH_BYTES", 1_000)

    def refuse(*about: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    writes = [ballot(epoch, job) for epoch in range(40) for job in JOBS]

    async def use(store: Store) -> None:
        for each in writes:
            store.write(each, lambda: None)
        await store.drain(5)

    assert run(tmp_path, use) == []
    assert same(content(tmp_path), model(writes))


def test_a_second_store_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    store, _ = Store.open(tmp_path, lambda text: None)
    with pytest.raises(StateError, match=rf"in use by another agent \(pid {os.getpid()}\)"):
        Store.open(tmp_path, lambda text: None)
    store.close()
    content(tmp_path)


def test_damage_is_reported(tmp_path: Path) -> None:
    async def use(store: Store) -> None:
        for epoch in range(3):
            store.write(ballot(epoch), lambda: None)
            await store.drain(5)

    run(tmp_path, use)
    path = tmp_path / JOURNAL
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with pytest.raises(StateError, match="damaged at byte 8"):
        content(tmp_path)


def test_old_files_stay_readable(tmp_path: Path) -> None:
    """With ELF_GOLDEN=write the file is made where there is none."""
    if os.environ.get("ELF_GOLDEN") == "write" and not GOLDEN.exists():
        writes = some_writes(4, 24)

        async def use(store: Store) -> None:
            for each in writes:
                store.write(each, lambda: None)
                await store.drain(5)

        run(tmp_path / "new", use)
        GOLDEN.write_bytes((tmp_path / "new" / JOURNAL).read_bytes())
        GOLDEN.with_suffix(".txt").write_text(shown(model(writes)))
    (tmp_path / JOURNAL).write_bytes(GOLDEN.read_bytes())
    assert shown(content(tmp_path)) == GOLDEN.with_suffix(".txt").read_text()
