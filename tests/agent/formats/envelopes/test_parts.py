"""Lines that a container's runtime wrote in parts: joined, whatever the cuts between blocks are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.files import inputs
from elf.agent.files._parts import clean_end
from elf.agent.files.source import Source
from elf.agent.formats import formats
from elf.agent.formats.batch import Batch
from elf.agent.formats.envelopes.wrapped import make_parser
from elf.agent.formats.fields import Reason
from tests.rigs.envelopes import docker, parts

KINDS = ("cri", "docker")
ASKED = ("path", "stream")
Row = tuple[object, ...]


def line(number: int, room: int = 0) -> bytes:
    return b'::1 - - [17/May/2015:10:05:03 +0000] "GET /%d HTTP/1.1" 200 5 "-" "%s"' % (number, b"x" * room)


def rows(batch: Batch) -> list[Row]:
    return list(zip(*(batch.columns[column].full(batch.rows).to_python() for column in ASKED), strict=True))


def read(content: bytes, kind: str, line_max: int) -> list[Row]:
    """The rows of one block."""
    return rows(make_parser(formats.resolve(f"{kind}+combined"), ASKED, line_max=line_max).parse(content))


@st.composite
def logs(draw: st.DrawFn) -> tuple[str, list[bytes], list[Row]]:
    """The raw lines of two streams, each line in any parts; and the rows, in the order in which the lines end."""
    kind = draw(st.sampled_from(KINDS))
    queues = {}
    for stream in ("stdout", "stderr"):
        queue: list[tuple[bytes, Row | None]] = []
        for number in range(draw(st.integers(0, 6))):
            text = line(number, draw(st.integers(0, 40)))
            made = parts(kind, text, draw(st.lists(st.integers(1, len(text) - 1), max_size=4)), stream)
            queue += [(one, None) for one in made[:-1]] + [(made[-1], (f"/{number}", stream))]
        queues[stream] = queue
    out, expected = [], []
    while any(queues.values()):
        stream = draw(st.sampled_from([stream for stream, queue in queues.items() if queue]))
        raw, row = queues[stream].pop(0)
        out.append(raw)
        expected += [row] if row else []
    return kind, out, expected


@settings(max_examples=150, deadline=None, derandomize=True)
@given(logs())
def test_parts_are_joined(log: tuple[str, list[bytes], list[Row]]) -> None:
    kind, raw, expected = log
    assert read(b"".join(one + b"\n" for one in raw), kind, 1 << 18) == expected


@settings(max_examples=150, deadline=None, derandomize=True)
@given(logs(), st.integers(1, 3000), st.sampled_from([200, 400, 1 << 18]), st.booleans(), st.data())
def test_no_cut_falls_between_parts(
    tmp_path_factory: pytest.TempPathFactory,
    log: tuple[str, list[bytes], list[Row]],
    block_bytes: int,
    line_max: int,
    ended: bool,
    data: st.DataObject,
) -> None:
    """Each block, read by a parser that knows nothing of those before it, gives its share of the rows; also where lines are too
    long to be joined."""
    kind, raw, _ = log
    for _ in range(data.draw(st.integers(0, 2))):
        raw.insert(
            data.draw(st.integers(0, len(raw))),
            data.draw(st.sampled_from([b"", b"garbage", b'{"log":"' + b"x" * 250])),
        )
    path = tmp_path_factory.getbasetemp() / "parts.log"
    content = b"\n".join(raw) + b"\n" * ended
    path.write_bytes(content)
    found: list[Row] = []
    lines = 0
    for block in inputs.read([path], block_bytes=block_bytes, line_max=line_max, notices=print):
        batch = make_parser(formats.resolve(f"{kind}+combined"), ASKED, line_max=line_max).parse(
            bytes(block.data)
        )
        found += rows(batch)
        lines += batch.lines + block.too_long
    first_is_part = bool(raw) and raw[0].startswith((b"2015", b'{"log":"::')) and raw[-1:] != [b""]
    if first_is_part:  # else a block may begin and end with garbage, and is cut anywhere
        assert found == read(content, kind, line_max)
    whole = make_parser(formats.resolve(f"{kind}+combined"), ASKED, line_max=line_max).parse(content)
    assert lines == whole.lines


def test_what_never_ends_is_a_line_of_its_own() -> None:
    first, second = parts("cri", line(1), [30])
    format = formats.resolve("cri+combined")
    batch = make_parser(format, ASKED).parse(first)
    assert (batch.rows, batch.lines, set(batch.rejects)) == (0, 1, {Reason.LITERAL})
    assert batch.samples[0].line == first
    content = first + b"\n" + second + b"\n"
    limit = len(content) - 1
    assert make_parser(format, ASKED, line_max=limit).parse(content).rows == 0
    assert make_parser(format, ASKED, line_max=limit + 1).parse(content).rows == 1


def test_where_blocks_end() -> None:
    part, rest = (one + b"\n" for one in parts("docker", line(1), [30]))
    other = docker("x\n", "stderr") + b"\n"

    def end(text: bytes, more: bytes = b"", line_max: int = 1 << 18) -> int:
        return clean_end(text + more, 0, len(text), len(text) + len(more), line_max)

    assert end(part + rest) == len(part + rest)
    assert end(part) == end(part + other) == 0
    assert end(rest + part + other) == len(rest)
    assert end(part + other + rest + other) == len(part + other + rest + other)
    assert end(part, b"y" * 50, len(part) + 49) == len(part)
    assert end(part, b"y" * 50, len(part) + 50) == 0
    assert end(b"plain\n" * 3) == 18
    assert end(b"plain\n" * 3 + part * 40 + b"plain\n" * 3) == 18
    assert end(b"") == 0


def test_a_live_reader_waits_for_the_rest_across_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    whole, (first, second) = parts("cri", line(1), [])[0], parts("cri", line(2), [50])
    path.write_bytes(whole + b"\n" + first + b"\n")
    source = Source("access", [str(path)], start="beginning")
    source.scan(0.0)
    block = source.read(0.0)
    assert block is not None
    assert bytes(block.data) == whole + b"\n"
    assert source.read(0.0) is None
    state = source.positions()
    source.close()
    with path.open("ab") as file:
        file.write(second + b"\n" + whole + b"\n")
    again = Source("access", [str(path)], state=state)
    again.scan(1.0)
    block = again.read(1.0)
    assert block is not None
    assert (block.start, bytes(block.data)) == (
        len(whole) + 1,
        first + b"\n" + second + b"\n" + whole + b"\n",
    )
    again.close()


def test_a_file_that_ends_within_a_line_and_begins_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    whole, first = parts("docker", line(1), [])[0] + b"\n", parts("docker", line(2), [50])[0] + b"\n"
    path.write_bytes(b"\xef\xbb\xbf" + whole + first)
    found = [
        (block.start, block.end, bytes(block.lines), block.last)
        for block in inputs.read([path], notices=print)
    ]
    end = len(whole) + 3
    assert found == [(0, end, whole, False), (end, end + len(first), first, True)]
