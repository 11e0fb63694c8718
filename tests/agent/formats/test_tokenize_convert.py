"""Conversions and escapes of the tokenizer, each against values worked out by hand or by Decimal and zoneinfo."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.formats.fields import Convert, Escape, Field, Format, Reason, Shape
from elf.agent.formats.parser import Parser
from elf.errors import FormatError, UsageError

REJECT = object()
EXACT = Context(prec=200)
profile = settings(max_examples=100, derandomize=True, deadline=None, database=None)
DAY = 86_400_000_000


def one(convert: Convert, text: bytes, column: str = "x", *, timezone: str = "UTC", **options: Any) -> Any:
    """The value of `column` where a line is one field of this conversion, alone and in the middle; REJECT if refused."""
    nulls = options.pop("nulls", (b"-",))
    field = Field(
        "f", convert, "time" if convert.name.startswith("TIME_") else column, nulls=nulls, **options
    )
    last = Format("one", Shape.LITERAL, (field,), zone=False)
    inner = Format(
        "two",
        Shape.LITERAL,
        (msgspec.structs.replace(field, after="|"), Field("rest", Convert.SKIP)),
        zone=False,
    )
    asked = ["time"] if convert.name.startswith("TIME_") else [column]
    answers = []
    for format, line in ((last, text), (inner, text + b"|more")):
        batch = Parser(format, asked, timezone=timezone).parse(line)
        answers.append(batch.columns[asked[0]].to_python()[0] if batch.rows else REJECT)
        if not batch.rows and text:
            assert set(batch.rejects) <= {Reason.TIME, Reason.NUMBER}
    if text:
        assert answers[0] == answers[1]
    return answers[1]


@pytest.mark.parametrize(
    ("convert", "text", "value"),
    [
        (Convert.INT, b"0", 0),
        (Convert.INT, b"-12", -12),
        (Convert.INT, b"-", None),
        (Convert.INT, b"", REJECT),
        (Convert.INT, b"+5", 5),
        (Convert.INT, b"+", REJECT),
        (Convert.INT, b"+-5", REJECT),
        (Convert.STATUS, b"+200", REJECT),
        (Convert.MILLISECONDS, b"+12", Decimal("0.012")),
        (Convert.DURATION, b"+12s", REJECT),
        (Convert.INT, b"5 ", REJECT),
        (Convert.INT, b"--5", REJECT),
        (Convert.INT, b"1.0", REJECT),
        (Convert.INT, b"000000000000000000000000012", 12),
        (Convert.INT, b"9223372036854775807", 2**63 - 1),
        (Convert.INT, b"-9223372036854775808", -(2**63)),
        (Convert.INT, b"9223372036854775808", REJECT),
        (Convert.INT, b"-9223372036854775809", REJECT),
        (Convert.INT, b"99999999999999999999", REJECT),
        (Convert.SIZE, b"17", 17),
        (Convert.SIZE, b"-5", REJECT),
        (Convert.SIZE, b"+5", REJECT),
        (Convert.SIZE, b"", REJECT),
        (Convert.STATUS, b"20", REJECT),
        (Convert.STATUS, b"000", 0),
        (Convert.STATUS, b"999", 999),
        (Convert.STATUS, b"1000", REJECT),
        (Convert.STATUS, b"-1", REJECT),
        (Convert.STATUS, b"-0", REJECT),
        (Convert.SECONDS, b"0.005", Decimal("0.005")),
        (Convert.SECONDS, b"12", Decimal(12)),
        (Convert.SECONDS, b"1.23456789", Decimal("1.234568")),
        (Convert.SECONDS, b"-0.0000019", Decimal("-0.000002")),
        (Convert.SECONDS, b"0.0000005", Decimal(0)),  # half to even
        (Convert.SECONDS, b"0.0000015", Decimal("0.000002")),
        (Convert.SECONDS, b"0.0000025", Decimal("0.000002")),
        (Convert.SECONDS, b"0.0000025" + b"0" * 40 + b"1", Decimal("0.000003")),
        (Convert.SECONDS, b"1.5e-05", Decimal("0.000015")),
        (Convert.SECONDS, b"2E3", Decimal(2000)),
        (Convert.SECONDS, b".5", Decimal("0.5")),
        (Convert.SECONDS, b"5.", Decimal(5)),
        (Convert.SECONDS, b".", REJECT),
        (Convert.SECONDS, b"1e", REJECT),
        (Convert.SECONDS, b"1.2.3", REJECT),
        (Convert.SECONDS, b"999999999999.999999", Decimal("999999999999.999999")),
        (Convert.SECONDS, b"1000000000000", REJECT),
        (Convert.SECONDS, b"1e99999999999", REJECT),
        (Convert.SECONDS, b"1e-99999999999", Decimal(0)),
        (Convert.SECONDS, b"0e99999999999", Decimal(0)),
        (Convert.SECONDS, b"0." + b"0" * 50 + b"1", Decimal(0)),
        (Convert.SECONDS, b"1" * 50 + b"e-50", Decimal("0.111111")),
        (Convert.MILLISECONDS, b"5", Decimal("0.005")),
        (Convert.MILLISECONDS, b"5.25", Decimal("0.00525")),
        (Convert.MILLISECONDS, b"0.0019", Decimal("0.000002")),
        (Convert.MICROSECONDS, b"123", Decimal("0.000123")),
        (Convert.MICROSECONDS, b"1.5", REJECT),
        (Convert.NANOSECONDS, b"1999", Decimal("0.000002")),
        (Convert.NANOSECONDS, b"1500", Decimal("0.000002")),
        (Convert.NANOSECONDS, b"2500", Decimal("0.000002")),
        (Convert.NANOSECONDS, b"-2501", Decimal("-0.000003")),
        (Convert.NANOSECONDS, b"-1999", Decimal("-0.000002")),
        (Convert.SECONDS_LIST, b"0.005, 0.019 : 0.001", Decimal("0.025")),
        (Convert.SECONDS_LIST, b"0.005, -", Decimal("0.005")),
        (Convert.SECONDS_LIST, b"-, -", None),
        (Convert.SECONDS_LIST, b"-", None),
        (Convert.SECONDS_LIST, b"0.005, x", REJECT),
        (Convert.SECONDS_LIST, b", ", REJECT),
        (Convert.DURATION, b"1.5ms", Decimal("0.0015")),
        (Convert.DURATION, "12.3µs".encode(), Decimal("0.000012")),
        (Convert.DURATION, "12.3μs".encode(), Decimal("0.000012")),
        (Convert.DURATION, b"12us", Decimal("0.000012")),
        (Convert.DURATION, b"1999ns", Decimal("0.000002")),
        (Convert.DURATION, b"2s", Decimal(2)),
        (Convert.DURATION, b"1h2m3.5s", Decimal("3723.5")),
        (Convert.DURATION, b"-1m", Decimal(-60)),
        (Convert.DURATION, b"0.25", Decimal("0.25")),
        (Convert.DURATION, b"1m2", REJECT),
        (Convert.DURATION, b"1x", REJECT),
        (Convert.DURATION, b"ms", REJECT),
        (Convert.DURATION, b"", REJECT),
        (Convert.DURATION, b"999999999999h", REJECT),
        (Convert.DURATION_MS, b"0.25", Decimal("0.00025")),
        (Convert.DURATION_MS, b"2s", Decimal(2)),
        (Convert.TAKEN, b"29", Decimal("0.029")),
        (Convert.TAKEN, b"0.029", Decimal("0.029")),
        (Convert.TAKEN, b"0.0", Decimal(0)),
        (Convert.TAKEN, b"x", REJECT),
        (Convert.HOST_PORT, b"1.2.3.4:5678", "1.2.3.4"),
        (Convert.HOST_PORT, b"[::1]:80", "::1"),
        (Convert.HOST_PORT, b"::1:5678", "::1"),
        (Convert.HOST_PORT, b"unix", "unix"),
        (Convert.HOST, b"10.0.0.1", "10.0.0.1"),
        (Convert.HOST, b"10.0.0.1:80", "10.0.0.1"),
        (Convert.HOST, b"::1", "::1"),
        (Convert.HOST, b"[fe80::1]", "fe80::1"),
        (Convert.HOST, b"[fe80::1", "[fe80::1"),
        (Convert.HOST, b"", ""),
        (Convert.STRING, b"", ""),
    ],
)
def test_numbers_durations_and_hosts(convert: Convert, text: bytes, value: Any) -> None:
    assert one(convert, text) == value


@profile
@given(st.text("0123456789.-eE+", max_size=24))
def test_decimals_are_rounded_to_the_microsecond(text: str) -> None:
    number = re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text)
    expected: Any = REJECT
    if text == "-":
        expected = None
    elif number and abs(int((number[2] or "e0")[1:])) < 1000:
        value = Decimal(text)
        micros = 10**18
        if abs(value) < 10**20:
            micros = int(value.quantize(Decimal("1e-6"), ROUND_HALF_EVEN, EXACT).scaleb(6, EXACT))
        expected = Decimal(micros).scaleb(-6) if abs(micros) < 10**18 else REJECT
    elif number:
        return
    assert one(Convert.SECONDS, text.encode()) == expected


def columns(convert: Convert, text: bytes, **options: Any) -> dict[str, Any]:
    field = Field("f", convert, "x", nulls=options.pop("nulls", ()), **options)
    format = Format("parts", Shape.LITERAL, (msgspec.structs.replace(field, after="|"),))
    batch = Parser(format, ["method", "scheme", "host", "path", "query", "protocol", "x"]).parse(text + b"|")
    assert batch.rows == 1
    return {
        name: vector.to_python()[0]
        for name, vector in batch.columns.items()
        if vector.to_python()[0] is not None
    }


@pytest.mark.parametrize(
    ("convert", "text", "parts"),
    [
        (
            Convert.REQUEST,
            b"GET /a?b=c HTTP/1.1",
            {"method": "GET", "path": "/a", "query": "b=c", "protocol": "HTTP/1.1"},
        ),
        (Convert.REQUEST, b"GET /a b HTTP/2", {"method": "GET", "path": "/a b", "protocol": "HTTP/2"}),
        (
            Convert.REQUEST,
            b"GET /? HTTP/1.0",
            {"method": "GET", "path": "/", "query": "", "protocol": "HTTP/1.0"},
        ),
        (Convert.REQUEST, b"OPTIONS * HTTP/1.1", {"method": "OPTIONS", "path": "*", "protocol": "HTTP/1.1"}),
        (Convert.REQUEST, b"GET /", {}),
        (Convert.REQUEST, b"-", {}),
        (Convert.REQUEST, b"", {}),
        (Convert.REQUEST, b"GET  HTTP/1.1", {}),
        (Convert.REQUEST, b"GET   HTTP/1.1", {}),
        (Convert.REQUEST, b"GET  /  HTTP/1.1", {"method": "GET", "path": "/", "protocol": "HTTP/1.1"}),
        (Convert.REQUEST, b"PUT  /a b HTTP/1.1", {"method": "PUT", "path": "/a b", "protocol": "HTTP/1.1"}),
        (Convert.REQUEST, b"GET / HTTP/", {}),
        (Convert.REQUEST, b"GET / HTTP/1.", {}),
        (Convert.REQUEST, b"\\x16\\x03\\x01 a HTTP/1.1", {}),
        (
            Convert.REQUEST_URL,
            b"GET https://shop.example:443/a?b HTTP/1.1",
            {
                "method": "GET",
                "scheme": "https",
                "host": "shop.example",
                "path": "/a",
                "query": "b",
                "protocol": "HTTP/1.1",
            },
        ),
        (
            Convert.REQUEST_URL,
            b"GET http://[::1]:80 HTTP/1.1",
            {"method": "GET", "scheme": "http", "host": "::1", "path": "/", "protocol": "HTTP/1.1"},
        ),
        (Convert.REQUEST_URL, b"- http://lb:80- -", {}),
        (Convert.URI, b"/a?b?c", {"path": "/a", "query": "b?c"}),
        (Convert.URI, b"", {"path": ""}),
        (Convert.URL, b"http://h?q", {"scheme": "http", "host": "h", "path": "/", "query": "q"}),
        (Convert.URL, b"/a?q", {"path": "/a", "query": "q"}),
        (Convert.QUERY, b"?a=b", {"query": "a=b"}),
        (Convert.QUERY, b"a=b", {"query": "a=b"}),
    ],
)
def test_requests_and_urls(convert: Convert, text: bytes, parts: dict[str, str]) -> None:
    assert columns(convert, text) == parts


@pytest.mark.parametrize(
    ("escape", "text", "value"),
    [
        (Escape.NONE, rb"a\x4A+%41", r"a\x4A+%41"),
        (Escape.NONE, rb"a\x41+%41", r"a\\x41+%41"),
        (Escape.BACKSLASH, rb"a\x41\"\\\n\t\r\b\f\v", 'aA"\\\n\t\r\b\f\v'),
        (Escape.BACKSLASH, rb"\xC3\xA9", "é"),
        (Escape.BACKSLASH, rb"\xC3(", r"\xc3("),
        (Escape.BACKSLASH, rb"\x5Cxc3(\xC3", r"\\xc3(\xc3"),
        (Escape.BACKSLASH, rb"\xZZ\q", r"\xZZ\q"),
        (Escape.BACKSLASH, b"a\\", "a\\"),
        (Escape.JSON, rb"\u00e9\ud83d\ude00\/", "é\U0001f600/"),
        (Escape.JSON, rb"\ud83d \ude00", r"\xed\xa0\xbd \xed\xb8\x80"),
        (Escape.JSON, rb"\u12", r"\u12"),
        (Escape.PLUS, b"a+b%20", "a b%20"),
        (Escape.PERCENT, b"a+b%20%2520%C3%A9%zz%4", "a+b %20é%zz%4"),
        (Escape.PERCENT, b"%FF", r"\xff"),
        (Escape.DOUBLED, b'say ""hi""', 'say "hi"'),
        (Escape.NONE, b"\xe2\x82", r"\xe2\x82"),
        (Escape.NONE, b"\xf0\x80\x80\xed\xa0\x80\xc0a", r"\xf0\x80\x80\xed\xa0\x80\xc0a"),
    ],
)
def test_escapes(escape: Escape, text: bytes, value: str) -> None:
    assert one(Convert.STRING, text, escape=escape) == value
    field = Field("f", Convert.STRING, "x", escape=escape)
    for asked in ([], ["x"]):
        batch = Parser(Format("t", Shape.LITERAL, (field,)), asked).parse(text)
        assert batch.invalid_utf8 == bool(re.search(r"(?<!\\)\\x[0-9a-f]{2}", value))


@profile
@given(st.binary(max_size=40).map(lambda b: re.sub(rb"[\0\n\r|]", b"", b)))
def test_what_is_not_utf8_is_escaped_and_can_be_read_back(text: bytes) -> None:
    found = one(Convert.STRING, text, nulls=())
    assert original(found) == text
    if rb"\x" not in text and text.decode("utf-8", "ignore").encode() == text:
        assert found == text.decode()


@profile
@given(
    st.lists(st.sampled_from([b"\\", b"x", b"e9", b"E9", b"\xe9", "é".encode(), b"a"]), max_size=9).map(
        b"".join
    )
)
def test_escapes_that_stood_in_the_text_are_kept_apart_from_bytes(text: bytes) -> None:
    assert original(one(Convert.STRING, text, nulls=())) == text


def original(shown: str) -> bytes:
    """The bytes that a column's text stands for, by the rule of docs/formats.md."""

    def one(found: re.Match[str]) -> str:
        slashes, digits = found[1], found[2]
        byte = chr(0xDC00 + int(digits, 16)) if len(slashes) % 2 else "x" + digits
        return slashes[: len(slashes) // 2] + byte

    return re.sub(r"(\\+)x([0-9a-f]{2})", one, shown).encode("utf-8", "surrogateescape")


MAY = 1_431_857_103_000_000


@pytest.mark.parametrize(
    ("convert", "text", "value"),
    [
        (Convert.TIME_CLF, b"17/May/2015:10:05:03 +0000", MAY),
        (Convert.TIME_CLF, b"17/May/2015:10:05:03 -0230", MAY + 150 * 60_000_000),
        (Convert.TIME_CLF, b"17/May/2015:10:05:03.123", MAY + 123_000),
        (Convert.TIME_CLF, b"17/May/2015:10:05:60 +0000", MAY + 57_000_000 - 1),
        (Convert.TIME_CLF, b"17/May/2015:10:05:61 +0000", REJECT),
        (Convert.TIME_CLF, b"17/May/2015:10:60:03 +0000", REJECT),
        (Convert.TIME_CLF, b"31/Apr/2015:10:05:03 +0000", REJECT),
        (Convert.TIME_CLF, b"29/Feb/1900:10:05:03 +0000", REJECT),
        (Convert.TIME_CLF, b"17/MAY/2015:10:05:03 +0000", REJECT),
        (Convert.TIME_CLF, b"17/May/0000:10:05:03 +0000", REJECT),
        (Convert.TIME_CLF, b"01/Jan/0001:00:00:00 +0100", REJECT),
        (Convert.TIME_CLF, b"31/Dec/9999:23:59:59 +0000", 253402300799000000),
        (Convert.TIME_CLF, b"17/May/2015:10:05:03 +0000x", REJECT),
        (Convert.TIME_CLF, b"-", REJECT),
        (Convert.TIME_ISO, b"2015-05-17T10:05:03Z", MAY),
        (Convert.TIME_ISO, b"2015-05-17 10:05:03.123456789+02:00", MAY + 123_456 - 7_200_000_000),
        (Convert.TIME_ISO, b"2015-05-17T10:05:03+0200", MAY - 7_200_000_000),
        (Convert.TIME_ISO, b"2015-05-17T10:05:03 -02", MAY + 7_200_000_000),
        (Convert.TIME_ISO, b"2015-05-17T10:05:03", MAY),
        (Convert.TIME_ISO, b"2015-05-17T10:05:03+2:00", REJECT),
        (Convert.TIME_ISO, b"2015-13-17T10:05:03Z", REJECT),
        (Convert.TIME_ISO, b"2015-05-17", REJECT),
        (Convert.TIME_EPOCH, b"1431857103", MAY),
        (Convert.TIME_EPOCH, b"1431857103.1239999", MAY + 123_999),
        (Convert.TIME_EPOCH, b"1.431857103e9", MAY),
        (Convert.TIME_EPOCH, b"1431857103000", MAY),
        (Convert.TIME_EPOCH, b"1431857103000.5", MAY + 500),
        (Convert.TIME_EPOCH, b"1431857103000000", MAY),
        (Convert.TIME_EPOCH, b"1431857103000000123", MAY),
        (Convert.TIME_EPOCH, b"-5", REJECT),
        (Convert.TIME_EPOCH, b"+5", REJECT),
        (Convert.TIME_EPOCH, b"", REJECT),
        (Convert.TIME_EPOCH, b"99999999999999999999", REJECT),
        (Convert.TIME_EPOCH_MS, b"1431857103000", MAY),
        (Convert.TIME_EPOCH_US, b"1431857103000000", MAY),
        (Convert.TIME_ANY, b"1431857103", MAY),
        (Convert.TIME_ANY, b"[17/May/2015:10:05:03 +0000]", MAY),
        (Convert.TIME_ANY, b"2015-05-17T10:05:03Z", MAY),
        (Convert.TIME_ANY, b"yesterday", REJECT),
    ],
)
def test_times(convert: Convert, text: bytes, value: Any) -> None:
    assert one(convert, text) == value


@profile
@given(
    st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]),
)
def test_zoneless_times_are_of_the_sources_zone(when: datetime, zone: str) -> None:
    local = when.replace(tzinfo=ZoneInfo(zone))
    quarter = when.replace(minute=when.minute // 15 * 15, second=0, microsecond=0)
    offset = quarter.replace(tzinfo=ZoneInfo(zone)).utcoffset()
    assert offset is not None
    expected = (when - offset - datetime(1970, 1, 1)).total_seconds()
    text = when.strftime(f"{when.year:04}-%m-%dT%H:%M:%S.%f").encode()
    got = one(Convert.TIME_ISO, text, timezone=zone)
    assert abs(got - expected * 1e6) < 1e6 / 500
    if when.year > 1972:  # older offsets did not change at quarters of an hour
        assert offset == local.utcoffset()


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        (b"2015-10-25T02:30:00", b"2015-10-25T00:30:00Z"),  # comes twice: the first, summer time
        (b"2015-03-29T02:30:00", b"2015-03-29T01:30:00Z"),  # never comes: by the offset before
        (b"2015-03-29T03:00:00", b"2015-03-29T01:00:00Z"),
    ],
)
def test_a_clock_that_is_set(text: bytes, utc: bytes) -> None:
    assert one(Convert.TIME_ISO, text, timezone="Europe/Berlin") == one(Convert.TIME_ISO, utc)


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(UsageError, match="Mars/Olympus"):
        Parser(
            Format("f", Shape.LITERAL, (Field("t", Convert.TIME_ISO, "time"),)), [], timezone="Mars/Olympus"
        )


