"""JSON, LTSV, logfmt, regular expressions and W3C headers: Python's own json, split and re are the oracles."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.formats.batch import Batch
from elf.agent.formats.fields import Convert, Escape, Field, Format, Reason, Shape
from elf.agent.formats.parser import Parser
from elf.agent.formats.presets import PRESETS
from elf.agent.formats.w3c import widened
from elf.errors import FormatError
from tests.rigs import paths

profile = settings(max_examples=150, derandomize=True, deadline=None, database=None)
MAY = 1_431_857_103_000_000

JSON = Format(
    "json",
    Shape.JSON,
    (
        Field("ts", Convert.TIME_EPOCH, "time"),
        Field("a", Convert.STRING, "a"),
        Field("b.c", Convert.STRING, "bc"),
        Field("l.1", Convert.STRING, "l1"),
        Field("n", Convert.INT, "n"),
    ),
)
ASKED = ("time", "a", "bc", "l1", "n")


def rows(batch: Batch, asked: tuple[str, ...] = ASKED) -> list[tuple[Any, ...]]:
    return list(zip(*(batch.columns[column].to_python() for column in asked), strict=True))


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


class Number(str):
    """A number's text as it stands in the line."""

    __slots__ = ()


def refuse(text: str) -> Any:
    raise ValueError(text)


def load(line: bytes) -> Any:
    """The object by Python's json, numbers as text; None where the line is no object. Only ASCII space counts as such. A byte
    that is not UTF-8 is a character from U+10FF80 on."""
    text = re.sub(
        r"[\udc80-\udcff]", lambda m: chr(ord(m[0]) + 0x102300), line.decode("utf-8", "surrogateescape")
    )
    try:
        value = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and depth(value) <= 64 else None


def shown(value: Any) -> Any:
    if value in (None, "-", "") or isinstance(value, dict | list):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    text = re.sub(
        r"[\ud800-\udfff]",
        lambda m: "".join(chr(0x10FF00 + byte) for byte in m[0].encode("utf-8", "surrogatepass")),
        str(value),
    )
    text = re.sub(r"\\+(?=x[0-9a-f]{2}|[\U0010ff80-\U0010ffff])", lambda m: m[0] * 2, text)
    return re.sub(r"[\U0010ff80-\U0010ffff]", lambda m: f"\\x{ord(m[0]) - 0x10FF00:02x}", text)


def epoch(text: str) -> int | None:
    if not re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text, re.ASCII):
        return None
    whole = int(Decimal(text))
    scale = 6 if whole < 10**11 else 3 if whole < 10**14 else 0 if whole < 10**17 else -3
    micros = int(Decimal(text).scaleb(scale))
    return micros if whole < 2**63 and micros <= 253402300799999999 else None


def model(line: bytes) -> tuple[Any, ...] | None:
    found = load(line)
    if found is None or b"\0" in line:
        return None
    below, items = found.get("b"), found.get("l")
    items = {str(i): item for i, item in enumerate(items)} if isinstance(items, list) else items
    size, when = found.get("n"), found.get("ts")
    size = None if isinstance(size, dict | list) else size
    if (
        size is not None
        and size not in ("-", "")
        and (isinstance(size, bool) or not re.fullmatch(r"[-+]?\d{1,18}", str(size), re.ASCII))
    ):
        return None
    micros = None if isinstance(when, bool) else epoch(str(when))
    if micros is None:
        return None
    return (
        micros,
        shown(found.get("a")),
        shown(below.get("c")) if isinstance(below, dict) else None,
        shown(items.get("1") if isinstance(items, dict) else None),
        None if size in (None, "-", "") else int(size),
    )


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 10**9), st.floats(0, 1e6), st.text(max_size=40), st.just("-")
)
keys = st.sampled_from("abcl1é")
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
objects = st.fixed_dictionaries(
    {},
    optional={
        "ts": st.one_of(st.integers(0, 10**10), st.just("1431857103"), values),
        "a": values,
        "b": st.one_of(st.fixed_dictionaries({"c": values}), values),
        "l": st.one_of(st.lists(values, max_size=3), values),
        "n": st.one_of(st.integers(-(10**6), 10**6), st.just("17"), values),
        "other": values,
    },
)


