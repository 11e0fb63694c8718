"""Pieces of files: together they are the files, whatever their size."""

from __future__ import annotations

import gzip
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.files.blocks import Block
from elf.agent.files.inputs import read
from elf.agent.formats.formats import resolve
from elf.agent.spark import pieces as pieces_module
from elf.agent.spark.pieces import Piece, blocks, piece_bytes, pieces, tasks
from elf.errors import SourceError
from tests.rigs.lines import lines

COMBINED = resolve("combined")


def content(found: list[Block]) -> tuple[bytes, int]:
    """The lines of blocks that are already copied, and how many were too long."""
    return b"".join(bytes(block.lines) for block in found), sum(block.too_long for block in found)


def copied(piece: Piece) -> list[Block]:
    found = []
    for block in blocks(piece):
        block.data = bytes(block.data)
        found.append(block)
    return found


line = st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"_"))


@settings(max_examples=60)
@given(st.lists(line, max_size=12), st.booleans(), st.booleans(), st.integers(1, 40))
def test_pieces_of_any_size_are_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, some: list[bytes], marked: bool, ended: bool, size: int
) -> None:
    text = b"\xef\xbb\xbf" * marked + b"\n".join(some) + b"\n" * ended
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(b"plain" + text if text[:1] in b"\x1f\x28\xfd\x04B\xff\xfe\x50" else text)
    whole = []
    for block in read([path], notices=print):
        block.data = bytes(block.data)
        whole.append(block)
    parts = [copied(piece) for piece in pieces({str(path): COMBINED}, size)]
    assert content([block for part in parts for block in part]) == content(whole)
    ends = [(part[0].start, part[-1].end) for part in parts]
    assert all(one[1] == other[0] for one, other in pairwise(ends))


def test_a_line_that_is_too_long_counts_in_the_piece_where_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(b"a\n" + b"x" * 300_000 + b"\nb\n")
    counts = [content(copied(piece)) for piece in pieces({str(path): COMBINED}, 50_000)]
    assert counts == [(b"a\n", 1), *[(b"", 0)] * 5, (b"b\n", 0)]


def test_files_that_cannot_be_entered_are_read_whole(tmp_path: Path) -> None:
    text = "\n".join(lines(200, 1)).encode()
    packed, plain, wide = (tmp_path / name for name in ("a.log.gz", "b.log", "c.log"))
    packed.write_bytes(gzip.compress(text))
    plain.write_bytes(text)
    wide.write_bytes(text.decode().encode("utf-16"))
    w3c, cri = tmp_path / "iis.log", [tmp_path / "0.log.20260101", tmp_path / "0.log"]
    w3c.write_text("#Fields: date time c-ip\n2026-01-01 00:00:00 ::1\n")
    for path in cri:
        path.write_text(f"2026-01-01T00:00:00.000000000Z stdout F {text.decode()}\n")
    formats = {str(path): COMBINED for path in (packed, plain, wide)} | {str(w3c): resolve("w3c")}
    formats |= {str(path): resolve("cri+combined") for path in cri}
    found = list(pieces(formats, 10_000))
    assert {os.path.basename(piece.paths[0]) for piece in found if piece.end is not None} == {"b.log"}
    assert [len(piece.paths) for piece in found if piece.end is None] == [1, 1, 1, 2]
    assert content(copied(found[0])) == (text, 0)


def test_small_pieces_share_a_task() -> None:
    sizes = [9, 1, 1, 1, 9, 3]
    found = [Piece((str(i),), (COMBINED,), size << 20) for i, size in enumerate(sizes)]
    shared = [[int(piece.paths[0]) for piece in task] for task in tasks(found, 9 << 20)]
    assert shared == [[0], [1, 2, 3], [4], [5]]
    assert tasks([], 9) == []
    assert piece_bytes(100 << 20, 4) == 25 << 20
    assert piece_bytes(1, 4) == pieces_module.PIECE_BYTES_MIN
    assert piece_bytes(1 << 40, 4) == pieces_module.PIECE_BYTES_MAX


def test_a_file_that_is_another_one_by_now_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text("\n".join(lines(50, 1)) + "\n")
    piece = next(pieces({str(path): COMBINED}, 1 << 20))
    with path.open("a") as file:  # it may grow
        file.write("more\n")
    assert b"more" not in content(copied(piece))[0]
    path.write_text("\n".join(lines(50, 2)) + "\n")
    with pytest.raises(SourceError, match=r"access\.log: another file than when the query was planned"):
        copied(piece)
    path.unlink()
    with pytest.raises(SourceError, match=r"access\.log: No such file"):
        copied(piece)


def test_an_archive_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "access.log.gz"
    noise = random.Random(1).randbytes(5000).hex().encode()
    path.write_bytes(gzip.compress(noise + b"\n")[:-2000])
    (piece,) = pieces({str(path): COMBINED}, 1 << 20)
    with pytest.raises(SourceError, match="ends early"):
        copied(piece)