def test_times_by_pattern() -> None:
    pattern = "%d.%m.%Y %H:%M:%S"
    assert one(Convert.TIME_STRPTIME, b"17.05.2015 10:05:03", pattern=pattern) == MAY
    assert (
        one(Convert.TIME_STRPTIME, b"17.05.2015 12:05:03", pattern=pattern, timezone="Europe/Berlin") == MAY
    )
    assert one(Convert.TIME_STRPTIME, b"17.05.2015 12:05:03 +0200", pattern=pattern + " %z") == MAY
    assert one(Convert.TIME_STRPTIME, b"17.13.2015 10:05:03", pattern=pattern) is REJECT
    assert one(Convert.TIME_STRPTIME, b"\xff", pattern=pattern) is REJECT


def parse(fields: tuple[Field, ...], block: bytes, asked: list[str], **options: Any) -> Any:
    batch = Parser(Format("t", Shape.LITERAL, fields, **options), asked).parse(block)
    return [batch.columns[column].to_python() for column in asked], batch.rejects


def test_times_with_the_separator_inside() -> None:
    rest = Field("rest", Convert.STRING, "rest")
    for field, text in (
        (Field("t", Convert.TIME_CLF, "time", after=" "), b"17/May/2015:10:05:03 +0000 x y"),
        (Field("t", Convert.TIME_ISO, "time", after=" "), b"2015-05-17 10:05:03 x y"),
        (
            Field("t", Convert.TIME_STRPTIME, "time", after=" ", pattern="%Y-%m-%d %H:%M:%S"),
            b"2015-05-17 10:05:03 x y",
        ),
    ):
        assert parse((field, rest), text, ["time", "rest"]) == ([[MAY], ["x y"]], {})


