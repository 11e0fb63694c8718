"""The rotation matrix: every way to rotate, with the agent running, stopped in between, and reading slowly; all exact."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from tests.source_rig import GRACE_S, Log, Reader


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path)
    yield log
    log.close()


def dated(log: Log, day: int) -> Path:
    return log.folder / f"access.log-202401{day:02d}"


Step = Callable[[Log], None]

SCENARIOS: dict[str, list[Step]] = {
    "rename and create": [
        lambda log: log.append(30),
        lambda log: log.rename(),
        lambda log: log.append(5),  # the server still writes to the renamed file
        lambda log: log.reopen(),
        lambda log: log.append(30),
        lambda log: log.rename(),
        lambda log: log.reopen(),
        lambda log: log.append(3),
    ],
    "copytruncate": [
        lambda log: log.append(100),
        lambda log: log.copy(),
        lambda log: log.truncate(),
        lambda log: log.append(7),
        lambda log: log.copy(),
        lambda log: log.truncate(),
        lambda log: log.append(150),
    ],
    "copytruncate of short files": [
        lambda log: log.append(3),
        lambda log: (log.copy(), log.truncate(), log.append(3))[0],
        lambda log: log.append(2),
        lambda log: (log.copy(), log.truncate(), log.append(9))[0],
        lambda log: (log.copy(), log.truncate())[0],
        lambda log: log.append(2),
    ],
    "log, .1, .2.gz": [
        lambda log: log.append(60),
        lambda log: (log.rename(), log.reopen())[0],
        lambda log: log.append(60),
        lambda log: log.compress(log.rotated(1)),
        lambda log: (log.rename(), log.reopen())[0],
        lambda log: log.append(60),
        lambda log: log.compress(log.rotated(1)),
        lambda log: (log.rename(), log.reopen(), log.append(4))[0],
    ],
    "dates": [
        lambda log: log.append(60),
        lambda log: (log.path.rename(dated(log, 1)), log.append(2), log.reopen())[-1],
        lambda log: log.append(60),
        lambda log: log.compress(dated(log, 1)),
        lambda log: (log.path.rename(dated(log, 2)), log.reopen())[-1],
        lambda log: log.append(1),
        lambda log: log.compress(dated(log, 2)),
    ],
    "copytruncate and compress": [
        lambda log: log.append(90),
        lambda log: (log.copy(), log.truncate())[0],
        lambda log: log.append(11),
        lambda log: log.compress(log.rotated(1)),
        lambda log: (log.copy(), log.truncate())[0],
        lambda log: log.compress(log.rotated(1)),
        lambda log: log.append(11),
    ],
    "emptied and refilled past the old position": [
        lambda log: log.append(20),
        lambda log: (log.copy(), log.truncate(), log.append(80))[0],
        lambda log: (log.copy(), log.truncate(), log.append(200))[0],
    ],
}


@pytest.mark.parametrize("pattern", ["access.log", "access.log*"])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("blocks", [1, 1000])
def test_each_line_once_while_the_agent_runs(log: Log, scenario: str, pattern: str, blocks: int) -> None:
    reader = Reader(str(log.folder / pattern))
    for step in SCENARIOS[scenario]:
        step(log)
        reader.step(blocks)
    reader.settle()
    assert sorted(reader.lines) == log.written
    assert reader.source.lost_bytes == 0
    reader.close()


@pytest.mark.parametrize("pattern", ["access.log", "access.log*"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_line_once_with_the_agent_down_between_any_two_steps(tmp_path: Path, scenario: str, pattern: str) -> None:
    steps = SCENARIOS[scenario]
    for down in range(1, len(steps)):
        for up in range(down, len(steps) + 1):
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
                    step(log)
                    if not down <= number < up:
                        reader.step(blocks)
                if up == len(steps):
                    reader.resume()
                reader.settle()
                log.close()
                reader.close()
                assert sorted(reader.lines) == log.written, (down, up, blocks)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_restarting_before_every_block(log: Log, scenario: str) -> None:
    reader = Reader(str(log.folder / "access.log*"))
    for step in SCENARIOS[scenario]:
        step(log)
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
    log.append(100)
    log.rename()
    log.reopen()
    log.append(100)
    reader.step()
    assert reader.lines == log.written
    reader.close()


def test_history_is_read_oldest_first(log: Log) -> None:
    for day in range(1, 5):
        log.append(50)
        log.path.rename(dated(log, day))
        os.utime(dated(log, day), (day * 1000, day * 1000))
        log.reopen()
        if day < 3:
            log.compress(dated(log, day))
    log.append(50)
    reader = Reader(str(log.folder / "access*"))
    reader.step()
    assert reader.lines == log.written
    reader.settle()
    assert len(reader.closed) == 4
    reader.close()
