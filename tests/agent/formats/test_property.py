"""Any text is a format or a FormatError; any log_format's lines give back the values they were made of."""

from __future__ import annotations

import string
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.formats import apache, formats, nginx
from elf.agent.formats.envelopes.kinds import split
from elf.agent.formats.parser import Parser
from elf.agent.formats.w3c import fields_for, kind_of
from elf.errors import FormatError

PARTS = r"""$ ${ } $time_local $msec $request $x % %% %t %h %{ %{%d}t %{%s}t %{msec_frac}t %>s %{a}i %U %q ' " \ ; log_format
    LogFormat regex: (?P<time> ) [ {9 * nginx: apache: # / escape=json é"""
TOKENS = st.sampled_from([*PARTS.split(), " ", "\n", "\x00"])


def one_line_error(call: Callable[[], object]) -> bool:
    """Whether `call` raises a FormatError; it must be of one line."""
    try:
        call()
    except FormatError as error:
        return "\n" not in str(error) or pytest.fail(str(error))
    return False


@settings(max_examples=400, derandomize=True, deadline=None)
@given(st.lists(TOKENS, max_size=12).map("".join) | st.text(max_size=40))
def test_any_text_is_a_format_or_one_line_of_error(text: str) -> None:
    if not one_line_error(lambda: formats.resolve(text)):
        plan = formats.resolve(text)
        assert "time" in plan.columns()
        Parser(plan, ("time",)).parse(b"x\n")


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.binary(max_size=80))
def test_any_w3c_header_gives_fields(names: bytes) -> None:
    fields = fields_for(b"#Fields: date time " + names)
    assert [field.name for field in fields[:2]] == ["date", "time"]
    separator = "\t" if kind_of(names) == "cloudfront" else " "
    assert [field.after for field in fields] == [separator] * (len(fields) - 1) + [""]
    Parser(msgspec.structs.replace(formats.resolve("w3c"), fields=fields), ("time",)).parse(
        b"2015-05-17 10:05:03\n"
    )


@pytest.mark.slow
@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.binary(max_size=400))
def test_any_sample_is_a_format_or_one_line_of_error(sample: bytes) -> None:
    if not one_line_error(lambda: formats.resolve("auto", sample=sample)):
        assert split(formats.resolve("auto", sample=sample).name)[1] in formats.names()


WORD = st.text(string.ascii_letters + string.digits + "/._", min_size=1, max_size=8)
SEPARATOR = st.text(" |,;:<>()[]", min_size=1, max_size=3)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.tuples(SEPARATOR, WORD), min_size=1, max_size=8), st.integers(0, 4_000_000_000))
def test_a_log_formats_line_gives_back_its_values(parts: list[tuple[str, str]], seconds: int) -> None:
    text = "$msec" + "".join(f"{separator}$v{n}" for n, (separator, _) in enumerate(parts))
    line = str(seconds) + "".join(separator + word for separator, word in parts)
    plan = nginx.from_string(text)
    same = apache.from_string(
        "%{sec}t" + "".join(f"{separator}%{{v{n}}}n" for n, (separator, _) in enumerate(parts))
    )
    for prefix, format in (("v", plan), ("note_v", same)):
        batch = Parser(format, tuple(format.columns())).parse(line.encode() + b"\n")
        assert batch.rows == 1, batch.samples
        for n, (_, word) in enumerate(parts):
            assert batch.columns[f"{prefix}{n}"].to_python() == [word]


RIGID = {
    "status": "404",
    "body_bytes_sent": "12",
    "request_time": "0.005",
    "connection": "77",
    "time_local": "17/May/2015:10:05:03 +0000",
    "server_name": "shop",
    "remote_addr": "10.0.0.9",
}
HOSTILE = st.lists(st.sampled_from([*' "\\[]|éx', " [", "] ", *RIGID.values()]), min_size=1, max_size=9).map(
    "".join
)
BETWEEN = st.sampled_from([" ", " - ", " [", "] ", "|", " x=", ", "])


def escaped(text: str) -> str:
    """As nginx writes it."""
    return "".join(
        chr(byte) if 32 <= byte <= 126 and byte not in b'"\\' else f"\\x{byte:02X}" for byte in text.encode()
    )


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    st.permutations(list(RIGID)),
    st.integers(0, 7),
    st.integers(0, 7),
    st.lists(BETWEEN, min_size=10, max_size=10),
    HOSTILE,
    HOSTILE,
)
def test_what_a_client_writes_moves_no_other_field(
    names: list[str], cut: int, at: int, between: list[str], first: str, second: str
) -> None:
    """One field of any text without quotes on each side of a quoted one, among the server's own in any order."""
    left, right = names[:cut], names[cut:]
    left.insert(min(at, len(left)), "http_a")
    right.insert(min(at, len(right)), "http_b")
    values = {**RIGID, "http_a": escaped(first), "http_b": escaped(second)}
    form = line = ""
    for n, name in enumerate([*left, "", *right]):
        separator = between[n] if n else ""
        form += separator + (f"${name}" if name else '"$request"')
        line += separator + (values[name] if name else '"GET /a HTTP/1.1"')
    plan = nginx.from_string(form)
    batch = Parser(plan, tuple(plan.columns())).parse(line.encode() + b"\n")
    assert batch.rows == 1, (form, line, batch.samples)
    found = {name: vector.to_python()[0] for name, vector in batch.columns.items()}
    assert (found["http_a"], found["http_b"]) == (first, second), (form, line)
    assert (found["status"], found["bytes"], found["connection"]) == (404, 12, 77)
    assert (found["path"], found["host"], found["client_ip"]) == ("/a", "shop", "10.0.0.9")
    assert found["time"] == 1_431_857_103_000_000
