"""The tokenizer on literal-separated lines: an independent regular-expression tokenizer in plain Python is the oracle."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta
from ipaddress import ip_address
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.formats import _tokenize
from elf.agent.formats.batch import Batch
from elf.agent.formats.fields import Convert, Escape, Field, Form, Format, Reason, Shape
from elf.agent.formats.parser import Parser
from tests.rigs import paths

REAL_LOG = paths.DATA / "apache_combined_10k.log"

COMBINED = Format(
    "combined",
    Shape.LITERAL,
    (
        Field("remote_addr", Convert.STRING, "client_ip", nulls=(b"-",), after=" ", form=Form.CLIENT),
        Field("ident", Convert.STRING, "ident", nulls=(b"-",), after=" ", form=Form.IDENT),
        Field(
            "remote_user",
            Convert.STRING,
            "user",
            nulls=(b"-",),
            escape=Escape.BACKSLASH,
            after=" [",
            form=Form.USER,
        ),
        Field("time_local", Convert.TIME_CLF, "time", nulls=(), after='] "'),
        Field("request", Convert.REQUEST, escape=Escape.BACKSLASH, quote='"', after='" '),
        Field("status", Convert.STATUS, "status", after=" "),
        Field("bytes", Convert.SIZE, "bytes", nulls=(), after=' "'),
        Field("referer", Convert.STRING, "referer", escape=Escape.BACKSLASH, quote='"', after='" "'),
        Field("user_agent", Convert.STRING, "user_agent", escape=Escape.BACKSLASH, quote='"', after='"'),
    ),
    time_is="start",
)
COLUMNS = (
    "client_ip", "ident", "user", "time", "method", "path", "query", "protocol", "status", "bytes", "referer", "user_agent",
)  # fmt: skip
QUOTED = rb'((?:[^"\\]|\\.)*)'
REST = re.compile(
    rb'(?>' + QUOTED + rb'")[ ]([^ ]*) (?>(.*?) ")(?>' + QUOTED + rb'")[ ]"(?>' + QUOTED + rb'")', re.DOTALL
)  # fmt: skip
REQUEST = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) +([^ ](?:.*[^ ])?) +([A-Z]+/\d+(?:\.\d+)?)", re.DOTALL)
CLF = re.compile(rb"(\d\d)/(\w\w\w)/(\d{4}):(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?: ([+-])(\d\d):?(\d\d)?)?")
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
ESCAPED = re.compile(rb"\\(x[0-9a-fA-F]{2}|[\"\\/'ntrbfv])")
SIMPLE = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def unescape(text: bytes) -> bytes:
    def one(match: re.Match[bytes]) -> bytes:
        what = match[1]
        return bytes([int(what[1:], 16)]) if len(what) == 3 else SIMPLE.get(what, what)

    return ESCAPED.sub(one, text)


def clf(text: bytes) -> int | None:
    match = CLF.fullmatch(text)
    if match is None:
        return None
    day, month, year, hour, minute, second, fraction, sign, zone_hour, zone_minute = match.groups()
    if (
        month.decode() not in MONTHS
        or int(zone_hour or 0) > 23
        or int(zone_minute or 0) > 59
        or int(second) > 60
    ):
        return None
    try:
        when = datetime(
            int(year),
            MONTHS.index(month.decode()) + 1,
            int(day),
            int(hour),
            int(minute),
            min(int(second), 59),
        )
    except ValueError:
        return None
    micros = (when - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    micros += 999_999 if int(second) == 60 else int((fraction or b"").ljust(6, b"0")[:6])
    offset = (int(zone_hour or 0) * 60 + int(zone_minute or 0)) * 60_000_000
    micros += offset if sign == b"-" else -offset
    return micros if -62135596800000000 <= micros <= 253402300799999999 else None


def is_address(text: bytes) -> bool:
    with suppress(ValueError):
        ip_address(re.sub(r"(?<![0-9a-fA-F:])0+(?=\d)", "", text.decode("ascii")))
        return True
    return False


def is_client(text: bytes) -> bool:
    if re.fullmatch(rb"unix:[^ \t]*", text) or is_address(text):
        return True
    host = text.removesuffix(b".")
    labels = host.split(b".")
    return bool(
        all(re.fullmatch(rb"[A-Za-z0-9_-]+", label) for label in labels)
        and re.search(rb"[A-Za-z]", labels[-1])
        and len(host) <= 255
    )


def head_of(line: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes] | None:
    """(client, ident, user, time, what follows the request's opening quote), or None: the words, then by the time."""
    client, space, rest = line.partition(b" ")
    while space and client.endswith(b","):
        more, space, rest = rest.partition(b" ")
        client += b" " + more
    ident, also, rest = rest.partition(b" ")
    parts = [client] if client == b"-" else re.split(rb", *", client)
    if not (space and also and ident and (client == b"-" or all(map(is_client, parts)))) or b"\t" in ident:
        return None
    for found in re.finditer(rb"(?= \[)", rest):
        user, behind = rest[: found.start()], rest[found.start() + 2 :]
        time, quote, following = behind.partition(b'] "')
        if quote and clf(time) is not None:
            if not user or (ident != b"-" and re.search(rb"[ \t]", user)):
                return None
            return parts[0], ident, user, time, following
    return None


class Oracle:
    """rows: a dict per accepted line; the totals as in a Batch."""

    def __init__(self, block: bytes) -> None:
        self.rows: list[dict[str, Any]] = []
        self.rejected: list[int] = []
        self.invalid_utf8 = self.lines = 0
        lines = block.split(b"\n")
        for line in lines[:-1] if lines[-1] == b"" else lines:
            self.lines += 1
            row = self.row(line.removesuffix(b"\r"))
            if row is None:
                self.rejected.append(len(self.rows))
            else:
                self.rows.append(row)

    def row(self, line: bytes) -> dict[str, Any] | None:
        line = line.removeprefix(b"\xef\xbb\xbf")
        head = head_of(line)
        match = REST.fullmatch(head[4]) if head else None
        if head is None or match is None or b"\0" in line:
            return None
        client, ident, user, time, _ = head
        request, status, size, referer, agent = match.groups()
        micros = clf(time)
        if not re.fullmatch(rb"\d{3}|-|", status) or not re.fullmatch(rb"\d+|-", size):
            return None
        row: dict[str, Any] = {"time": micros, "status": number(status), "bytes": number(size) or 0}
        if row["bytes"] >= 2**63:
            return None
        raw = {"user": user, "request": request, "referer": referer, "user_agent": agent}
        valid = is_utf8(line) and all(is_utf8(unescape(text)) for text in raw.values())
        self.invalid_utf8 += not valid
        row |= {"client_ip": text_of(client, False), "ident": text_of(ident, False)}
        row |= {name: text_of(text) for name, text in raw.items() if name != "request"}
        parts = REQUEST.fullmatch(request)
        uri = parts[2].split(b"?", 1) if parts else []
        row["method"], row["protocol"] = (
            (text_of(parts[1], null=False), text_of(parts[3], null=False)) if parts else (None, None)
        )
        row["path"] = text_of(uri[0], null=False) if uri else None
        row["query"] = text_of(uri[1], null=False) if len(uri) > 1 else None
        return row


def number(text: bytes) -> int | None:
    return None if text in (b"-", b"") else int(text)


def text_of(text: bytes, escaped: bool = True, null: bool = True) -> str | None:
    if null and text in (b"-", b""):
        return None
    shown = (unescape(text) if escaped else text).decode("utf-8", "surrogateescape")
    shown = re.sub(r"\\+(?=x[0-9a-f]{2}|[\udc80-\udcff])", lambda m: m[0] * 2, shown)
    return re.sub(r"[\udc80-\udcff]", lambda m: f"\\x{ord(m[0]) - 0xDC00:02x}", shown)


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def rows_of(batch: Batch, columns: tuple[str, ...] = COLUMNS) -> list[dict[str, Any]]:
    values = {column: batch.columns[column].to_python() for column in columns}
    assert all(len(column) == batch.rows for column in values.values())
    return [{column: values[column][row] for column in columns} for row in range(batch.rows)]


def agrees(block: bytes, parser: Parser) -> None:
    batch, oracle = parser.parse(block), Oracle(block)
    assert rows_of(batch) == [{column: row[column] for column in COLUMNS} for row in oracle.rows]
    assert batch.reject_rows.tolist() == oracle.rejected
    assert sum(batch.rejects.values()) == len(oracle.rejected)
    assert (batch.lines, batch.invalid_utf8) == (oracle.lines, oracle.invalid_utf8)


text = st.text(alphabet=st.sampled_from("abcz09/?=&%-_. :,[]()é中\U0001f600"), max_size=70).map(str.encode)
quoted_text = st.one_of(
    text,
    st.just(b"-"),
    st.lists(
        st.sampled_from(
            [
                b"a",
                b"GET",
                b" ",
                b"\\x22",
                b"\\xC3\\xA9",
                b"\\xff",
                b"\\n",
                b'\\"',
                b"\\\\",
                b"\\q",
                b"\xff",
                b"x" * 40,
            ]
        ),
        max_size=8,
    ).map(b"".join),
)
whole_request = st.tuples(
    st.sampled_from([b"GET", b"POST", b"M-SEARCH"]),
    text,
    st.sampled_from([b"HTTP/1.1", b"HTTP/2.0", b"HTTP/3", b"SPDY/3.1", b"-"]),
)
request = st.one_of(whole_request.map(b" ".join), quoted_text)
any_time = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
time = st.one_of(
    any_time.map(lambda t: t.strftime(f"%d/%b/{t.year:04}:%H:%M:%S +0000").encode()),
    st.sampled_from(
        [
            b"17/May/2015:10:05:03 +0000",
            b"17/May/2015:10:05:60 -0730",
            b"29/Feb/2015:10:05:03 +0000",
            b"29/Feb/2016:10:05:03 +1400",
            b"17/may/2015:10:05:03 +0000",
            b"17/May/2015:24:05:03 +0000",
            b"17/May/2015:10:05:03",
            b"17/May/2015:10:05:03.123 +0000",
            b"00/May/2015:10:05:03 +0000",
            b"17/May/2015:10:05:03 +2400",
            b"-",
            b"",
        ]
    ),
)
number_text = st.one_of(
    st.integers(0, 10**6).map(lambda n: str(n).encode()),
    st.sampled_from(
        [
            b"-",
            b"",
            b"-5",
            b"200",
            b"1e3",
            b"9223372036854775807",
            b"9223372036854775808",
            b"-9223372036854775808",
            b"007",
        ]
    ),
)
status = st.one_of(st.sampled_from([b"200", b"404", b"-", b"0", b"999"]), number_text)
address = st.one_of(st.ip_addresses().map(lambda ip: str(ip).encode()), text.filter(lambda t: b" " not in t))


user = st.lists(
    st.sampled_from(
        [b"x", b" ", b" [", b"] ", b"[17/May/2014:10:00:00 +0000]", b'\\"', b"\\x22", b"- -", b"10.0.0.1", b"\xe9"]
    ),
    max_size=6,
).map(b"".join)  # fmt: skip


@st.composite
def combined_line(draw: st.DrawFn) -> bytes:
    client = draw(st.one_of(address, st.lists(address, min_size=1, max_size=3).map(b", ".join)))
    ident = draw(st.sampled_from([b"-", b"-", b"-", b"root", b""]))
    head = (
        client
        + b" "
        + ident
        + b" "
        + draw(st.one_of(st.sampled_from([b"-", b"frank", b"a\\x20b", b""]), user))
    )
    return (
        head + b" [" + draw(time) + b'] "' + draw(request) + b'" ' + draw(status) + b" " + draw(number_text)
        + b' "' + draw(quoted_text) + b'" "' + draw(quoted_text) + b'"'
    )  # fmt: skip


@st.composite
def hostile_line(draw: st.DrawFn) -> bytes:
    """A line with a piece cut out, put in or repeated."""
    line = draw(combined_line())
    at, length = draw(st.integers(0, len(line))), draw(st.sampled_from([0, 1, 2, 30, 300]))
    piece = draw(
        st.sampled_from([b"", b'"', b" ", b"\\", b"\0", b"\r", b"\xc3", b"]", b' "', b"-", b"x" * 70])
    )
    return line[:at] + piece + line[at + length :]


lines = st.lists(
    st.one_of(combined_line(), hostile_line(), st.binary(max_size=60).map(lambda b: b.replace(b"\n", b""))),
    max_size=12,
)
profile = settings(max_examples=100, derandomize=True, deadline=None, database=None)


@pytest.mark.slow
@pytest.mark.parametrize("wide", [True, False])
def test_generated_lines_give_what_a_regular_expression_gives(wide: bool) -> None:
    parser = Parser(COMBINED, COLUMNS, wide=wide)

    @profile
    @given(lines, st.sampled_from([b"\n", b"\r\n"]), st.booleans())
    def check(lines: list[bytes], newline: bytes, ended: bool) -> None:
        agrees(newline.join(lines) + (newline if ended else b""), parser)

    check()


@profile
@given(lines, st.sets(st.sampled_from(COLUMNS)))
def test_acceptance_does_not_depend_on_the_columns(lines: list[bytes], columns: set[str]) -> None:
    block = b"\n".join(lines)
    whole, part = Parser(COMBINED, COLUMNS).parse(block), Parser(COMBINED, columns).parse(block)
    assert (part.rows, part.lines, part.invalid_utf8) == (whole.rows, whole.lines, whole.invalid_utf8)
    assert part.rejects == whole.rejects
    assert part.samples == whole.samples
    assert part.reject_rows.tolist() == whole.reject_rows.tolist()
    for column in columns:
        assert part.columns[column].to_python() == whole.columns[column].to_python()


def test_every_subset_of_columns_accepts_the_same_lines() -> None:
    good = b'1.2.3.4 - frank [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 5 "-" "\\xff"\n'
    block = (
        good
        + good.replace(b"200", b"2x0")
        + good.replace(b"17/May", b"32/May")
        + good
        + b"\n"
        + good.replace(b'"GET', b"GET")
    )
    expected = Parser(COMBINED, ()).parse(block)
    assert expected.rows == 2
    for size in range(len(COLUMNS) + 1):
        for columns in combinations(COLUMNS, size):
            batch = Parser(COMBINED, columns).parse(block)
            assert (batch.rows, batch.rejects, batch.samples, batch.invalid_utf8) == (
                2,
                expected.rejects,
                expected.samples,
                2,
            )
            assert set(batch.columns) == set(columns)


@profile
@given(lines.filter(len), st.integers(0, 11))
def test_blocks_may_be_cut_at_any_line(lines: list[bytes], cut: int) -> None:
    whole = Parser(COMBINED, COLUMNS).parse(b"\n".join(lines) + b"\n")
    parser = Parser(COMBINED, COLUMNS)
    batches = [parser.parse(b"".join(line + b"\n" for line in part)) for part in (lines[:cut], lines[cut:])]
    assert [*rows_of(batches[0]), *rows_of(batches[1])] == rows_of(whole)
    assert sum((Counter(batch.rejects) for batch in batches), Counter()) == Counter(whole.rejects)
    joined = batches[0].reject_rows.tolist() + (batches[1].reject_rows + batches[0].rows).tolist()
    assert joined == whole.reject_rows.tolist()


def test_line_lengths_around_the_registers_width() -> None:
    parser = Parser(COMBINED, COLUMNS)
    for length in range(140):
        for tail in (b"", b"\n"):
            agrees(
                b'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /'
                + b"a" * length
                + b' HTTP/1.1" 200 5 "-" "'
                + b"u" * (length % 7)
                + b'"'
                + tail,
                parser,
            )


def test_many_lines_pass_through_strips_and_dictionaries() -> None:
    made = [
        b'10.0.%d.%d - - [17/May/2015:10:05:%02d +0000] "GET /p/%d HTTP/1.1" 200 %d "-" "ua"'
        % (i >> 8 & 255, i & 255, i % 60, i % 3001, i)
        for i in range(5000)
    ]
    made[700] = made[2000] = b"nonsense"
    agrees(b"\n".join(made), Parser(COMBINED, COLUMNS))


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the sample log is not beside the project")
def test_a_real_log() -> None:
    block = REAL_LOG.read_bytes()
    parser = Parser(COMBINED, COLUMNS)
    batch, oracle = parser.parse(block), Oracle(block)
    assert (batch.lines, batch.rows, batch.rejects) == (10_000, 9_999, {Reason.UNTERMINATED: 1})
    assert int((batch.columns["status"].values == 200).sum()) == 9_125
    assert rows_of(batch) == [{column: row[column] for column in COLUMNS} for row in oracle.rows]
    assert batch.invalid_utf8 == oracle.invalid_utf8
    (sample,) = batch.samples
    assert sample.field == "user_agent"
    assert sample.line[sample.offset :].startswith(b"Mozilla/5.0")


def combined(line: bytes, **options: Any) -> Batch:
    return Parser(COMBINED, COLUMNS, **options).parse(line)


GOOD = b'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "ua"'


@pytest.mark.parametrize(
    ("line", "reason", "offset", "field", "expected"),
    [
        (b"\n", Reason.EMPTY, 0, "", "a line of format combined"),
        (GOOD + b"x" * 300, Reason.TOO_LONG, 300, "", "at most 300 bytes"),
        (GOOD.replace(b"/a", b"/\0"), Reason.NUL, 47, "", "text without NUL bytes"),
        (b"hello", Reason.LITERAL, 0, "remote_addr", "a separator ' '"),
        (GOOD.replace(b"] ", b") "), Reason.LITERAL, 13, "time_local", "a separator '] \"'"),
        (GOOD.replace(b'1" 200', b'1",200'), Reason.LITERAL, 58, "request", "a separator '\" '"),
        (GOOD[:-1], Reason.UNTERMINATED, 70, "user_agent", 'a closing "'),
        (GOOD + b" more", Reason.TRAILING, 73, "user_agent", "the end of the line"),
        (GOOD[:8], Reason.TRUNCATED, 8, "ident", "a separator ' '"),
        (GOOD[:40], Reason.TRUNCATED, 40, "time_local", "a separator '] \"'"),
        (
            GOOD.replace(b"May", b"Mai"),
            Reason.TIME,
            13,
            "time_local",
            "a time like 17/May/2015:10:05:03 +0000",
        ),
        (GOOD.replace(b"200", b"2000"), Reason.NUMBER, 59, "status", "a status of three digits"),
        (GOOD.replace(b" 5 ", b" 5k "), Reason.NUMBER, 63, "bytes", "digits or '-'"),
        (GOOD[1:], Reason.TEXT, 0, "remote_addr", "a client's address or host name"),
        (
            b"web1 " + GOOD,
            Reason.TEXT,
            13,
            "remote_user",
            "a user name (one with a space only behind the ident '-')",
        ),
    ],
)
def test_a_reject_says_where_and_what(
    line: bytes, reason: Reason, offset: int, field: str, expected: str
) -> None:
    batch = combined(line, line_max=300)
    assert (batch.rows, batch.lines, batch.rejects) == (0, 1, {reason: 1})
    (sample,) = batch.samples
    assert (sample.reason, sample.offset, sample.field, sample.expected) == (reason, offset, field, expected)
    assert sample.line == line.rstrip(b"\n")


def test_samples_are_bounded() -> None:
    batch = combined(b"x" * 9000 + b"\n" + b"bad\n" * 40)
    assert (len(batch.samples), len(batch.samples[0].line), batch.rejects) == (16, 4096, {Reason.LITERAL: 41})


def test_an_empty_block_is_no_line() -> None:
    batch = combined(b"")
    assert (batch.rows, batch.lines, batch.rejects, batch.reject_rows.tolist()) == (0, 0, {}, [])
    assert rows_of(batch) == []


def test_types_nulls_and_absent_columns() -> None:
    batch = Parser(COMBINED, [*COLUMNS, "agent", "request_time"], agent="web1").parse(
        GOOD.replace(b" 5 ", b" - ") + b"\n" + GOOD
    )
    assert "request_time" not in batch.columns
    types = {name: str(vector.type) for name, vector in batch.columns.items()}
    assert types["time"] == "timestamp"
    assert types["status"] == types["bytes"] == "bigint"
    assert types["path"] == "string"
    assert batch.columns["agent"].to_python() == ["web1"]
    assert batch.columns["bytes"].to_python() == [0, 5]
    assert batch.columns["bytes"].values.tolist() == [0, 5]
    assert batch.columns["status"].valid is None
    assert batch.columns["path"].values.dtype == np.int32


def test_dictionaries_last_from_block_to_block_until_cleared() -> None:
    parser = Parser(COMBINED, ["path"], strings_max=20_000)
    first, again = parser.parse(GOOD).columns["path"], parser.parse(GOOD).columns["path"]
    assert first.strings is again.strings
    assert first.values.tolist() == again.values.tolist() == [0]
    assert not parser.full()
    parser.parse(b"\n".join(GOOD.replace(b"/a", b"/%d" % n) for n in range(2000)))
    assert parser.full()
    assert parser.nbytes > 20_000
    parser.clear()
    assert not parser.full()
    assert parser.parse(GOOD).columns["path"].to_python() == ["/a"]


def test_a_block_may_be_a_memoryview() -> None:
    assert Parser(COMBINED, COLUMNS).parse(memoryview(b"x\n" + GOOD)[2:]).rows == 1


def test_the_kernel_knows_every_member() -> None:
    assert set(_tokenize.CONVERTS) == {member.name for member in Convert}
    assert set(_tokenize.ESCAPES) == {member.name for member in Escape}
    assert set(_tokenize.FORMS) == {member.name for member in Form}
    assert set(_tokenize.SHAPES) == {member.name for member in Shape}
    unwrapped = {"ENVELOPE", "PROGRAM"}  # found before the kernel reads the lines
    assert set(_tokenize.REASONS) - {""} == {member.name for member in Reason} - unwrapped


OCTET = st.sampled_from(
    ["", "0", "9", "25", "99", "100", "199", "249", "250", "255", "256", "260", "300", "1000"]
)


@pytest.mark.slow
@pytest.mark.parametrize("wide", [True, False])
def test_a_clients_address_has_four_numbers_up_to_255(wide: bool) -> None:
    parser = Parser(COMBINED, ("client_ip",), wide=wide)

    @profile
    @given(st.lists(st.lists(OCTET, min_size=3, max_size=5).map(".".join), min_size=20, max_size=20))
    def check(clients: list[str]) -> None:
        batch = parser.parse("".join(f"{each}{GOOD.decode()[7:]}\n" for each in clients).encode())
        assert batch.columns["client_ip"].to_python() == [
            each for each in clients if each.count(".") == 3 and is_address(each.encode())
        ]

    check()
