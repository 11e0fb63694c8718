"""Files of lines: whole lines only, on the disk before they are acknowledged, one file for each job and day."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from elf.sinks.delivery.contract import DeliveryError, WindowMessage
from elf.sinks.delivery.jsonl import JsonlCarrier

BODY = b'{"_elf":{},"rows":[{"path":"/\\n"},\n{"path":"b"}]}'
MESSAGE = WindowMessage("id1", "hits", "v1", "final", "1.0.1", "ff", BODY, True, 3600)
NAME = "hits.2026-11-24.jsonl"


def deliver(folder: Path, *messages: WindowMessage, day: str = "2026-11-24") -> None:
    async def work() -> None:
        carrier = JsonlCarrier(folder, lambda: day)
        await carrier.connect()
        await asyncio.gather(*map(carrier.deliver, messages))
        await carrier.close()

    asyncio.run(work())


def lines(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_each_window_is_one_line_of_its_jobs_file_of_the_day(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    deliver(folder, MESSAGE, replace(MESSAGE, job="../x y"))
    deliver(folder, MESSAGE)
    deliver(folder, MESSAGE, day="2026-11-25")
    assert {each.name: lines(each) for each in folder.iterdir()} == {
        NAME: [json.loads(BODY)] * 2,
        "..%2Fx%20y.2026-11-24.jsonl": [json.loads(BODY)],
        "hits.2026-11-25.jsonl": [json.loads(BODY)],
    }
    assert json.loads(BODY)["rows"][0]["path"] == "/\n", "a line break in a value is kept"


def test_many_at_once_stay_whole(tmp_path: Path) -> None:
    messages = [replace(MESSAGE, body=b'{"n":%d,"x":"%s"}' % (n, b"x" * 10_000)) for n in range(16)]
    deliver(tmp_path, *messages)
    assert sorted(line["n"] for line in lines(tmp_path / NAME)) == list(range(16))  # type: ignore[index]


@pytest.mark.parametrize(
    "left", [b"", b'{"n":1}\n', b'{"n":1}\n{"n":', b'{"n"', b'{"n":1}\n' + b"x" * 200_000]
)
def test_what_a_crash_left_of_a_line_is_removed(tmp_path: Path, left: bytes) -> None:
    (tmp_path / NAME).write_bytes(left)
    deliver(tmp_path, MESSAGE)
    assert lines(tmp_path / NAME) == [*([{"n": 1}] if b"\n" in left else []), json.loads(BODY)]


def test_a_full_disk_acknowledges_nothing_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(tmp_path, MESSAGE)
    pwrite, room = os.pwrite, [20]

    def full(file: int, data: bytes, at: int) -> int:
        if not room:
            raise OSError(28, "No space left on device")
        return pwrite(file, data[: room.pop()], at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DeliveryError, match=r"^No space left on device$"):
        deliver(tmp_path, MESSAGE)
    monkeypatch.setattr(os, "pwrite", pwrite)
    deliver(tmp_path, MESSAGE)
    assert lines(tmp_path / NAME) == [json.loads(BODY)] * 2


def test_it_is_on_the_disk_before_it_is_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    fsync = os.fsync

    def sync(file: int) -> None:
        synced.append(os.path.isdir(f"/proc/self/fd/{file}"))
        fsync(file)

    monkeypatch.setattr(os, "fsync", sync)
    deliver(tmp_path, MESSAGE)
    assert synced == [False, True], "the line, and the name of the new file"
    deliver(tmp_path, MESSAGE)
    assert synced == [False, True, False]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: path.symlink_to("/etc/passwd"), "Too many levels of symbolic links"),
        (os.mkfifo, "is no regular file"),
        (Path.mkdir, "Is a directory"),
    ],
)
def test_what_is_no_file_is_refused(tmp_path: Path, make: object, expected: str) -> None:
    make(tmp_path / NAME)  # type: ignore[operator]
    with pytest.raises(DeliveryError, match=f"{NAME}: {expected}"):
        deliver(tmp_path, MESSAGE)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DeliveryError, match="file/x: Not a directory"):
        deliver(tmp_path / "file" / "x", MESSAGE)
