"""The kernel's shortcuts for the usual fields give what its general code gives, for any bytes, in both instruction sets."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elf.agent.formats import nginx, steps
from elf.agent.formats.fields import Field, Format
from elf.agent.formats.parser import Parser
from elf.agent.formats.presets import PRESETS

TIMED = nginx.from_string(
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
    '"$http_referer" "$http_user_agent" $request_time $upstream_status'
)
BARE = nginx.from_string(
    "$status $body_bytes_sent $remote_addr $time_local"
)  # a time at the end, numbers at the beginning
LONG = nginx.from_string(
    "$remote_addr, the client $time_local, the time $status<status|>$body_bytes_sent,bytes"
)
FORMATS = {
    "combined": PRESETS["combined"],
    "common": PRESETS["common"],
    "timed": TIMED,
    "bare": BARE,
    "long": LONG,
}

CLIENTS = [
    b"1.2.3.4",
    b"255.255.255.255",
    b"256.1.1.1",
    b"1.2.3",
    b"01.2.3.4",
    b"::1",
    b"a.example",
    b"-",
    b"",
    b"1.2.3.4, 5.6.7.8",
]
TIMES = [
    *(b"17/May/2015:%s +0000" % clock for clock in (b"10:05:03", b"23:59:59", b"24:00:00", b"10:60:00", b"10:05:60")),
    *(b"17/May/2015:%s +0000" % clock for clock in (b"1a:05:03", b"10:05:\xff3", b"10;05:03")),
    *(b"17/May/2015:10:05:04 %s" % zone for zone in (b"-0000", b"+0130", b"+2400", b"0000", b"+000")),
    *(b"%s:10:05:03 +0000" % date for date in (b"29/Feb/2016", b"29/Feb/2015", b"17/may/2015", b"31/Dec/9999", b"01/Jan/0001")),
    b"17/May/2015:10:05:03.12345", b"17/May/2015:10:05:03.1 +00", b"17/May/2015:10:05:03", b"17/May/2015;10-05-03 +0000",
    b"31/Dec/9999:23:59:59 -0100", b"01/Jan/0001:00:00:01 +0100", b"-", b"",
]  # fmt: skip
NUMBERS = [
    b"200",
    b"0",
    b"-",
    b"",
    b"-1",
    b"+5",
    b"0200",
    b"99",
    b"1000",
    b"12345678",
    b"123456789012345678",
    b"1234567890123456789",
    b"9223372036854775808",
    b"5x",
]
TEXTS = [
    b"-",
    b"",
    b"--",
    b"- ",
    b"GET / HTTP/1.1",
    b"GET /?a=b&c HTTP/2.0",
    b"-?",
    b'x" 200',
    b"a\\x22b",
    b"a\\",
    b"\xff",
    b"\xc3\xa9",
    b"\0",
    b"\r",
    b"x" * 40,
]


def texts_of(field: Field) -> list[bytes]:
    """Usual and odd texts in the place of a field."""
    if field.convert.name.startswith("TIME"):
        return TIMES
    if field.quote:
        return TEXTS
    return (
        CLIENTS
        if field.form.name == "CLIENT"
        else NUMBERS
        if field.convert.name in ("INT", "SIZE", "STATUS", "SECONDS")
        else TEXTS
    )


@st.composite
def lines(draw: st.DrawFn, format: Format) -> bytes:
    """Lines with a usual text in most fields, an odd one in some, and a changed byte in some lines."""
    out = b""
    for _ in range(draw(st.integers(1, 6))):
        line = format.prefix.encode()
        for field in format.fields:
            texts = texts_of(field)
            text = draw(st.sampled_from(texts)) if draw(st.integers(0, 3)) == 0 else texts[0]
            end = field.after if field.after.startswith(field.quote) else field.quote + field.after
            line += text + end.encode()
        if draw(st.integers(0, 3)) == 0:
            at = draw(st.integers(0, len(line)))
            line = (
                line[:at]
                + draw(st.sampled_from([b"", b" ", b'"', b"-", b"[", b"\\", b"\x80", b"\n", b"\r"]))
                + line[at + draw(st.integers(0, 2)) :]
            )
        out += line + draw(st.sampled_from([b"\n", b"\r\n"]))
    return out


@cache
def parsers(name: str) -> list[Parser]:
    """Of all columns: general only, with shortcuts, and these without wide registers. They keep their memos between blocks."""
    format = FORMATS[name]
    columns = tuple(format.columns())
    quick = [Parser(format, columns), Parser(format, columns, wide=False), Parser(format, ())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "_fast", lambda *_: "")
        return [Parser(format, columns), *quick]


def outcome(parser: Parser, block: bytes) -> tuple[object, ...]:
    batch = parser.parse(block)
    columns = {name: vector.to_python() for name, vector in batch.columns.items()}
    return columns, batch.rows, batch.rejects, list(batch.reject_rows), batch.samples, batch.invalid_utf8


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_shortcuts_give_what_the_general_code_gives(name: str) -> None:
    @settings(max_examples=60, derandomize=True, deadline=None)
    @given(lines(FORMATS[name]))
    @example(b"")
    def check(block: bytes) -> None:
        general, *quick, none = parsers(name)
        wanted = outcome(general, block)
        assert [outcome(parser, block) for parser in quick] == [wanted] * 2
        assert outcome(none, block)[1:] == wanted[1:]

    check()
    assert all(step.fast == "" for step in general_steps(name))


def general_steps(name: str) -> tuple[steps.Step, ...]:
    """Of the parser that the others are compared with: it has no shortcuts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "_fast", lambda *_: "")
        return steps.compile_plan(FORMATS[name], FORMATS[name].fields, {}).steps
