"""The journal against every way to stop in the middle."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.disk import journal
from elf.agent.disk.journal import Journal
from elf.errors import StateError


def write(path: Path, frames: list[list[bytes]]) -> list[int]:
    """Sync each list of records; the file's size after each."""
    journal, _ = Journal.open(path)
    sizes = [journal.size]
    for records in frames:
        for record in records:
            journal.append(record)
        journal.sync()
        sizes.append(journal.size)
    journal.close()
    return sizes


def records_of(path: Path) -> list[bytes]:
    journal, records = Journal.open(path)
    journal.close()
    return records


def test_records_come_back_in_order(tmp_path: Path) -> None:
    frames = [[b"one"], [b"two", b"", b"three"], [bytes(range(256)) * 40]]
    sizes = write(tmp_path / "journal", frames)
    assert records_of(tmp_path / "journal") == [record for records in frames for record in records]
    assert sizes[-1] == (tmp_path / "journal").stat().st_size


def test_a_file_cut_at_any_byte_gives_the_frames_before_it_and_can_grow(tmp_path: Path) -> None:
    frames = [[b"a" * 10], [b"b" * 3, b"c" * 30], [], [b"d"]]
    path = tmp_path / "journal"
    sizes = write(path, frames)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        expected = [
            record
            for records, size in zip(frames, sizes[1:], strict=True)
            if size <= cut
            for record in records
        ]
        journal, records = Journal.open(path)
        assert records == expected, cut
        journal.append(b"after")
        journal.sync()
        journal.close()
        assert records_of(path) == [*expected, b"after"], cut


def test_a_torn_tail_of_zeros_or_noise_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    sizes = write(path, [[b"a" * 100], [b"b" * 100]])
    whole = path.read_bytes()
    for tail in (bytes(124), b"\xff" * 90, whole[sizes[1] : sizes[2] - 50] + bytes(50)):
        path.write_bytes(whole[: sizes[1]] + tail)
        assert records_of(path) == [b"a" * 100]


def test_damage_in_the_middle_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    sizes = write(path, [[b"a" * 100], [b"b" * 100], [b"c" * 100]])
    whole = path.read_bytes()
    for at in range(sizes[1], sizes[2]):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StateError, match=f"damaged at byte {sizes[1]} of {len(whole)}; "):
            Journal.open(path)
    assert path.stat().st_size == len(whole)  # nothing was cut


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    frames=st.lists(st.lists(st.binary(max_size=40), max_size=3), max_size=5),
    cut=st.integers(0, 1000),
    noise=st.binary(max_size=60),
)
def test_whatever_follows_a_crash_only_whole_frames_count(
    tmp_path_factory: pytest.TempPathFactory, frames: list[list[bytes]], cut: int, noise: bytes
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    sizes = write(path, frames)
    whole = path.read_bytes()
    cut = min(cut, len(whole))
    path.write_bytes(whole[:cut] + (noise if cut >= sizes[0] else b""))
    expected = [
        record for records, size in zip(frames, sizes[1:], strict=True) if size <= cut for record in records
    ]
    found = records_of(path)
    # Noise may happen to be the bytes that were cut off; then more is whole again.
    assert found[: len(expected)] == expected
    assert found == [record for records in frames for record in records][: len(found)]


def test_rewrite_replaces_all_and_appending_continues(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, [[b"x" * 1000]] * 20)
    journal, _ = Journal.open(path)
    journal.append(b"superseded")
    journal.rewrite([b"state"])
    assert journal.size < 100
    journal.append(b"next")
    journal.sync()
    journal.close()
    assert records_of(path) == [b"state", b"next"]


def test_rewrite_takes_many_records_one_by_one_and_failing_leaves_the_old(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, [[b"old"]])
    journal, _ = Journal.open(path)

    def endless() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        journal.rewrite(endless())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["journal", "lock"]
    journal.rewrite(bytes([n]) * 400_000 for n in range(8))
    journal.append(b"next")
    journal.sync()
    journal.close()
    assert records_of(path) == [*(bytes([n]) * 400_000 for n in range(8)), b"next"]


def test_a_rewrite_that_took_place_is_never_reported_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller would pass the same rows again: they would count twice. The next `sync` raises, until the folder is synced."""
    opened, _ = Journal.open(tmp_path / "journal")
    opened.append(b"old")
    opened.sync()

    def refuse(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(journal, "_sync_folder", refuse)
        opened.rewrite([b"all"])
        opened.append(b"more")
        with pytest.raises(OSError, match="Input/output error"):
            opened.sync()
    opened.sync()
    opened.close()
    again, records = Journal.open(tmp_path / "journal")
    again.close()
    assert records == [b"all", b"more"]


def test_a_crash_while_rewriting_leaves_the_old_records(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, [[b"old"]])
    (tmp_path / "journal.new").write_bytes(b"ELFJRNL\x02 half a fra")
    assert records_of(path) == [b"old"]
    assert not (tmp_path / "journal.new").exists()


def test_a_full_disk_keeps_the_records_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    journal, _ = Journal.open(path)
    journal.append(b"one")
    journal.sync()
    before = path.read_bytes()
    real = os.pwrite

    def half_then_full(descriptor: int, content: memoryview, at: int) -> int:
        if len(content) < 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, content[: len(content) // 2], at)

    journal.append(b"two" * 30)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half_then_full)
        with pytest.raises(OSError, match="No space left"):
            journal.sync()
        assert path.read_bytes() == before
        journal.append(b"three")
        with pytest.raises(OSError, match="No space left"):
            journal.rewrite([b"state" * 10])
        assert path.read_bytes() == before
        assert not (tmp_path / "journal.new").exists()
    journal.sync()
    journal.close()
    assert records_of(path) == [b"one", b"two" * 30, b"three"]


def test_a_second_agent_gets_the_pid_of_the_folders_holder(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path / "journal")
    with pytest.raises(StateError, match=rf"in use by another agent \(pid {os.getpid()}\); stop it"):
        Journal.open(tmp_path / "journal")
    journal.close()
    journal.close()
    assert records_of(tmp_path / "journal") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ELFJRNL\x01 anything", "journal version 1 is of another version of elf; run that version, or use"),
        (b"ELFJRNL\x09 anything", "journal version 9 is of another version of elf; run that version, or use"),
        (b"GIF89a whatever", "not a journal of elf"),
    ],
)
def test_other_files_are_refused_untouched(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(StateError, match=message):
        Journal.open(path)
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="File exists; give the agent a state_dir"):
        Journal.open(tmp_path / "file" / "journal")


WRITER = """
import sys
from elf.agent.disk.journal import Journal
journal, records = Journal.open(sys.argv[1])
n = len(records)
while True:
    journal.append(b"%d" % n)
    n += 1
    journal.sync()
    print(n, flush=True)
"""


@pytest.mark.process
def test_kill_9_loses_nothing_that_was_synced(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    synced = 0
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(20):
            synced = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        records = records_of(path)
        assert len(records) >= synced
        assert records == [b"%d" % n for n in range(len(records))]
