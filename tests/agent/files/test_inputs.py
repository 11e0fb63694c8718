"""One-shot input against plain Python: the same lines, each once, however they are packed and cut into blocks."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.files import inputs
from elf.agent.files.blocks import Block
from elf.agent.files.content import is_unsure, open_content, zstd_complete
from elf.errors import UsageError


class Read:
    """All blocks of a run, held against the contract."""

    def __init__(self, *paths: inputs.Input, block_bytes: int = 1 << 20, line_max: int = 256 * 1024) -> None:
        self.notices: list[str] = []
        self.lines: list[bytes] = []
        self.too_long = 0
        self.paths: list[str] = []
        previous: Block | None = None
        for block in inputs.read(
            list(paths), block_bytes=block_bytes, line_max=line_max, notices=self.notices.append
        ):
            data = bytes(block.data)
            if previous is None or previous.last:
                assert block.first
                assert block.start == 0
                self.paths.append(block.path)
            else:
                assert previous is not None
                assert block.start == previous.end
                assert block.file.generation == previous.file.generation
                assert block.size_done >= previous.size_done
            assert len(data) <= max(block_bytes, line_max + 1)
            assert block.last or not data or data.endswith(b"\n")
            assert block.too_long or block.end - block.start == len(data)
            self.lines += data.split(b"\n")[: -1 if data.endswith(b"\n") or not data else None]
            self.too_long += block.too_long
            previous = Block(**{name: getattr(block, name) for name in block.__struct_fields__})
        assert previous is None or previous.last


def oracle(content: bytes, line_max: int) -> tuple[list[bytes], int]:
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line for line in lines if len(line) <= line_max], sum(len(line) > line_max for line in lines)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 90), max_size=40),
    ended=st.booleans(),
    block_bytes=st.integers(1, 200),
    line_max=st.integers(1, 60),
    packing=st.sampled_from(["plain", "gzip", "gzip members", "zstd"]),
)
def test_blocks_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    ended: bool,
    block_bytes: int,
    line_max: int,
    packing: str,
) -> None:
    content = b"\n".join(bytes([97 + n % 26]) * length for n, length in enumerate(lengths))
    content += b"\n" if ended and lengths else b""
    half = len(content) // 2
    packed = {
        "plain": content,
        "gzip": gzip.compress(content),
        "gzip members": gzip.compress(content[:half]) + gzip.compress(content[half:]) + bytes(7),
        "zstd": zstandard.compress(content),
    }[packing]
    path = tmp_path_factory.mktemp("files") / "log"
    path.write_bytes(packed)
    run = Read(path, block_bytes=block_bytes, line_max=line_max)
    assert (run.lines, run.too_long) == oracle(content, line_max)
    assert run.notices == []


def test_large_files_of_every_packing_give_the_same_lines(tmp_path: Path) -> None:
    content = b"".join(b"%d %s\n" % (n, b"x" * (n % 300)) for n in range(40_000))
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(gzip.compress(content + b"1\n"))
    (tmp_path / "c").write_bytes(zstandard.compress(content + b"2\n") + zstandard.compress(b"3\n"))
    assert Read(tmp_path / "a").lines == content.splitlines()
    assert Read(tmp_path / "b").lines == [*content.splitlines(), b"1"]
    assert Read(tmp_path / "c").lines == [*content.splitlines(), b"2", b"3"]


def test_an_empty_file_is_one_block_first_and_last(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    (block,) = inputs.read([tmp_path / "a"], notices=print)
    assert (block.first, block.last, bytes(block.data), block.start, block.end) == (True, True, b"", 0, 0)


@pytest.mark.parametrize(
    "packed", [zstandard.compress(b"1\n"), gzip.compress(b"1\n"), b"1\n"], ids=["zstd", "gzip", "plain"]
)
def test_a_content_that_is_let_go_is_freed_at_once(tmp_path: Path, packed: bytes) -> None:
    """An agent opens each rotated file many times, and the collector does not look into decompressors."""
    (tmp_path / "a").write_bytes(packed)
    content = open_content(str(tmp_path / "a"))
    assert content.readinto(memoryview(bytearray(10))) == 2
    os.close(content.descriptor)
    freed = weakref.ref(content)
    del content
    assert freed() is None


@pytest.mark.parametrize("ending", ["gz", "zst"])
@pytest.mark.parametrize("cut", [1, 9, 400])
def test_a_truncated_archive_is_read_to_its_end_and_reported(tmp_path: Path, ending: str, cut: int) -> None:
    content = b"".join(b"%d\n" % (n * n * 7919 % 1_000_003) for n in range(80_000))
    packed = (
        gzip.compress(content)
        if ending == "gz"
        else zstandard.ZstdCompressor(write_checksum=True).compress(content)
    )
    path = tmp_path / f"log.{ending}"
    path.write_bytes(packed[:-cut])
    run = Read(path)
    assert len(run.lines) > 1000
    assert run.lines[:-1] == content.splitlines()[: len(run.lines) - 1]
    assert run.notices == [f"{path}: the compressed data ends early (truncated); read up to there"]


def test_corrupt_archives_do_not_stop_the_rest(tmp_path: Path) -> None:
    noise = os.urandom(50_000).hex().encode() + b"\n"
    for name, packed in (
        ("a", gzip.compress(noise)),
        ("b", zstandard.ZstdCompressor(write_checksum=True).compress(noise)),
    ):
        (tmp_path / name).write_bytes(packed[:2000] + bytes(500) + packed[2500:])
    (tmp_path / "c").write_bytes(b"fine\n")
    run = Read(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert run.lines[-1] == b"fine"
    assert [("corrupt" in notice, "read up to there" in notice) for notice in run.notices] == [
        (True, True)
    ] * 2


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 300_000), min_size=1, max_size=3),
    checksum=st.booleans(),
    sized=st.booleans(),
    cut=st.integers(0, 30),
)
def test_whole_zstd_frames_are_distinguished_from_truncated_ones(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], checksum: bool, sized: bool, cut: int
) -> None:
    packer = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=sized)
    packed = b"".join(packer.compress(b"abcdefgh\n" * (size // 9)) for size in sizes)
    packed += b"\x50\x2a\x4d\x18\x03\0\0\0abc"  # a skippable frame
    path = tmp_path_factory.mktemp("zstd") / "log"
    path.write_bytes(packed[: len(packed) - cut])
    with path.open("rb") as file:
        assert zstd_complete(file.fileno(), len(packed) - cut) == (cut in (0, 11))


def test_each_file_counts_once(tmp_path: Path) -> None:
    content = b"".join(b"line %d of some log\n" % n for n in range(1000))
    (tmp_path / "a.log").write_bytes(content)
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(content))
    (tmp_path / "a.log.zst").write_bytes(zstandard.compress(content))
    (tmp_path / "link.log").symlink_to("a.log")
    os.link(tmp_path / "a.log", tmp_path / "hard.log")
    (tmp_path / "b.log").write_bytes(content)  # another server may have logged the same
    (tmp_path / "c.log.gz").write_bytes(gzip.compress(content + b"more\n"))
    run = Read(*inputs.expand([str(tmp_path / "*"), str(tmp_path / "a.log")]))
    assert [Path(path).name for path in run.paths] == ["a.log", "b.log", "c.log.gz"]
    assert len(run.lines) == 3001
    assert run.notices == [
        f"{tmp_path}/a.log.gz: the same content as {tmp_path}/a.log; counted once",
        f"{tmp_path}/a.log.zst: the same content as {tmp_path}/a.log; counted once",
        f"{tmp_path}/hard.log: the same file as {tmp_path}/a.log; counted once",
        f"{tmp_path}/link.log: the same file as {tmp_path}/a.log; counted once",
        f"{tmp_path}/a.log: the same file as {tmp_path}/a.log; counted once",
    ]


def test_archives_of_one_content_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(zstandard.compress(b"1\n2\n"))
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"1\n2\n"))
    (tmp_path / "c").write_bytes(b"1\n2\n")
    assert Read(*inputs.expand([str(tmp_path / "*")])).lines == [b"1", b"2"]


def test_arguments(tmp_path: Path) -> None:
    for name in ("b.log", "a.log", "[x].log"):
        (tmp_path / name).write_bytes(b"1\n")
    (tmp_path / "d.log").mkdir()
    assert inputs.expand(["-", str(tmp_path / "?.log"), "-", str(tmp_path / "[x].log")]) == [
        "-",
        tmp_path / "a.log",
        tmp_path / "b.log",
        tmp_path / "[x].log",
    ]
    assert inputs.total_bytes([tmp_path / "a.log", tmp_path / "b.log"]) == 4
    assert inputs.total_bytes([tmp_path / "a.log", "-"]) is None


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("none.log", "none.log: no such file; check the name"),
        ("*.none", "*.none: no file matches; check the pattern"),
        ("folder", "folder: is a directory; name the files in it, for example 'folder/*.log'"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError) as error:
        inputs.expand([argument])
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (
            b"PK\x03\x04" + bytes(30),
            "is a zip archive, not a log; pipe its lines: unzip -p 'a b' | elf run QUERY -",
        ),
        (
            b"access.log".ljust(257, b"\0") + b"ustar  \0",
            "is a tar archive, not a log; pipe its lines: tar -xOf 'a b'",
        ),
        (b"LPKSHHRH" + bytes(300), "is a journal of systemd, not a log; pipe its lines: journalctl "),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_an_archive_is_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, said: str, packed: bool
) -> None:
    """Its first line would be read with the archive's header, and rejected."""
    monkeypatch.chdir(tmp_path)
    Path("a b").write_bytes(gzip.compress(head) if packed else head)
    with pytest.raises(UsageError) as error:
        inputs.expand(["a b"])
    assert str(error.value).startswith(f"a b: {said}")