@st.composite
def json_line(draw: st.DrawFn) -> bytes:
    separators = draw(st.sampled_from([(",", ":"), (", ", " : ")]))
    text = json.dumps(draw(objects), ensure_ascii=draw(st.booleans()), separators=separators)
    line = text.encode("utf-8", "surrogatepass")
    if draw(st.booleans()):
        return line
    at, length = draw(st.integers(0, len(line))), draw(st.integers(0, 3))
    piece = draw(
        st.sampled_from(
            ["", '"', "\\", "\\ud83d", "{", "]", ",", ":", "0", "-", "e", " ", "\t", "\x01", "null", '"a":1,']
        )
    )
    return line[:at] + piece.encode() + line[at + length :]


@pytest.mark.slow
@pytest.mark.parametrize("wide", [True, False])
def test_json_lines_give_what_pythons_json_gives(wide: bool) -> None:
    parser, bare = Parser(JSON, ASKED, wide=wide), Parser(JSON, [], wide=wide)

    @profile
    @given(st.lists(json_line(), max_size=5))
    def check(lines: list[bytes]) -> None:
        lines = [line for line in lines if b"\n" not in line and b"\r" not in line]
        block = b"\n".join(lines)
        batch, none = parser.parse(block), bare.parse(block)
        expected = [row for line in lines if (row := model(line)) is not None]
        assert rows(batch) == expected
        assert (none.rows, none.rejects, none.samples, none.invalid_utf8) == (
            batch.rows,
            batch.rejects,
            batch.samples,
            batch.invalid_utf8,
        )

    check()


def reject_of(format: Format, line: bytes) -> tuple[Reason, int, str, str]:
    batch = Parser(format, []).parse(line)
    (sample,) = batch.samples
    assert batch.rejects == {sample.reason: 1}
    return sample.reason, sample.offset, sample.field, sample.expected


@pytest.mark.parametrize(
    ("line", "offset", "expected"),
    [
        (b"17", 0, "a JSON object"),
        (b'{"ts":1', 7, "',' or the closing bracket"),
        (b'{"ts":1,}', 8, "a key between double quotes"),
        (b'{"ts" 1}', 6, "':' after the key"),
        (b'{"ts":tru}', 6, "a JSON value"),
        (b'{"ts":}', 6, "a JSON value"),
        (b'{"ts":', 6, "a JSON value"),
        (b'{"ts":01}', 7, "',' or the closing bracket"),
        (b'{"ts":-}', 6, "a JSON number"),
        (b'{"ts":1.}', 6, "a JSON number"),
        (b'{"ts":"a\\q"}', 8, "a JSON string: valid escapes, no control characters, a closing quote"),
        (b'{"ts":"a\tb"}', 8, "a JSON string: valid escapes, no control characters, a closing quote"),
        (b'{"ts":"a', 8, "a JSON string: valid escapes, no control characters, a closing quote"),
        (b'{"ts":1} x', 9, "the end of the line after the object"),
        (b'{"a":' + b"[" * 64, 68, "nesting of at most 64 levels"),
    ],
)
def test_broken_json_says_where(line: bytes, offset: int, expected: str) -> None:
    assert reject_of(JSON, line) == (Reason.JSON, offset, "", expected)


def test_json_values_that_do_not_fit() -> None:
    assert reject_of(JSON, b'{"a":1}')[::2] == (Reason.MISSING, "ts")
    assert reject_of(JSON, b'{"ts":null}')[::2] == (Reason.MISSING, "ts")
    assert reject_of(JSON, b'{"ts":"x"}') == (Reason.TIME, 7, "ts", "a Unix time like 1431857103.123")
    assert reject_of(JSON, b'{"ts":true}')[::2] == (Reason.TIME, "ts")
    assert reject_of(JSON, b'{"ts":1,"n":1.5}') == (Reason.NUMBER, 12, "n", "digits")
    assert reject_of(JSON, b'{"ts":[1]}')[::2] == (Reason.MISSING, "ts")
    assert Parser(JSON, ["n"]).parse(b'{"ts":1,"n":[1]}').columns["n"].to_python() == [None]


