"""`elf grep`: the bytes of exactly those lines for which the condition holds, and grep's output and exit codes."""

from __future__ import annotations

import gzip
import io
import itertools
import random
import re
from pathlib import Path
from threading import Event

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.__main__ import main
from elf.agent.commands.grep import print_lines
from elf.agent.formats.formats import column_types, resolve
from elf.agent.formats.parser import Parser
from elf.agent.run.engine import RunOptions
from elf.agent.run.grep import Grep, GrepOptions, Matches, condition, lines_of, spans_of
from elf.agent.work.feed import complete
from tests.rigs import paths

REAL_LOG = paths.DATA / "apache_combined_10k.log"
LOG = object()
"""Stands for a log of `GOOD` lines."""
HEAD = b"192.0.2.%d - - [17/May/2015:10:05:%02d +0000] "


def line(n: int, status: int, path: bytes = b"/") -> bytes:
    return HEAD % (n, n) + b'"GET %s HTTP/1.1" %d 5 "-" "curl/8"' % (path, status)


GOOD = [line(1, 200), line(2, 404), line(3, 500, b"/caf\xe9"), line(4, 503, b"/a\tb")]
BAD = [b"", b"torn", line(5, 200)[:-1], b"\x00\x00"]


def grep(capfdbinary: pytest.CaptureFixture[bytes], *arguments: object) -> tuple[int, bytes, str]:
    code = main(["grep", *map(str, arguments)])
    out, err = capfdbinary.readouterr()
    return code, out, err.decode()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_bytes(b"\n".join([GOOD[0], GOOD[1] + b"\r", *BAD[:3], GOOD[2], GOOD[3]]))
    return path


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the sample log is not beside the project")
@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("status >= 400", rb'" [45]\d\d (?:\d+|-) "'),
        ("bytes = 0 AND method = 'GET'", rb'\] "GET [^"]*" \d+ [-0] '),
        ("path LIKE '/presentations/%' AND status = 200", rb'\] "[A-Z]+ /presentations/[^"]*" 200 '),
        ("hour(time) = 10 AND user_agent RLIKE 'bot'", rb'\[\d+/May/2015:10:.*"[^"]*bot[^"]*"$'),
        ("false", rb"(?!)"),
    ],
)
def test_the_real_log_as_a_regular_expression_reads_it(
    capfdbinary: pytest.CaptureFixture[bytes], text: str, pattern: bytes
) -> None:
    data = REAL_LOG.read_bytes()
    wanted = [each for each in data.splitlines(keepends=True) if re.search(pattern, each.rstrip(b"\n"))]
    code, out, _ = grep(capfdbinary, text, REAL_LOG)
    assert out == b"".join(wanted)
    assert code == (0 if wanted else 1)
    _, others, _ = grep(capfdbinary, "-v", text, REAL_LOG)
    chosen = set(wanted)
    assert others == b"".join(each for each in data.splitlines(keepends=True) if each not in chosen)
    code, counted, _ = grep(capfdbinary, "-c", text, REAL_LOG)
    assert int(counted) == len(wanted)


def test_bytes_are_those_of_the_file(capfdbinary: pytest.CaptureFixture[bytes], log: Path) -> None:
    """A carriage return, bytes that are not UTF-8, a tab; a newline comes where the last line has none."""
    code, out, err = grep(capfdbinary, "status >= 400", log)
    assert (code, out) == (0, GOOD[1] + b"\r\n" + GOOD[2] + b"\n" + GOOD[3] + b"\n")
    assert "3 of 7 lines could not be read, and match no condition; see why with: elf parse" in err
    _, others, _ = grep(capfdbinary, "status >= 400", "-v", log)
    assert others == b"".join(each + b"\n" for each in (GOOD[0], *BAD[:3]))