def test_a_file_without_permission(tmp_path: Path) -> None:
    path = Path("/tmp") / f"elf-test-{os.getpid()}.log"
    path.write_bytes(b"1\n")
    path.chmod(0)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        with pytest.raises(UsageError, match="permission denied; run as a user who may read it"):
            inputs.expand([str(path)])
    finally:
        if root:
            os.seteuid(0)
        path.unlink()


@pytest.mark.parametrize("packed", [False, True])
def test_a_pipe_gives_its_lines_as_they_come(tmp_path: Path, packed: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = b"".join(b"%d\n" % n for n in range(100_000))

    def write() -> None:
        with pipe.open("wb") as out:
            out.write(gzip.compress(content, 1) if packed else content)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert Read(*inputs.expand([str(pipe)])).lines == content.splitlines()
    writer.join(10)


@pytest.mark.process
def test_standard_input() -> None:
    program = (
        "from elf.agent.files.inputs import read; "
        "print(sum(bytes(block.data).count(b'\\n') for block in read(['-'], notices=print)))"
    )
    for content in (b"1\n" * 5000, gzip.compress(b"1\n" * 5000), zstandard.compress(b"1\n" * 5000)):
        out = subprocess.run([sys.executable, "-c", program], input=content, capture_output=True, check=True)
        assert out.stdout == b"5000\n"


def test_stopping_early_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n" * 1_000_000)
    before = len(os.listdir("/proc/self/fd"))
    blocks = inputs.read([tmp_path / "a"], notices=print)
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_bomb_needs_no_memory(tmp_path: Path) -> None:
    """10 MB of zeros in 10 KB: decompressed in pieces of a block at most."""
    path = tmp_path / "bomb.gz"
    raw = io.BytesIO()
    with gzip.open(raw, "wb") as out:
        out.write(bytes(10_000_000))
    path.write_bytes(raw.getvalue())
    content = open_content(str(path))
    assert content.readinto(memoryview(bytearray(1000))) <= 1000
    os.close(content.descriptor)
    run = Read(path, block_bytes=4096, line_max=1000)
    assert (run.lines, run.too_long) == ([], 1)


@pytest.mark.parametrize(
    ("lead", "size", "unsure"),
    [
        (b"", 0, True),  # nothing yet: a copy or an archive that begins
        (b"", 40, True),  # the bytes came between the look at them and the look at the size
        (b"\x1f\x8b", 2, True),
        (b"a\n", 2, False),
        (b"00000001", 4_096, False),
        (b"0000", 4_096, True),
    ],
)
def test_kind_of_a_file_in_the_making_is_left_open(lead: bytes, size: int, unsure: bool) -> None:
    assert is_unsure(lead, size) is unsure
