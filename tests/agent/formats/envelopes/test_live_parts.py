"""A live log of lines in parts, written in any pieces: restarts and rotations between the parts give the same rows."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from elf.agent.files.source import GRACE_S, Source
from elf.agent.formats import formats
from elf.agent.formats.envelopes.wrapped import make_parser
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


@pytest.mark.parametrize("kind", ["cri", "docker"])
@pytest.mark.parametrize("seed", range(6))
def test_any_restart_gives_the_same_rows(tmp_path: Path, kind: str, seed: int) -> None:
    rng = Random(seed)
    reader, path, now = Reader(tmp_path, kind), tmp_path / "0.log", 0.0
    for number in range(60):
        text = line(number)
        raw = b"".join(
            one + b"\n" for one in parts(kind, text, rng.sample(range(1, len(text)), rng.randrange(4)))
        )
        at = rng.randrange(len(raw) + 1)
        for piece in (raw[:at], raw[at:]):
            with path.open("ab") as file:
                file.write(piece)
            now += 1
            if rng.random() < 0.7:
                reader.read(now)
            if rng.random() < 0.2:
                reader.restart()
        if rng.random() < 0.1:
            path.rename(tmp_path / f"0.log.20150517-1{number:05}")
    reader.read(now)
    reader.read(now + GRACE_S + 1)
    assert sorted(reader.paths, key=lambda each: int(each[1:])) == [f"/{number}" for number in range(60)]
    assert reader.rejected == 0
    reader.source.close()


def test_a_line_that_a_rotation_divides_is_two_rejects_and_no_more(tmp_path: Path) -> None:
    reader, path = Reader(tmp_path, "cri"), tmp_path / "0.log"
    first, second = parts("cri", line(2), [50])
    path.write_bytes(parts("cri", line(1), [])[0] + b"\n" + first + b"\n")
    reader.read(0.0)
    path.rename(tmp_path / "0.log.20150517-100503")
    path.write_bytes(second + b"\n" + parts("cri", line(3), [])[0] + b"\n")
    reader.read(1.0)
    reader.restart()
    reader.read(2.0)
    reader.read(2.0 + GRACE_S + 1)
    assert (reader.paths, reader.rejected) == (["/1", "/3"], 2)
    reader.source.close()
