"""The rotation matrix: every way to rotate, with the agent running, stopped in between, and reading slowly; all exact."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.rigs.source_rig import Log, Reader, read_all

SCENARIOS = {
    # Between `rename` and `reopen` the server still writes to the renamed file.
    "rename and create": [
        *("append 30", "rename", "append 5", "reopen", "append 30", "rename", "reopen", "append 3"),
    ],
    "copytruncate": [
        *("append 100", "copy", "truncate", "append 7", "copy", "truncate", "append 150"),
    ],
    "copytruncate of short files": [
        *(
            "append 3",
            "copy; truncate; append 3",
            "append 2",
            "copy; truncate; append 9",
            "copy; truncate",
            "append 2",
        ),
    ],
    "log, .1, .2.gz": [
        *(
            "append 60",
            "rename; reopen",
            "append 60",
            "compress 1",
            "rename; reopen",
            "append 60",
            "compress 1",
        ),
        "rename; reopen; append 4",
    ],
    "dates": [
        *(
            "append 60",
            "rename_dated 1; append 2; reopen",
            "append 60",
            "compress_dated 1",
            "rename_dated 2; reopen",
        ),
        *("append 1", "compress_dated 2"),
    ],
    "copytruncate and compress": [
        *(
            "append 90",
            "copy; truncate",
            "append 11",
            "compress 1",
            "copy; truncate",
            "compress 1",
            "append 11",
        ),
    ],
    "emptied and refilled past the old position": [
        *("append 20", "copy; truncate; append 80", "copy; truncate; append 200"),
    ],
}


@pytest.mark.parametrize("pattern", ["access.log", "access.log*"])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("blocks", [1, 1000])
def test_each_line_once_while_the_agent_runs(log: Log, scenario: str, pattern: str, blocks: int) -> None:
    reader = Reader(str(log.folder / pattern))
    for step in SCENARIOS[scenario]:
        log.do(step)
        reader.step(blocks)
    reader.settle()
    assert sorted(reader.lines) == log.written
    assert reader.source.lost_bytes == 0
    reader.close()


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["access.log", "access.log*"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_line_once_with_the_agent_down_between_any_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, pattern: str
) -> None:
    # By polling, for closing an inotify descriptor takes the kernel some 20 ms.
    monkeypatch.setattr("elf.agent.files.inotify.ctypes.CDLL", lambda *_, **__: None)
    steps = SCENARIOS[scenario]
    for down in range(1, len(steps)):
        for up in range(down, min(down + 3, len(steps)) + 1):
            for blocks in (1, 1000) if up - down < 2 else (1,):
                folder = tmp_path / f"{down}-{up}-{blocks}"
                folder.mkdir()
                log = Log(folder)
                reader = Reader(str(folder / pattern))
                for number, step in enumerate(steps):
                    if number == down:
                        reader.stop()
                    if number == up:
                        reader.resume()
                    log.do(step)
                    if not down <= number < up:
                        reader.step(blocks)
                if up == len(steps):
                    reader.resume()
                reader.settle()
                log.close()
                reader.close()
                assert sorted(reader.lines) == log.written, (down, up, blocks)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_restarting_before_every_block(log: Log, scenario: str) -> None:
    reader = Reader(str(log.folder / "access.log*"))
    for step in SCENARIOS[scenario]:
        log.do(step)
        reader.step(1)
        reader.restart()
    for _ in range(40):
        reader.step(1)
        reader.restart()
    reader.settle()
    assert sorted(reader.lines) == log.written
    reader.close()


def test_the_end_of_a_rotated_file_comes_before_the_new_one(log: Log) -> None:
    reader = Reader(str(log.folder / "access.log*"))
    log.append(10)
    reader.step()
    log.do("append 100; rename; reopen; append 100")
    reader.step()
    assert reader.lines == log.written
    reader.close()


def test_history_is_read_oldest_first(log: Log) -> None:
    for day in range(1, 5):
        log.do(f"append 50; rename_dated {day}")
        os.utime(log.dated(day), (day * 1000, day * 1000))
        log.do("reopen" if day >= 3 else f"reopen; compress_dated {day}")
    log.append(50)
    reader = Reader(str(log.folder / "access*"))
    reader.step()
    assert reader.lines == log.written
    reader.settle()
    assert len(reader.closed) == 4
    reader.close()


def test_a_log_that_is_written_while_it_is_read_is_read_further_at_a_later_time(log: Log) -> None:
    log.append(3)
    reader = read_all(log.folder / "access.log")
    log.append(2)
    assert reader.step(blocks=1) == 1
    log.append(1)
    assert not reader.read_block()
    assert reader.source.at_end
    reader.now += 0.001
    assert reader.read_block()
    assert reader.lines == log.written
    reader.close()