def test_date_and_time_of_day() -> None:
    fields = (
        Field("date", Convert.DATE, after=" "),
        Field("time", Convert.TIME_OF_DAY, after=" "),
        Field("s", Convert.STATUS, "status"),
    )
    block = b"2015-05-17 10:05:03.5 200\n2015-05-17 - 200\n2015-02-30 10:05:03 200\n2015-05-17 10:05:03 200"
    assert parse(fields, block, ["time"]) == ([[MAY + 500_000, MAY]], {Reason.TIME: 2})
    batch = Parser(Format("t", Shape.LITERAL, fields, zone=False), ["time"], timezone="Asia/Kolkata").parse(
        block
    )
    assert batch.columns["time"].to_python() == [MAY + 500_000 - 19_800_000_000, MAY - 19_800_000_000]


def test_sums_and_first_values() -> None:
    fields = (
        Field("a", Convert.SECONDS, "request_time", nulls=(b"-1", b"-"), sum=True, after=" "),
        Field("b", Convert.SECONDS, "request_time", nulls=(b"-1",), sum=True, after=" "),
        Field("x", Convert.STRING, "host", after=" "),
        Field("y", Convert.STRING, "host", after=" "),
        Field("m", Convert.INT, "bytes", after=" "),
        Field("n", Convert.INT, "bytes"),
    )
    block = b"1.5 2 a b 1 2\n-1 2 - b - 2\n1 -1 - - - -\n-1 -1 a - 1 -"
    assert parse(fields, block, ["request_time", "host", "bytes"]) == (
        [[Decimal("3.5"), None, None, None], ["a", "b", None, "a"], [1, 2, None, 1]],
        {},
    )


