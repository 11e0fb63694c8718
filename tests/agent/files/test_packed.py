"""bzip2, xz, lz4 and UTF-16: the same lines as unpacked, however the bytes come, and what becomes of damaged files."""

from __future__ import annotations

import bz2
import lzma
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elf.agent.files.content import exactly, is_unsure, kind, open_content
from elf.agent.files.packed import Packed, Utf16
from elf.errors import SourceError
from tests.agent.files.test_inputs import Read
from tests.rigs.source_rig import read_all

LINES = [b"%d %s" % (n, b"x" * (n % 90)) for n in range(3000)]
TEXT = b"".join(line + b"\n" for line in LINES)


def lz4_packed(text: bytes) -> bytes:
    packed = pytest.importorskip("lz4.frame").compress(text)
    assert isinstance(packed, bytes)
    return packed


PACKED: dict[str, Callable[[bytes], bytes]] = {"bzip2": bz2.compress, "xz": lzma.compress, "lz4": lz4_packed}


class Drops:
    """Bytes of a file that come `size` at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        self.descriptor, self.offset, self.data, self.size = -1, 0, data, size

    def chunk(self) -> bytes:
        data = self.data[self.offset : self.offset + self.size]
        self.offset += len(data)
        return data


@pytest.mark.parametrize("name", PACKED)
def test_streams_in_a_row_however_the_bytes_come(name: str, tmp_path: Path) -> None:
    data = PACKED[name](TEXT[:5000]) + PACKED[name](b"") + PACKED[name](TEXT[5000:])
    (tmp_path / "log").write_bytes(data)
    assert Read(tmp_path / "log", block_bytes=4096).lines == LINES
    assert kind(data[:4]) == kind(data[:8]) == name
    assert is_unsure(data[:3], 1000)
    for size, room in ((1, 7), (5, 100_000), (len(data), 64)):
        content = Packed(Drops(data, size), name)
        view = memoryview(bytearray(room))
        got = b""
        while count := content.readinto(view):
            got += view[:count]
        assert got == TEXT
        assert not content.truncated()
        assert content.disk_bytes == len(data)


@pytest.mark.parametrize("name", PACKED)
def test_a_cut_file_is_read_up_to_its_cut_and_told(name: str, tmp_path: Path) -> None:
    data = PACKED[name](os.urandom(300_000).hex().encode() + b"\n" + TEXT)
    (tmp_path / "log").write_bytes(PACKED[name](b"whole\n") + data[: len(data) // 2])
    read = Read(tmp_path / "log")
    assert read.lines[0] == b"whole"
    assert read.notices == [
        f"{tmp_path / 'log'}: the compressed data ends early (truncated); read up to there"
    ]


@pytest.mark.parametrize("name", ["bzip2", "xz"])
def test_a_damaged_file_is_told(name: str, tmp_path: Path) -> None:
    data = PACKED[name](b"whole\n") + PACKED[name](TEXT)
    for damaged in (data[:-40] + bytes(20) + data[-20:], PACKED[name](b"whole\n") + b"more text"):
        (tmp_path / "log").write_bytes(damaged)
        read = Read(tmp_path / "log")
        assert read.lines[0] == b"whole"
        assert len(read.notices) == 1
        assert f"corrupt {name} data before byte" in read.notices[0] or "ends early" in read.notices[0]


def test_padding_between_streams(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(lzma.compress(b"1\n") + bytes(8) + lzma.compress(b"2\n") + bytes(40_000))
    read = Read(tmp_path / "log")
    assert (read.lines, read.notices) == ([b"1", b"2"], [])


def test_text_that_begins_like_an_archive_is_text(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"BZh9 is a line\n")
    assert Read(tmp_path / "log").lines == [b"BZh9 is a line"]


def test_without_its_package_lz4_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    (tmp_path / "log").write_bytes(b"\x04\x22\x4d\x18 and so on")
    with pytest.raises(SourceError, match=r"pip install 'elf-mesh\[lz4\]', or unpack the file"):
        open_content(str(tmp_path / "log"))


UTF16 = "é one\r\n\U0001f600 two\nthree\ud800x\n"
"""A pair of surrogates, and half of one."""


@pytest.mark.parametrize(("mark", "codec"), [(b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")])
def test_utf16_is_read_as_utf8_however_the_bytes_come(mark: bytes, codec: str, tmp_path: Path) -> None:
    data = mark + UTF16.encode(codec, "surrogatepass")
    want = UTF16.replace("\ud800", "\ufffd").encode()
    (tmp_path / "log").write_bytes(data)
    assert Read(tmp_path / "log").lines == want.split(b"\n")[:-1]
    for size in (1, 2, 3, 1000):
        assert exactly(Utf16(Drops(data, size)), memoryview(bytearray(1000))) == want
    assert exactly(Utf16(Drops(data[:-1], 5)), memoryview(bytearray(1000))) == want[:-1] + "\ufffd".encode()


def test_archives_are_followed_and_utf16_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"4\n")
    (tmp_path / "a.log.1.bz2").write_bytes(bz2.compress(b"3\n"))
    (tmp_path / "a.log.2.xz").write_bytes(lzma.compress(b"1\n2\n"))
    (tmp_path / "a.log.3").write_bytes("\ufeff0\n".encode("utf-16-le"))
    reader = read_all(tmp_path / "a.log*")
    reader.settle()
    assert sorted(reader.lines) == [b"1", b"2", b"3", b"4"]
    assert [notice for notice in reader.notices if "UTF-16" in notice] == [
        f"access: {tmp_path / 'a.log.3'}: text in UTF-16 is not followed, only read whole (elf run without --follow);"
        " have it written as UTF-8; waiting until it can be read"
    ]
    reader.close()