def test_json_paths() -> None:
    def get(name: str, line: str) -> Any:
        format = Format("j", Shape.JSON, (Field(name, Convert.STRING, "x"),))
        return Parser(format, ["x"]).parse(line.encode()).columns["x"].to_python()

    assert get("a.b.0", '{"a":{"b":["x","y"]}}') == ["x"]
    assert get("a.b", '{"a.b":"flat"}') == ["flat"]
    assert get("a.b.c", '{"a.b":{"c":1}}') == ["1"]
    assert get("h.User-Agent.0", '{"h":{"User-Agent":["curl"],"X":[1]}}') == ["curl"]
    assert get("a", '{"a":{"b": [1, 2]}}') == [None]
    assert get("a", '{"a":1,"a":[]}') == [None]
    assert get("a", '{"a":1,"a":2}') == ["2"]
    assert get("a.b", '{"a":{"b":1},"a":{"c":2}}') == [None]
    assert get("a.b", '{"a":{"b":1},"a":3}') == [None]
    assert get("ab", '{"a\\u0062":1}') == ["1"]
    assert get("a.10", '{"a":[0,1,2,3,4,5,6,7,8,9,"ten"]}') == ["ten"]
    assert get("é", '{"é":1}') == ["1"]


def test_json_numbers_and_strings_alike() -> None:
    format = Format(
        "j",
        Shape.JSON,
        (
            Field("t", Convert.TIME_ISO, "time", required=True),
            Field("d", Convert.SECONDS, "request_time"),
            Field("r", Convert.REQUEST),
            Field("u", Convert.DURATION, "u"),
        ),
    )
    block = b"""{"t":"2015-05-17T10:05:03Z","d":1.5e-05,"r":"GET \\/a\\u003fb HTTP/1.1","u":"1ms"}
{"t":"2015-05-17T10:05:03Z","d":"0.25","r":"-","u":0.5}
"""
    asked = ("time", "request_time", "path", "query", "u")
    assert rows(Parser(format, asked).parse(block), asked) == [
        (MAY, Decimal("0.000015"), "/a", "b", Decimal("0.001")),
        (MAY, Decimal("0.25"), None, None, Decimal("0.5")),
    ]


def test_invalid_text_in_json_is_counted_once_a_line() -> None:
    block = b'{"ts":1,"a":"\\ud800","z":"\xff"}\n{"ts":1,"z":"\xff"}\n{"ts":1,"z":"\\udc00"}\n'
    block += b'{"ts":1,"a":"\xc3\xa9"}\n{"ts":"\xff"}'
    for asked in ([], ["a"]):
        batch = Parser(JSON, asked).parse(block)
        assert (batch.rows, batch.invalid_utf8) == (4, 3)
    assert batch.columns["a"].to_python() == [r"\xed\xa0\x80", None, None, "é"]


LTSV = Format(
    "ltsv",
    Shape.LTSV,
    (
        Field("time", Convert.TIME_CLF, "time", required=True),
        Field("ua", Convert.STRING, "ua", escape=Escape.BACKSLASH),
        Field("size", Convert.INT, "bytes"),
    ),
)


@profile
@given(
    st.lists(
        st.tuples(st.sampled_from(["ua", "size", "x", "u"]), st.text('ab:0- é\\"', max_size=40)), max_size=5
    )
)
def test_ltsv_gives_what_split_gives(pairs: list[tuple[str, str]]) -> None:
    pairs = [(key, "12" if key == "size" else value) for key, value in pairs]
    line = "\t".join(
        [
            "time:[17/May/2015:10:05:03 +0000]"[:5] + "17/May/2015:10:05:03 +0000",
            *(f"{k}:{v}" for k, v in pairs),
        ]
    )
    got = dict(pairs)
    agent = got.get("ua")
    expected = (
        None
        if agent in (None, "-", "")
        else re.sub(r'\\(["\\bfnrtv])', lambda m: {"b": "\b"}.get(m[1], m[1]), str(agent))
    )
    asked = ("time", "ua", "bytes")
    size = 12 if "size" in got else None
    assert rows(Parser(LTSV, asked).parse(line.encode()), asked) == [(MAY, expected, size)]


def test_ltsv_rejects() -> None:
    assert reject_of(LTSV, b"ua:x")[:3] == (Reason.MISSING, 4, "time")
    assert reject_of(LTSV, b"ua:x\tnothing")[:2] == (Reason.LITERAL, 5)
    assert reject_of(LTSV, b"time:17/May/2015:10:05:03 +0000\tsize:x")[:3] == (Reason.NUMBER, 37, "size")
    assert Parser(LTSV, []).parse(b"\ttime:17/May/2015:10:05:03 +0000\t\t").rows == 1