def test_several_files_numbers_and_times(
    capfdbinary: pytest.CaptureFixture[bytes], log: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "old.log.gz"
    packed.write_bytes(gzip.compress(b"".join(line(n, 500) + b"\n" for n in range(10, 15))))
    names = b"%s:" % bytes(log), b"%s:" % bytes(packed)
    assert grep(capfdbinary, "-c", "status = 500", log, packed)[1] == b"%s1\n%s5\n" % names
    code, out, _ = grep(capfdbinary, "-m", 1, "status = 500", log, packed)
    assert (code, out) == (0, names[0] + GOOD[2] + b"\n" + names[1] + line(10, 500) + b"\n")
    _, out, _ = grep(capfdbinary, "-m", 2, "--no-filename", "status = 500", log, packed)
    assert out == b"".join(each + b"\n" for each in (GOOD[2], line(10, 500), line(11, 500)))
    times = ["--since", "2015-05-17T10:05:12Z", "--until", "2015-05-17T10:05:14Z"]
    assert grep(capfdbinary, "true", packed, *times)[1] == line(12, 500) + b"\n" + line(13, 500) + b"\n"
    assert grep(capfdbinary, "-v", "status = 200", log, *times)[:2] == (1, b"")
    assert grep(capfdbinary, "status = :s", packed, "--param", "s=500", "-c")[1] == b"5\n"
    assert grep(capfdbinary, "-q", "status = 500", log, packed) == (0, b"", "")
    assert grep(capfdbinary, "-q", "status = 599", log) == (1, b"", "")


def test_a_header_is_no_line(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    path = tmp_path / "iis.log"
    rows = [b"2024-05-17 10:05:%02d GET /%d %d\r\n" % (n, n, 200 + n % 2 * 300) for n in range(6)]
    header = b"#Software: IIS\r\n#Fields: date time cs-method cs-uri-stem sc-status\r\n"
    path.write_bytes(header + b"".join(rows[:3]) + header + b"".join(rows[3:]))
    assert grep(capfdbinary, "status = 500", path)[1] == b"".join(rows[1::2])
    assert grep(capfdbinary, "status = 500", "-v", path)[1] == b"".join(rows[::2])


def cri(stream: str, tag: str, text: bytes) -> bytes:
    return b"2022-01-28T16:04:05.4Z %s %s %s\n" % (stream.encode(), tag.encode(), text)


def divided(stream: str, text: bytes, cuts: list[int]) -> list[bytes]:
    """A line as CRI writes it in parts, cut at these places."""
    places = [0, *sorted({cut % len(text) for cut in cuts} - {0}), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    return [*(cri(stream, "P", piece) for piece in pieces[:-1]), cri(stream, "F", pieces[-1])]


WRITTEN = st.lists(
    st.tuples(st.sampled_from([*GOOD, *BAD[1:3]]), st.lists(st.integers(0, 99), max_size=3)), max_size=6
)


@settings(max_examples=60, deadline=None)
@given(st.tuples(WRITTEN, WRITTEN), st.randoms(use_true_random=False), st.booleans())
def test_all_parts_of_a_line_are_printed_where_they_stood(
    tmp_path_factory: pytest.TempPathFactory,
    written: tuple[list[tuple[bytes, list[int]]], ...],
    order: random.Random,
    invert: bool,
) -> None:
    """The parts of both streams in any order among one another."""
    streams = list[list[tuple[bytes, bool]]]()
    for stream, lines in zip(("stdout", "stderr"), written, strict=True):
        made = [(divided(stream, text, cuts), text in GOOD[1:]) for text, cuts in lines]
        streams.append([(raw, is_error is not invert) for raws, is_error in made for raw in raws])
    both = [0] * len(streams[0]) + [1] * len(streams[1])
    order.shuffle(both)
    rest = [iter(lines) for lines in streams]
    raws = [next(rest[stream]) for stream in both]
    path = tmp_path_factory.mktemp("cri") / "0.log"
    path.write_bytes(b"".join(raw for raw, _ in raws))
    found = Grep(GrepOptions(RunOptions("status >= 400", (str(path),), "cri+combined"), invert), print)
    (file,) = found.files()
    blocks = list(found.of_file(file, Event()))
    printed = b"".join(bytes(block.data[start:end]) for block in blocks for start, end in block.spans)
    assert printed == b"".join(raw for raw, is_wanted in raws if is_wanted)
    wanted = [text for lines in written for text, _ in lines if (text in GOOD[1:]) is not invert]
    assert sum(block.lines for block in blocks) == len(wanted)


def test_a_line_in_parts_counts_as_one(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    docker = tmp_path / "docker.log"
    end = b'","stream":"stdout","time":"2022-01-28T16:04:05.4Z"}\n'
    texts = [each.decode("latin-1").replace('"', '\\"').replace("\t", "\\t").encode() for each in GOOD]
    raws = [[b'{"log":"' + text[:30] + end, b'{"log":"' + text[30:] + b"\\n" + end] for text in texts]
    docker.write_bytes(b"".join(itertools.chain(*raws)))
    assert grep(capfdbinary, "status >= 400", docker, "-m", "2")[1] == b"".join(raws[1] + raws[2])
    assert grep(capfdbinary, "status >= 400", docker, "-c")[1] == b"3\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["stats = 500", LOG],
            "line 1, column 1: there is no column stats in access; did you mean status?",
        ),
        (["status >", LOG], "write it as after WHERE"),
        (["SELECT path", LOG], "elf grep takes a condition"),
        (["true LIMIT 5", LOG], "elf grep takes a condition alone"),
        (["true GROUP BY path", LOG], "elf grep takes a condition alone"),
        (["count(*) > 1", LOG], "an aggregate cannot be in WHERE"),
        (["500", LOG], "500 is no condition: a condition compares a column, like status = 500 or path LIKE"),
        ([LOG, "status = 500"], "is a file; the condition comes before the files"),
        (["true", "/nowhere/x.log"], "/nowhere/x.log: no such file"),
        (["true", paths.TESTS / "conftest.py"], "format auto: none of "),
        (["true", paths.TESTS / "conftest.py", "--format", "combined"], "none of the lines could be read"),
    ],
)
def test_trouble_is_exit_code_2(
    capfdbinary: pytest.CaptureFixture[bytes], log: Path, arguments: list[object], message: str
) -> None:
    log.write_bytes(b"".join(each + b"\n" for each in GOOD))
    code, out, err = grep(capfdbinary, *(log if each is LOG else each for each in arguments))
    assert (code, out) == (2, b"")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_file_cut_short_is_trouble(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    path = tmp_path / "cut.log.gz"
    path.write_bytes(gzip.compress(b"".join(line(n % 60, 500) + b"\n" for n in range(5_000)))[:-400])
    code, out, err = grep(capfdbinary, "status = 500", path)
    assert code == 2
    assert out.startswith(line(0, 500))
    assert "ends early" in err


def test_a_terminal_gets_no_controls() -> None:
    stream = io.BytesIO()
    print_lines(stream, b"a\tb\x1b[31m\nc\xff\n", b"x:", is_terminal=True)
    print_lines(stream, b"a\tb\x1b[31m\nc\xff", b"", is_terminal=False)
    assert stream.getvalue() == b"x:a\tb\\u001b[31m\nx:c\xef\xbf\xbd\n" + b"a\tb\x1b[31m\nc\xff\n"


@settings(max_examples=80, deadline=None)
@given(
    lines=st.lists(st.sampled_from([*GOOD, *BAD, b"# a comment"]), max_size=30),
    is_whole=st.booleans(),
    comment=st.sampled_from([b"", b"#"]),
)
def test_rows_and_lines_are_matched_up(lines: list[bytes], is_whole: bool, comment: bytes) -> None:
    """Whichever lines are rejected or left out between those that match."""
    format = msgspec.structs.replace(resolve("combined"), comment=comment.decode())
    data = b"\n".join(lines) + (b"\n" if is_whole and lines else b"")
    matches = Matches(condition("status >= 400", column_types(format), {}), None)
    batch = Parser(format, ["status"]).parse(data)
    matches.add(complete(batch, matches))
    starts, ends = lines_of(data, comment)
    assert len(starts) == batch.lines
    for invert in (False, True):
        chosen = matches.lines(len(starts), invert=invert).nonzero()[0]
        spans = spans_of(chosen, starts, ends)
        kept = [each for each in data.splitlines(keepends=True) if not (comment and each.startswith(comment))]
        wanted = [each for each in kept if (each.rstrip(b"\n") in GOOD[1:]) is not invert]
        assert b"".join(data[start:end] for start, end in spans) == b"".join(wanted)
        assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(spans))


@pytest.mark.parametrize("hole", [100, 67 << 10, 3 << 20])
def test_a_log_that_begins_with_a_hole_is_detected(
    tmp_path: Path, hole: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a hole is left where a log was cut while its writer kept its place; the line behind it has the NULs too."""
    log = tmp_path / "access.log"
    log.write_bytes(b"\0" * hole + b"\n".join([line(5, 200), *GOOD]) + b"\n")
    assert main(["run", "SELECT count(*) AS n FROM access", str(log), "--output", "csv"]) == 0
    assert capsys.readouterr().out == f"n\n{len(GOOD)}\n"
    assert main(["grep", "status = 404", str(log)]) == 0
    assert capsys.readouterr().out == GOOD[1].decode() + "\n"
    assert main(["parse", str(log)]) == 0
    assert capsys.readouterr().out.startswith("format: combined (detected)")
