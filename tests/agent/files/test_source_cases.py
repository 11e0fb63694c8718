"""Single facts of following: identity, odd files, permissions, bounds, and the notices of a source."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from elf.agent.files import names
from elf.agent.files.inotify import Inotify
from elf.agent.files.known import OPEN_MAX
from elf.agent.files.source import Source
from tests.rigs.source_rig import GRACE_S, Log, Reader, compress, read_all

HEADER = b"#Software: a server\n#Fields: date time status\n"


# Lines.


def test_a_line_waits_for_its_end(log: Log) -> None:
    os.write(log.writer, b"on")
    reader = read_all(log.path)
    assert reader.lines == []
    assert not reader.source.at_end
    os.write(log.writer, b"e\ntw")
    reader.step()
    assert reader.lines == [b"one"]
    reader.restart()
    os.write(log.writer, b"o\n")
    reader.step()
    assert reader.lines == [b"one", b"two"]
    reader.close()


def test_the_last_line_of_a_rotated_file_may_lack_its_newline(log: Log) -> None:
    os.write(log.writer, b"one\ntwo")
    reader = read_all(log.folder / "access.log*")
    log.rename()
    log.reopen()
    os.write(log.writer, b"three\n")
    reader.step()
    assert reader.lines == [b"one", b"three"]
    reader.wait(GRACE_S + 1)
    assert sorted(reader.lines) == [b"one", b"three", b"two"]
    reader.restart()
    reader.settle()
    assert len(reader.lines) == 3
    reader.close()


@pytest.mark.parametrize("step", [1, 7, 300, 5000])
def test_long_lines_are_skipped_and_counted_however_they_arrive(log: Log, step: int) -> None:
    fits, long, huge = b"f" * 512, b"l" * 513, b"h" * 9000
    content = b"\n".join([b"1", long, b"2", fits, huge, huge, b"3", long]) + b"\n4\n"
    reader = Reader(str(log.path), block_bytes=1024)
    for start in range(0, len(content), step):
        os.write(log.writer, content[start : start + step])
        if step > 1 or start % 97 == 0:
            reader.step()
    reader.step()
    assert reader.lines == [b"1", b"2", fits, b"3", b"4"]
    assert reader.too_long == 4
    assert list(reader.ends.values()) == [len(content)]
    reader.close()


def test_restarting_inside_a_long_line_counts_it_once(log: Log) -> None:
    reader = Reader(str(log.path))
    for part in (b"1\n" + b"x" * 3000, b"x" * 3000, b"x\n2\n"):
        os.write(log.writer, part)
        reader.step()
        reader.restart()
    reader.step()
    assert reader.lines == [b"1", b"2"]
    assert reader.too_long == 1
    reader.close()


# Where reading begins.


def test_start_at_the_end_reads_only_what_comes(log: Log) -> None:
    log.append(50)
    log.rename()
    log.reopen()
    log.append(20)
    compress(log.rotated(1))
    os.write(log.writer, b"half")
    reader = read_all(log.folder / "access.log*", start="end")
    assert reader.lines == []
    os.write(log.writer, b" and half\n")
    log.append(2)
    reader.step()
    assert reader.lines == [b"half and half", *log.written[-2:]]
    assert reader.source.head().splitlines()[0] == log.written[50]
    log.rename()
    log.reopen()
    log.append(1)
    reader.restart()
    reader.settle()
    log.copy()
    log.truncate()
    log.append(1)
    reader.settle()
    assert reader.lines == [b"half and half", *log.written[-4:]]
    reader.close()


def test_a_file_that_appears_later_is_read_from_its_start_for_any_start(log: Log) -> None:
    reader = read_all(log.folder / "*.log", start="end")
    (log.folder / "other.log").write_bytes(b"1\n")
    reader.step()
    assert reader.lines == [b"1"]
    reader.close()


# Links, doubles, folders.


def test_a_link_that_moves_on(tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / f"app-{day}.log").write_bytes(b"%d\n" % day)
    link = tmp_path / "current"
    link.symlink_to("app-1.log")
    reader = read_all(link)
    with (tmp_path / "app-1.log").open("ab") as log:
        log.write(b"1 late\n")
    (tmp_path / "new").symlink_to("app-2.log")
    os.replace(tmp_path / "new", link)
    reader.step()
    assert sorted(reader.lines) == [b"1", b"1 late", b"2"]
    reader.restart()
    reader.settle()
    assert sorted(reader.lines) == [b"1", b"1 late", b"2"]
    reader.close()


def test_a_file_matched_twice_counts_once_with_one_notice(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"1\n")
    (tmp_path / "b.log").symlink_to("a.log")
    os.link(tmp_path / "a.log", tmp_path / "c.log")
    reader = read_all(tmp_path / "*.log", tmp_path / "a.log")
    reader.settle()
    assert reader.lines == [b"1"]
    assert len([notice for notice in reader.notices if "counted once" in notice]) == 2
    reader.close()


def test_a_pattern_over_folders_gains_files(tmp_path: Path) -> None:
    reader = read_all(tmp_path / "*" / "access.log")
    for site in ("a", "b"):
        (tmp_path / site).mkdir()
        (tmp_path / site / "access.log").write_bytes(site.encode() + b"\n")
        reader.step()
    assert reader.lines == [b"a", b"b"]
    reader.close()


def test_a_missing_file_is_reported_once_and_read_when_it_appears(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "access.log"
    reader = read_all(path)
    reader.step()
    assert reader.notices == [f"access: {path}: no such file or directory; waiting for it"]
    path.parent.mkdir()
    path.write_bytes(b"1\n")
    reader.step()
    assert reader.lines == [b"1"]
    reader.close()


# Vanishing and permission.


def test_a_deleted_file_is_read_to_its_end(log: Log) -> None:
    log.append(200)
    reader = Reader(str(log.path))
    reader.step(1)
    log.path.unlink()
    log.append(1)
    reader.settle()
    assert reader.lines == log.written
    assert any("deleted; reading what is left of it" in notice for notice in reader.notices)
    assert len(reader.closed) == 1
    reader.close()


def test_bytes_that_vanish_unread_are_reported(log: Log) -> None:
    log.append(100)
    reader = Reader(str(log.path))
    reader.step(1)
    unread = log.path.stat().st_size - reader.source.positions().files[0].offset
    reader.step(0)
    log.truncate()
    reader.settle()
    assert reader.source.lost_bytes == unread > 0
    assert any(f"gone with {unread} bytes that were not read" in notice for notice in reader.notices)
    reader.close()


@pytest.mark.parametrize("start", ["beginning", "end"])
def test_permission_denied_then_granted(tmp_path: Path, start: str) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(b"1\n2\n")
    path.chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        reader = read_all(path, start=start)
        reader.step()
        assert reader.notices == [f"access: {path}: permission denied; waiting until it can be read"]
        if root:
            os.seteuid(0)
        with open(os.open(path, os.O_WRONLY | os.O_APPEND) if root else path, "ab") as log:
            log.write(b"3\n")
        path.chmod(0o644)
        if root:
            os.seteuid(65534)
        reader.step()
        assert reader.lines == ([b"1", b"2", b"3"] if start == "beginning" else [b"3"])
        assert reader.notices[1:] == [f"access: {path}: can be read now"]
        reader.close()
    finally:
        if root:
            os.seteuid(0)


# What a source says about itself.


def test_complete_until_is_the_scan_and_backlog_holds_it_back(log: Log) -> None:
    log.append(200)
    source = Source(
        "access", [str(log.path)], start="beginning", block_bytes=1024, line_max=512, grace_s=GRACE_S
    )

    def said() -> tuple[bool, float | None]:
        return source.at_end, source.complete_until

    source.scan(10.0)
    assert said() == (False, None)
    assert source.lag_bytes() == {str(log.path): 200 * 41}
    while source.read(11.0) is not None:
        assert said() == (False, None)
    assert said() == (True, 10.0)
    source.scan(12.0)
    assert said() == (False, None)
    assert source.read(13.0) is None
    assert said() == (True, 12.0)
    log.append(1)
    source.scan(14.0)
    assert source.read(14.0) is not None
    assert said() == (False, None)
    source.close()
    source.close()


def test_the_head_of_a_file_can_be_read_at_any_time(log: Log) -> None:
    os.write(log.writer, HEADER)
    log.append(100)
    reader = read_all(log.path)
    key = next(iter(reader.ends))
    assert reader.source.head(key).startswith(HEADER)
    assert reader.source.head(key).endswith(b"\n")
    reader.close()


def test_many_files_need_few_descriptors(tmp_path: Path) -> None:
    expected = []
    for number in range(3 * OPEN_MAX):
        (tmp_path / f"{number:03d}.log").write_bytes(b"%d\n" % number)
        expected.append(b"%d" % number)
    before = len(os.listdir("/proc/self/fd"))
    reader = read_all(tmp_path / "*.log")
    assert len(os.listdir("/proc/self/fd")) - before <= OPEN_MAX + 1
    for number in range(3 * OPEN_MAX):
        with (tmp_path / f"{number:03d}.log").open("ab") as log:
            log.write(b"again %d\n" % number)
        expected.append(b"again %d" % number)
    reader.step()
    assert sorted(reader.lines) == sorted(expected)
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_states_stay_small(log: Log) -> None:
    reader = Reader(str(log.folder / "access.log*"))
    for _ in range(100):
        log.append(50)
        reader.step()
        log.rename()
        log.reopen()
        (log.rotated(5)).unlink(missing_ok=True)
    reader.settle()
    assert reader.lines == log.written
    assert len(reader.source.positions().files) <= 4 + 64 + 2
    assert len(msgspec.msgpack.encode(reader.source.positions())) < 20_000
    reader.close()


@pytest.mark.parametrize(
    "scenario", ["append 30; rename; reopen; append 30", "append 30; copy; truncate; append 9"]
)
def test_without_inotify_all_is_the_same(log: Log, monkeypatch: pytest.MonkeyPatch, scenario: str) -> None:
    monkeypatch.setattr("elf.agent.files.inotify.ctypes.CDLL", lambda *_, **__: None)
    reader = read_all(log.folder / "access.log*")
    assert (reader.source.fileno(), reader.source.poll_s, reader.source.wake()) == (-1, 0.25, False)
    for action in scenario.split("; "):
        log.do(action)
        reader.step()
    reader.settle()
    assert sorted(reader.lines) == log.written
    reader.close()


def test_inotify_watches_a_folder_that_was_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    inotify = Inotify()
    inotify.watch({str(folder), str(tmp_path / "none")})
    assert inotify.failed == {str(tmp_path / "none")}
    folder.rmdir()
    folder.mkdir()
    assert inotify.drain()
    inotify.watch({str(folder)})
    inotify.moved = False
    (folder / "a").write_bytes(b"1")
    assert inotify.drain()
    assert inotify.moved
    assert inotify.written == {"a"}
    inotify.close()


@pytest.mark.parametrize(
    ("name", "family", "rotated"),
    [
        ("access.log", "access.log", False),
        ("access.log.1", "access.log", True),
        ("access.log.12.gz", "access.log", True),
        ("access.log-20240131", "access.log", True),
        ("access.log-20240131-1706659200.zst", "access.log", True),
        ("access-2024-01-31.log", "access.log", True),
        ("access.1.log", "access.log", True),
        ("access_log", "access_log", False),
        ("access.log.gz", "access.log", True),
        ("access.log.old", "access.log", True),
        ("web2.access.log", "web2.access.log", False),
        ("ssl_access.log.2024-01-31-13", "ssl_access.log", True),
    ],
)
def test_families(name: str, family: str, rotated: bool) -> None:
    assert names.family("/var/log/" + name) == family
    assert names.looks_rotated("/var/log/" + name) == rotated


def test_ages_order_siblings() -> None:
    numbered = ["a.log.10.gz", "a.log.9", "a.log.1", "a.log"]
    dated = ["a.log-20231231", "a.log-20240101.gz", "a.log"]
    assert sorted(set(numbered), key=names.age) == numbered
    assert sorted(set(dated), key=names.age) == dated