def test_lists_optional_fields_and_prefixes() -> None:
    fields = (
        Field("up", Convert.SECONDS_LIST, "upstream", list=True, after=" "),
        Field("name", Convert.STRING, "name", after=" "),
        Field("size", Convert.INT, "bytes", optional=True, after=' "'),
        Field("ua", Convert.STRING, "ua", quote='"', optional=True, after='"'),
    )
    block = b'0.1, 0.2 : 0.3 n 5 "x"\n0.1 : - n\n- n 5\n0.1 n \n0.1 n 5 "x\n- n 5k'
    expected = [
        [Decimal("0.6"), Decimal("0.1"), None, Decimal("0.1")],
        ["n"] * 4,
        [5, None, 5, None],
        ["x", None, None, None],
    ]
    asked = ["upstream", "name", "bytes", "ua"]
    assert parse(fields, block, asked) == (expected, {Reason.UNTERMINATED: 1, Reason.NUMBER: 1})
    block = b"".join(b"<13>host haproxy[1]: [" + line + b"\n" for line in block.split(b"\n"))
    assert parse(fields, block, asked, prefix="[", skip_prefix="]: ")[0] == expected
    rejects = parse(fields, b"0.1 n\n", asked, prefix="[")[1]
    assert rejects == {Reason.LITERAL: 1}