LOGFMT = Format(
    "logfmt",
    Shape.LOGFMT,
    (
        Field("ts", Convert.TIME_ISO, "time", required=True),
        Field("msg", Convert.STRING, "msg", escape=Escape.JSON),
        Field("dur", Convert.DURATION, "request_time"),
    ),
)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (b"ts=2015-05-17T10:05:03Z msg=hello dur=1.5ms", (MAY, "hello", Decimal("0.0015"))),
        (b'  msg="say \\"hi\\" \\u00e9"   ts="2015-05-17 10:05:03" ', (MAY, 'say "hi" é', None)),
        (b"ts=2015-05-17T10:05:03Z msg dur=", (MAY, None, None)),
        (b"ts=2015-05-17T10:05:03Z msg= flag", (MAY, None, None)),
        (b"ts=2015-05-17T10:05:03Z msg=a=b msg=\\n", (MAY, "\\n", None)),
        (b'ts=2015-05-17T10:05:03Z msg="a\\\\"', (MAY, "a\\", None)),
    ],
)
def test_logfmt(line: bytes, row: tuple[Any, ...] | None) -> None:
    asked = ("time", "msg", "request_time")
    assert rows(Parser(LOGFMT, asked).parse(line), asked) == ([] if row is None else [row])


def test_logfmt_rejects() -> None:
    start = b"ts=2015-05-17T10:05:03Z "
    assert reject_of(LOGFMT, start + b'msg="a')[:3] == (Reason.UNTERMINATED, 28, "msg")
    assert reject_of(LOGFMT, start + b'msg="a"b')[:3] == (Reason.LITERAL, 31, "msg")
    assert reject_of(LOGFMT, start + b"=x")[:2] == (Reason.LITERAL, 24)
    assert reject_of(LOGFMT, start + b'a"b=x')[:2] == (Reason.LITERAL, 25)
    assert reject_of(LOGFMT, start + b"dur=x")[:3] == (Reason.NUMBER, 28, "dur")
    assert reject_of(LOGFMT, b"msg=x")[:3] == (Reason.MISSING, 5, "ts")


REGEX = Format(
    "regex",
    Shape.REGEX,
    (
        Field("t", Convert.TIME_ISO, "time"),
        Field("status", Convert.STATUS, "status"),
        Field("rest", Convert.STRING, "rest"),
    ),
    regex=r"(?P<t>\S+) (?P<status>\S+)(?: (?P<rest>.*))?",
)


def test_regular_expressions() -> None:
    block = (
        b"2015-05-17T10:05:03Z 200 a b\r\n\n2015-05-17T10:05:03Z 404\nnothing\n2015-05-17T10:05:03Z x\n"
        + b"y " * 200
        + b"\n2015-05-17T10:05:03Z 500 \xff"
    )
    asked = ("time", "status", "rest")
    batch = Parser(REGEX, asked, line_max=300).parse(block)
    assert rows(batch, asked) == [(MAY, 200, "a b"), (MAY, 404, None), (MAY, 500, r"\xff")]
    assert batch.rejects == {Reason.EMPTY: 1, Reason.PATTERN: 1, Reason.NUMBER: 1, Reason.TOO_LONG: 1}
    assert [(sample.reason, sample.offset) for sample in batch.samples] == [
        (Reason.EMPTY, 0), (Reason.PATTERN, 0), (Reason.NUMBER, 21), (Reason.TOO_LONG, 300),
    ]  # fmt: skip
    assert batch.invalid_utf8 == 1
    with pytest.raises(FormatError, match="position 4"):
        Parser(Format("r", Shape.REGEX, (), regex="(?P<a"), [])


HEADERS = Format("w3c", Shape.LITERAL, (), comment="#", header="w3c")
FIRST = b"#Fields: date time cs-uri-stem sc-status"
SECOND = b"#Fields: date time sc-status time-taken cs-uri-stem"
W3C = (
    b"#Version: 1.0\r\n"
    + FIRST
    + b"\r\n2015-05-17 10:05:03 /a+b 200\r\n"
    + SECOND
    + b"\r\n2015-05-17 10:05:03 404 15 /c\r\n#Date: x\r\nbad\r\n"
)


