"""Which file is which: the cases that `Source` names one by one. Copies, archives, emptied and replaced files."""

from __future__ import annotations

import bz2
import gzip
import os
import shutil
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import zstandard

from elf.agent.files import finding, recognise
from elf.agent.files.content import Content
from elf.agent.files.follow import Followed
from elf.agent.files.source import SourceState
from tests.rigs.source_rig import Log, Reader, compress, read_all

HEADER = b"#Software: a server\n#Fields: date time status\n"


# Short files and equal beginnings.


def test_an_equal_beginning_does_not_make_two_files_one(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(HEADER)
    (tmp_path / "b.log").write_bytes(HEADER)
    (tmp_path / "b.log.1").write_bytes(HEADER + b"1\n")
    os.utime(tmp_path / "b.log.1", (1, 1))
    reader = read_all(tmp_path / "*.log*")
    reader.settle()
    assert sorted(reader.lines) == sorted(HEADER.splitlines() * 3 + [b"1"])
    reader.close()


def test_a_new_file_that_begins_like_the_old_one_is_read_from_its_start(log: Log) -> None:
    os.write(log.writer, HEADER + b"1\n2\n3\n")
    reader = read_all(log.folder / "access.log*")
    log.rename()
    log.reopen()
    os.write(log.writer, HEADER + b"1\n")
    reader.step()
    os.write(log.writer, b"4\n")
    reader.settle()
    assert Counter(reader.lines) == Counter(HEADER.splitlines() * 2 + [b"1", b"2", b"3", b"1", b"4"])
    reader.close()


def test_emptied_and_begun_alike_is_read_again(log: Log) -> None:
    os.write(log.writer, HEADER + b"1\n2\n")
    reader = read_all(log.path)
    log.truncate()
    os.write(log.writer, HEADER + b"7\n8\n9\n")
    reader.settle()
    assert Counter(reader.lines) == Counter(HEADER.splitlines() * 2 + [b"1", b"2", b"7", b"8", b"9"])
    assert any("emptied, cut short or replaced after byte" in notice for notice in reader.notices)
    reader.close()


@pytest.mark.parametrize("is_down", [False, True])
def test_a_log_that_lost_its_end_is_not_read_again(log: Log, is_down: bool) -> None:
    """As after a power failure, when the positions are on disk and the last lines are not: reading resumes at its end."""
    log.append(100)
    reader = read_all(log.path)
    if is_down:
        reader.stop()
    os.truncate(log.path, 60 * 41)
    if is_down:
        reader.resume()
    reader.step()
    log.append(5)
    reader.settle()
    assert reader.lines == log.written
    assert any(
        f"{log.path}: 4100 bytes of it were read, and it now has only the first 2460 of them" in notice
        for notice in reader.notices
    )
    reader.restart()
    log.append(5)
    reader.settle()
    assert reader.lines == log.written
    reader.close()


@pytest.mark.parametrize("count", [1, 20])
def test_what_is_left_of_a_log_under_1_kib_is_no_evidence(log: Log, count: int) -> None:
    """It may as well be another log that begins alike."""
    log.append(100)
    reader = read_all(log.path)
    os.truncate(log.path, count * 41)
    reader.settle()
    assert reader.lines == log.written + log.written[:count]
    reader.close()


def test_an_inode_number_used_again_is_another_file(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(30)
    reader = read_all(log.path)
    reader.stop()
    state = msgspec.msgpack.decode(reader.saved, type=SourceState)
    log.path.unlink()
    log.reopen()
    log.append(50)
    state.files[0].inode = log.path.stat().st_ino  # as if the file system had given the same number
    reader.saved = msgspec.msgpack.encode(state)
    reader.resume()
    reader.step()
    assert reader.lines == log.written
    reader.close()


def test_another_device_number_after_a_reboot_is_the_same_file(log: Log) -> None:
    log.append(30)
    reader = read_all(log.path)
    reader.stop()
    state = msgspec.msgpack.decode(reader.saved, type=SourceState)
    state.files[0].device += 1
    reader.saved = msgspec.msgpack.encode(state)
    log.append(3)
    reader.resume()
    reader.step()
    assert reader.lines == log.written
    reader.close()


def test_logs_moved_to_another_disk_continue(log: Log, tmp_path: Path) -> None:
    log.append(100)
    log.rename()
    log.reopen()
    log.append(100)
    reader = read_all(log.folder / "access.log*")
    reader.stop()
    for path in (log.path, log.rotated(1)):
        shutil.copy2(path, tmp_path / "copy")
        os.replace(tmp_path / "copy", path)  # all inode numbers are new
    log.reopen()
    log.append(1)
    reader.resume()
    reader.settle()
    assert reader.lines == log.written
    reader.close()


# Copies and archives.


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_an_archive_continues_where_the_file_was_left(log: Log, ending: str) -> None:
    log.append(120)
    reader = Reader(str(log.folder / "access.log*"))
    reader.step(1)
    assert 0 < len(reader.lines) < 100
    reader.stop()
    data = log.path.read_bytes()
    packed = gzip.compress(data) if ending == "gz" else zstandard.compress(data)
    (log.folder / f"access.log.2.{ending}").write_bytes(packed)
    log.path.unlink()
    log.reopen()
    log.append(5)
    reader.resume()
    reader.settle()
    assert reader.lines == log.written
    assert any("continued in" in notice for notice in reader.notices)
    reader.close()


@pytest.mark.parametrize("keep", [True, False])
def test_an_archive_beside_its_file_counts_once(log: Log, keep: bool) -> None:
    log.append(60)
    log.rename()
    log.reopen()
    log.append(2)
    (log.folder / "access.log.1.gz").write_bytes(gzip.compress(log.rotated(1).read_bytes()))
    reader = read_all(log.folder / "access.log*")
    reader.settle()
    assert sorted(reader.lines) == log.written
    assert [notice for notice in reader.notices if "counted once" in notice] == [
        f"access: {log.rotated(1)}.gz: the same content as {log.rotated(1)}; counted once"
    ]
    if not keep:
        log.rotated(1).unlink()
    reader.settle()
    reader.restart()
    reader.settle()
    assert sorted(reader.lines) == log.written
    reader.close()


def test_an_archive_in_the_making_is_not_read(log: Log) -> None:
    log.append(5000)
    log.rename()
    log.reopen()
    packed = gzip.compress(log.rotated(1).read_bytes())
    reader = read_all(log.folder / "access.log*")
    archive = log.folder / "access.log.1.gz"
    for stop in range(1, len(packed), len(packed) // 7):
        archive.write_bytes(packed[:stop])
        reader.step()
    archive.write_bytes(packed)
    reader.step()
    log.rotated(1).unlink()
    reader.settle()
    assert reader.lines == log.written
    reader.close()


def test_several_members_and_a_cut_off_archive(tmp_path: Path) -> None:
    whole = gzip.compress(b"1\n2\n") + gzip.compress(b"3\n")
    (tmp_path / "a.log.2.gz").write_bytes(whole)
    (tmp_path / "b.log.2.gz").write_bytes(gzip.compress(b"4\n" * 5000)[:-12])
    reader = read_all(tmp_path / "*.gz")
    reader.settle()
    assert [line for line in reader.lines if line != b"4"] == [b"1", b"2", b"3"]
    assert reader.lines.count(b"4") > 1000
    assert any("b.log.2.gz: the compressed data ends early" in notice for notice in reader.notices)
    reader.close()


def test_corrupt_and_unknown_archives_are_reported_and_do_not_stop_the_rest(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(os.urandom(5000).hex().encode() + b"\n"))
    packed[200:260] = bytes(60)
    (tmp_path / "a.log.1.gz").write_bytes(packed)
    (tmp_path / "a.log.2.bz2").write_bytes(bz2.compress(b"0\n") + bz2.compress(b"more\n")[:-5])
    (tmp_path / "a.log").write_bytes(b"1\n")
    reader = read_all(tmp_path / "a.log*")
    reader.settle()
    assert reader.lines[-1] == b"1"
    assert any("a.log.1.gz: corrupt gzip data" in notice for notice in reader.notices)
    assert any("a.log.2.bz2: the compressed data ends early" in notice for notice in reader.notices)
    reader.close()


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("down", [True, False])
def test_lines_that_the_tool_lost_but_we_read_do_not_make_the_copy_a_new_file(
    log: Log, seen: bool, down: bool
) -> None:
    log.append(100)
    reader = read_all(log.folder / "access.log*")
    log.append(10)
    log.copy()
    log.append(3)  # not in the copy
    reader.now += 0.01
    if seen:
        reader.step()
    while reader.read_block():
        pass
    assert reader.lines == log.written
    if down:
        reader.stop()
    log.truncate()
    log.append(2)
    if down:
        reader.resume()
    reader.settle()
    assert reader.lines == log.written
    compress(log.rotated(1))
    reader.settle()
    reader.restart()
    reader.settle()
    assert reader.lines == log.written
    reader.close()


def test_emptied_and_refilled_between_looking_and_reading(log: Log) -> None:
    log.append(20)
    reader = read_all(log.path)
    reader.now += 1
    reader.source.scan(reader.now)
    log.truncate()
    log.append(50)
    while reader.read_block():
        pass
    assert reader.lines == log.written
    reader.close()


def test_equal_start_and_end_with_another_middle_is_another_file(log: Log) -> None:
    start, end = HEADER * 50, b"z" * 70 + b"\n"
    os.write(log.writer, start + b"one\n" + end)
    reader = read_all(log.folder / "access.log*")
    reader.stop()
    log.path.unlink()
    log.rotated(1).write_bytes(start + b"two\n" + end + b"more\n")
    reader.resume()
    reader.settle()
    assert Counter(reader.lines)[b"one"] == Counter(reader.lines)[b"two"] == 1
    reader.close()


def test_an_archive_that_moves_while_a_copy_is_held_against_it(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look decides: nothing is wrong, and no action is needed."""
    log.append(100)
    packed = log.folder / "access.log.1.gz"
    packed.write_bytes(gzip.compress(log.path.read_bytes()))
    os.truncate(log.path, 0)
    reader = Reader(f"{log.folder}/access.log*", block_bytes=128)
    reader.step(blocks=1)
    moved = log.folder / "access.log.2.gz"
    original = recognise.common

    def renamed(content: Content, file: Followed, start: int = 0, *, thorough: bool) -> int | None:
        if file.path == str(packed):
            file.close()
            packed.rename(moved)
        return original(content, file, start, thorough=thorough)

    monkeypatch.setattr(finding, "common", renamed)
    (log.folder / "access.log.1.zst").write_bytes(zstandard.compress(gzip.decompress(packed.read_bytes())))
    reader.step()
    assert not packed.exists()
    reader.settle()
    assert reader.lines == log.written
    assert reader.notices == [
        f"access: {packed}: renamed to {moved}",
        f"access: {log.folder / 'access.log.1.zst'}: the same content as {moved}; counted once",
    ]
    reader.close()


def test_archives_that_move_up_at_a_rotation_are_no_news(log: Log) -> None:
    log.append(10)
    (log.folder / "access.log.1.zst").write_bytes(zstandard.compress(log.path.read_bytes()))
    os.truncate(log.path, 0)
    reader = Reader(f"{log.folder}/access.log*")
    reader.settle()
    reader.notices.clear()
    (log.folder / "access.log.1.zst").rename(log.folder / "access.log.2.zst")
    reader.settle()
    assert reader.lines == log.written
    assert reader.notices == []
    reader.close()


# Another folder.


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("is_half_read", [False, True])
def test_logs_in_another_folder_continue_under_another_pattern(
    tmp_path: Path, is_gone: bool, is_half_read: bool
) -> None:
    """It was copied to another disk, or the machine cloned; the old one is gone, or still there, and its server goes on."""
    (tmp_path / "old").mkdir()
    log = Log(tmp_path / "old")
    for _ in range(3):
        log.append(60)
        log.rename()
        log.reopen()
    compress(tmp_path / "old" / "access.log.3")
    log.append(60)
    reader = read_all(tmp_path / "old" / "access.log*")
    if is_half_read:
        log.append(100)
        reader.step(blocks=1)
    reader.stop()
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    written = [*log.written, b"behind the copy"]
    with (tmp_path / "new" / "access.log").open("ab") as file:
        file.write(b"behind the copy\n")
    if is_gone:
        shutil.rmtree(tmp_path / "old")
    else:
        log.append(5)  # of the other machine
    reader.patterns = (str(tmp_path / "new" / "access.log*"),)
    reader.resume()
    reader.settle()
    assert reader.lines == written
    log.folder = tmp_path / "new"
    reader.restart()
    with (tmp_path / "new" / "access.log").open("ab") as file:
        file.write(b"and later\n")
    reader.settle()
    assert reader.lines == [*written, b"and later"]
    reader.close()


def test_a_link_to_a_log_that_was_continued_in_another_folder_counts_no_line_twice(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    log = Log(tmp_path / "old")
    log.append(60)
    reader = read_all(tmp_path / "old" / "access.log*")
    reader.stop()
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    reader.patterns = (str(tmp_path / "new" / "access.log*"),)
    reader.resume()
    reader.settle()
    (tmp_path / "new" / "access.log.link").symlink_to(log.path)
    reader.settle()
    assert reader.lines == log.written
    reader.close()


def test_a_server_of_another_folder_with_other_lines_is_another_log(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    log, other = Log(tmp_path / "old"), Log(tmp_path / "new", width=50)
    log.append(60)
    reader = read_all(log.path)
    reader.stop()
    other.append(80)
    reader.patterns = (str(other.path),)
    reader.resume()
    reader.settle()
    assert reader.lines[:60] == log.written
    assert reader.lines[60:] == other.written
    reader.close()


@pytest.mark.parametrize("is_down", [False, True])
def test_the_log_behind_a_link_that_has_moved_on_is_finished_also_when_it_is_packed(
    tmp_path: Path, is_down: bool
) -> None:
    """As with a folder a day: the link leads to the new day's file, and the old day's one is packed with lines not read yet."""
    days = [tmp_path / name for name in ("monday", "tuesday")]
    for day in days:
        day.mkdir()
    log, link = Log(days[0]), tmp_path / "current.log"
    link.symlink_to(log.path)
    log.append(60)
    reader = read_all(link)
    if is_down:
        reader.stop()
    log.append(60)
    log.close()
    log.move(days[1])
    link.unlink()
    link.symlink_to(log.path)
    log.append(40)
    compress(days[0] / "access.log")
    if is_down:
        reader.resume()
    reader.settle()
    assert sorted(reader.lines) == log.written
    reader.close()
