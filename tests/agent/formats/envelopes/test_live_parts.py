"""A live log of lines in parts, written in any pieces: restarts and rotations between the parts give the same rows."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from elf.agent.files import inputs
from elf.agent.files.source import GRACE_S, Source
from elf.agent.formats import formats
from elf.agent.formats.envelopes.wrapped import make_parser
from elf.agent.work.rescan import Rescan
from tests.rigs.envelopes import parts

ASKED = ("path",)


def line(number: int) -> bytes:
    return b'::1 - - [17/May/2015:10:05:03 +0000] "GET /%d HTTP/1.1" 200 5 "-" "%s"' % (
        number,
        b"x" * (number % 40),
    )


class Reader:
    """A live reader that is started again from its positions; each block is parsed without any knowledge of those before it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.patterns, self.format = [str(folder / "0.log*")], formats.resolve(f"{kind}+combined")
        self.source = Source("access", self.patterns, start="beginning", block_bytes=400, line_max=2000)
        self.paths: list[str] = []
        self.rejected = 0

    def restart(self) -> None:
        state = self.source.positions()
        self.source.close()
        self.source = Source("access", self.patterns, state=state, block_bytes=400, line_max=2000)

    def read(self, now: float) -> None:
        self.source.scan(now)
        while (block := self.source.read(now)) is not None:
            batch = make_parser(self.format, ASKED, line_max=2000).parse(block.lines)
            self.paths += batch.columns["path"].to_python()
            self.rejected += len(batch.reject_rows)


def once(folder: Path, kind: str) -> tuple[list[str], int]:
    """The paths of one run over all files, sorted, and how many lines were rejected."""
    found, rejected = list[str](), 0
    files = sorted(folder.glob("0.log*"))
    for block in inputs.read([*files], block_bytes=400, line_max=2000, notices=print):
        batch = make_parser(formats.resolve(f"{kind}+combined"), ASKED, line_max=2000).parse(block.lines)
        found += batch.columns["path"].to_python()
        rejected += len(batch.reject_rows)
    return sorted(found, key=by_number), rejected


def by_number(path: str) -> int:
    return int(path[1:])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cri", "docker"])
@pytest.mark.parametrize("seed", range(8))
def test_any_restart_and_rotation_gives_the_same_rows(tmp_path: Path, kind: str, seed: int) -> None:
    rng = Random(seed)
    reader, path, now, rotated = Reader(tmp_path, kind), tmp_path / "0.log", 0.0, 0
    for number in range(60):
        text = line(number)
        raw = b"".join(
            one + b"\n" for one in parts(kind, text, rng.sample(range(1, len(text)), rng.randrange(4)))
        )
        at = rng.choice([rng.randrange(len(raw) + 1), raw.find(b"\n") + 1])
        for piece in (raw[:at], raw[at:]):
            with path.open("ab") as file:
                file.write(piece)
            now += 1
            if rng.random() < 0.7:
                reader.read(now)
            if rng.random() < 0.2:
                reader.restart()
            if rng.random() < 0.15 and path.read_bytes().endswith(b"\n"):
                path.rename(tmp_path / f"0.log.20150517-1{rotated:05}")
                rotated += 1
    for _ in range(4):  # each complete file lets the next one go
        reader.read(now)
        now += GRACE_S + 1
    expected = [f"/{number}" for number in range(60)]
    assert (sorted(reader.paths, key=by_number), reader.rejected) == (expected, 0)
    assert once(tmp_path, kind) == (expected, 0)
    assert rotated > 5
    reader.source.close()


def test_the_rest_of_a_line_is_in_the_next_file(tmp_path: Path) -> None:
    reader, path = Reader(tmp_path, "cri"), tmp_path / "0.log"
    first, second = parts("cri", line(2), [50])
    path.write_bytes(parts("cri", line(1), [])[0] + b"\n" + first + b"\n")
    reader.read(0.0)
    path.rename(tmp_path / "0.log.20150517-100503")
    path.write_bytes(second + b"\n" + parts("cri", line(3), [])[0] + b"\n")
    reader.read(1.0)
    assert reader.paths == ["/1"]  # the file before may still grow
    reader.restart()
    reader.read(2.0)
    reader.read(2.0 + GRACE_S + 1)
    assert (reader.paths, reader.rejected) == (["/1", "/2", "/3"], 0)
    rotated, live = sorted(reader.source.files().values(), key=lambda file: file.state.generation)
    assert (rotated.state.given, live.state.carry) == (len(first) + 1, first + b"\n")
    for file, expected in (
        (rotated, ["/1"]),
        (live, ["/2", "/3"]),
    ):  # read again from the start, as after a lost master
        again = Rescan(file, 0, 400, 2000)
        found = list[str]()
        while (block := again.next(file.state.offset)) is not None:
            found += make_parser(reader.format, ASKED).parse(block.lines).columns["path"].to_python()
        assert (found, again.offset) == (expected, file.state.offset)
        again.close()
    reader.source.close()


def test_a_line_whose_rest_is_nowhere_is_one_reject(tmp_path: Path) -> None:
    reader, path = Reader(tmp_path, "cri"), tmp_path / "0.log"
    path.write_bytes(parts("cri", line(1), [])[0] + b"\n" + parts("cri", line(2), [50])[0] + b"\n")
    reader.read(0.0)
    path.rename(tmp_path / "0.log.20150517-100503")
    path.write_bytes(b"no part\n" + parts("cri", line(3), [])[0] + b"\n")
    for now in (1.0, 2.0 + GRACE_S, 3.0 + 2 * GRACE_S):
        reader.read(now)
    assert (reader.paths, reader.rejected) == (["/1", "/3"], 2)
    assert once(tmp_path, "cri") == (["/1", "/3"], 2)
    reader.source.close()