@pytest.mark.parametrize("cut", range(7))
def test_a_header_changes_the_plan_in_mid_file(cut: int) -> None:
    lines = W3C.splitlines(keepends=True)
    parser = Parser(HEADERS, ["time", "path", "status", "request_time"])
    seen: list[tuple[Any, ...]] = []
    total = rejected = 0
    for part in (b"".join(lines[:cut]), b"".join(lines[cut:])):
        batch = parser.parse(part)
        total, rejected = total + batch.lines, rejected + sum(batch.rejects.values())
        columns = [
            batch.columns[name].to_python() if name in batch.columns else [None] * batch.rows
            for name in ("time", "path", "status", "request_time")
        ]
        seen += zip(*columns, strict=True)
        header = parser.header
        parser = Parser(HEADERS, ["time", "path", "status", "request_time"])
        parser.begin(header)
    assert seen == [(MAY, "/a b", 200, None), (MAY, "/c", 404, Decimal("0.015"))]
    assert (total, rejected) == (3, 1)
    assert parser.header == SECOND


def test_resuming_below_a_header() -> None:
    parser = Parser(HEADERS, ["status"])
    assert parser.parse(b"2015-05-17 10:05:03 /a 200\n").rejects == {Reason.MISSING: 1}
    parser.begin(FIRST)
    assert parser.parse(b"2015-05-17 10:05:03 /a 200\n").columns["status"].to_python() == [200]
    parser.begin()
    assert parser.header == b""
    assert parser.parse(b"#Fields: cs-uri-stem\n/a\n").rejects == {Reason.MISSING: 1}
    batch = Parser(HEADERS, ["status", "x_own", "y_own"]).parse(
        b"#Fields: date time x-own\n2015-05-17 10:05:03 z\n"
    )
    assert {name: column.to_python() for name, column in batch.columns.items()} == {
        "status": [None],
        "x_own": ["z"],
    }


@profile
@given(st.binary(max_size=300), st.sampled_from([JSON, LTSV, LOGFMT, REGEX, HEADERS]), st.booleans())
def test_hostile_bytes_never_crash(block: bytes, format: Format, wide: bool) -> None:
    batch = Parser(format, ASKED, wide=wide).parse(block)
    assert batch.rows + sum(batch.rejects.values()) == batch.lines
    assert batch.reject_rows.dtype == np.int32
    assert all(0 <= sample.offset <= len(sample.line) for sample in batch.samples)


GOLDEN = paths.GOLDEN / "formats"
SEEDS = {
    path.stem: [line for line in path.read_bytes().splitlines() if line and not line.startswith(b" ")]
    for path in sorted(GOLDEN.glob("*.txt"))
    if path.stem in PRESETS
}


@st.composite
def preset_lines(draw: st.DrawFn) -> tuple[Format, list[bytes]]:
    """Golden lines of a preset, some with a piece cut out, put in or repeated."""
    name = draw(st.sampled_from(sorted(SEEDS)))
    lines = []
    for line in draw(st.lists(st.sampled_from(SEEDS[name]), min_size=1, max_size=4)):
        at, length = draw(st.integers(0, len(line))), draw(st.sampled_from([0, 0, 1, 5]))
        piece = draw(
            st.sampled_from(
                [
                    b"",
                    b"",
                    b'"',
                    b"\\",
                    b"\\xff",
                    b"%ff",
                    b"\\ud800",
                    b"\xff",
                    b"\0",
                    b"9" * 20,
                    b"-",
                    b" ",
                    b"\t",
                ]
            )
        )
        lines.append(line[:at] + piece + line[at + length :])
    return PRESETS[name], lines


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(preset_lines(), st.randoms(use_true_random=False), st.booleans())
def test_no_presets_acceptance_depends_on_the_columns(
    case: tuple[Format, list[bytes]], random: Random, wide: bool
) -> None:
    format, lines = case
    columns = sorted(Parser(format, widened(format).columns()).parse(b"").columns)
    asked = random.sample(columns, random.randint(0, len(columns)))
    block = b"\n".join(lines)
    whole, part = Parser(format, columns).parse(block), Parser(format, asked, wide=wide).parse(block)
    assert (part.rows, part.lines, part.invalid_utf8) == (whole.rows, whole.lines, whole.invalid_utf8)
    assert (part.rejects, part.samples) == (whole.rejects, whole.samples)
    assert part.reject_rows.tolist() == whole.reject_rows.tolist()
    for column in asked:
        assert part.columns[column].to_python() == whole.columns[column].to_python()