def test_doubled_quotes_and_long_separators() -> None:
    fields = (
        Field("a", Convert.STRING, "a", quote='"', escape=Escape.DOUBLED, after='" and then "'),
        Field("b", Convert.STRING, "b", quote='"', after='"'),
    )
    block = b'say ""hi""" and then "b"\n" and then "b"\nx" and them "b"\nx" and th\nx""'
    assert parse(fields, block, ["a", "b"]) == (
        [['say "hi"', None], ["b", "b"]],
        {Reason.LITERAL: 1, Reason.TRUNCATED: 1, Reason.UNTERMINATED: 1},
    )


def test_null_texts() -> None:
    fields = (
        Field("s", Convert.STATUS, "status", nulls=(b"000", b"", b"-"), after=" "),
        Field("x", Convert.STRING, "x", nulls=()),
    )
    assert parse(fields, b"000 -\n - \n200 000\n00 x", ["status", "x"]) == (
        [[None, None, 200], ["-", "- ", "000"]],
        {Reason.NUMBER: 1},
    )
    with pytest.raises(FormatError, match="NULL texts"):
        parse((Field("s", Convert.STRING, "s", nulls=(b"x" * 16,)),), b"", [])


def test_columns_of_two_types_are_refused() -> None:
    with pytest.raises(FormatError, match="bigint"):
        parse((Field("a", Convert.INT, "x", after=" "), Field("b", Convert.STRING, "x")), b"", [])
