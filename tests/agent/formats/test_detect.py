"""Detection: each golden file is recognised as what it is, also when broken, short, or easy to mistake."""

from __future__ import annotations

import pytest

from elf.agent.formats import formats, nginx
from elf.agent.formats.detect import LINES_MAX
from elf.agent.formats.fields import Reason
from elf.agent.formats.parser import Parser
from elf.agent.formats.presets import PRESETS
from elf.errors import FormatError
from tests.rigs import paths

GOLDEN = paths.GOLDEN / "formats"
REAL = paths.DATA / "apache_combined_10k.log"


def records(name: str) -> list[bytes]:
    """The lines of a golden file that are records, each followed by its expectation there."""
    lines = (GOLDEN / f"{name}.txt").read_bytes().splitlines()
    return [
        line
        for line, after in zip(lines, [*lines[1:], b""], strict=True)
        if line and not line.startswith(b"    ") and not after.startswith((b"    !", b"    #"))
    ]


@pytest.mark.parametrize("name", PRESETS)
def test_each_format_is_recognised(name: str) -> None:
    assert formats.resolve("auto", sample=b"".join(line + b"\n" for line in records(name))).name == name


@pytest.mark.parametrize("name", PRESETS)
def test_each_format_is_recognised_by_its_first_line(name: str) -> None:
    line = records(name)[0]
    assert formats.resolve("auto", sample=line).name == name
    assert formats.resolve("auto", sample=line + b"\r\n").name == name


@pytest.mark.parametrize("name", PRESETS)
def test_a_broken_share_of_lines_is_tolerated(name: str) -> None:
    whole = records(name)
    lines = [line for _ in range(10) for line in whole]
    broken = [b"garbage \x00\xff", b"", lines[0][:40], b'10.0.0.1 - - "'] * (len(lines) // 8)
    sample = b"\n".join(broken + lines) + b"\n" + lines[0][:20]
    assert formats.resolve("auto", sample=sample).name == name


COMBINED = b' - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "curl/8"'


@pytest.mark.parametrize(
    "client", [b"203.0.113.7, 10.1.1.1", b"203.0.113.7, 10.1.1.1, 10.1.1.2", b"203.0.113.7,10.1.1.1"]
)
@pytest.mark.parametrize("others", [0, 1, 20])
def test_addresses_in_the_clients_place_are_no_virtual_host(client: bytes, others: int) -> None:
    sample = b"\n".join([client + COMBINED] * 5 + [b"198.51.100.9" + COMBINED] * others)
    assert formats.resolve("auto", sample=sample).name == "combined"


def test_the_format_that_fits_more_lines_is_chosen_before_the_more_specific_one() -> None:
    hosts, plain = [b"example.org 203.0.113.7" + COMBINED], [b"203.0.113.7" + COMBINED]
    assert formats.resolve("auto", sample=b"\n".join(hosts * 6 + plain * 4)).name == "host_combined"
    assert formats.resolve("auto", sample=b"\n".join(hosts * 4 + plain * 6)).name == "combined"


@pytest.mark.parametrize("name", ["w3c", "cloudfront"])
def test_a_header_decides_and_gives_its_own_columns(name: str) -> None:
    separator = b"\t" if name == "cloudfront" else b" "
    extra = b" x-edge-location" if name == "cloudfront" else b""
    sample = b"#Version: 1.0\n#Fields: date time cs-method x-Custom(Thing)" + extra + b"\n"
    sample += separator.join([b"2024-01-01", b"00:00:00", b"GET", b"v"]) + b"\n"
    plan = formats.resolve("auto", sample=sample)
    assert (plan.name, plan.header) == (name, name)
    assert list(plan.columns())[:3] == ["time", "method", "x_custom_thing"]


def test_a_header_without_a_time_is_refused_first_and_survived_later() -> None:
    with pytest.raises(FormatError, match="names no date and time"):
        formats.resolve("auto", sample=b"#Fields: cs-method sc-status\nGET 200\n")
    header, line = b"#Fields: date time sc-status\n", b"2024-01-01 00:00:00 200\n"
    parser = Parser(formats.resolve("w3c"), ("status",))
    batch = parser.parse(header + line + b"#Fields: cs-method sc-status\nGET 200\n" + header + line)
    assert (batch.rows, batch.lines, batch.rejects) == (2, 3, {Reason.MISSING: 1})


def test_a_combined_line_is_never_taken_for_a_shorter_or_longer_format() -> None:
    combined = b'::1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "x"\n'
    vhost = b"shop.example:80 " + combined
    assert formats.resolve("auto", sample=combined * 3 + vhost).name == "combined"
    assert formats.resolve("auto", sample=vhost * 3 + combined).name == "vhost_combined"
    common = combined.replace(b' "-" "x"', b"")
    assert formats.resolve("auto", sample=common * 3 + combined).name == "common"
    assert formats.resolve("auto", sample=b"shop.example:80 " + common).name == "vhost_common"


def test_objects_are_told_apart_by_their_keys() -> None:
    time = b'"time":"2024-01-01T00:00:00Z"'
    assert formats.resolve("auto", sample=b"{" + time + b',"anything":1}\n').name == "json"
    assert (
        formats.resolve("auto", sample=b"{" + time + b',"remote_addr":"::1","request_uri":"/"}\n').name
        == "nginx_json"
    )
    with pytest.raises(
        FormatError,
        match=r"look like json, but 0% of the first 2 fit: .* a time under one of the keys time, .* found the keys no, b;",
    ):
        formats.resolve("auto", sample=b'{"no":"time","b":1}\n{"at":"all"}\n')


def test_what_fits_nothing_is_answered_with_what_was_tried_and_the_first_mismatch() -> None:
    line = b'10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "curl" 0.250 x\n'
    with pytest.raises(FormatError) as caught:
        formats.resolve("auto", sample=line * 3)
    said = str(caught.value)
    assert all(name in said for name in ("none of ", " alb, haproxy,", " combined, ", "nearest is combined "))
    assert "(0% of 3 lines)" in said
    assert "0.250" in said
    assert "name the format" in said
    assert "\n" not in said


def test_the_nearest_format_is_the_one_that_reads_farthest() -> None:
    """A format of keys misses its time at a line's end only."""
    line = b'10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" OK 5 "-" "curl"\n'
    with pytest.raises(
        FormatError, match=r"nearest is combined .* expected a status of three digits in %>s at byte 59"
    ):
        formats.resolve("auto", sample=line * 3)


def test_no_format_is_called_near_to_text_that_is_no_log() -> None:
    with pytest.raises(FormatError) as caught:
        formats.resolve("auto", sample=b"hello world this is text\nand more of it\n")
    said = str(caught.value)
    assert "nearest" not in said
    assert "these lines look like none of them, such as 'hello world this is text': if they are" in said
    line = b'10.0.0.1 - - [yesterday] "GET / HTTP/1.1" 200 5\n'
    with pytest.raises(FormatError, match=r"nearest is \S+ .* in %t at byte 14 and found 'yesterday"):
        formats.resolve("auto", sample=line)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (b"\x7fELF\2\1\0\0\n\0\0 more\n", "this is not text: there are NUL bytes"),
        (b'[\n {"time": "2015-05-17T10:05:03Z",\n  "status": 200}\n]\n', r"one JSON array.* jq -c '\.\[\]'"),
        (b'[{"time": "2015-05-17T10:05:03Z"}, {"time": "2015-05-17T10:05:04Z"}]\n', "one JSON array"),
        (b'{\n "time": "2015-05-17T10:05:03Z",\n "status": 200\n}\n', r"over several lines.* jq -c \."),
    ],
)
def test_what_is_no_log_is_named(sample: bytes, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        formats.resolve("auto", sample=sample)


@pytest.mark.parametrize(
    ("rest", "fields"),
    [
        (' 0.250 "shop" up=10.0.0.1:80', '$request_time "$field1" up=$up'),
        (
            ' "-" 17 0.250 0.100 0.100',
            '"$http_x_forwarded_for" $field1 $request_time $upstream_response_time $field2',
        ),
        (' id="a" status=7', 'id="$id" status=$field1'),
    ],
)
def test_combined_and_further_fields_are_asked_about(rest: str, fields: str) -> None:
    line = f'10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "curl"{rest}\n'.encode()
    with pytest.raises(FormatError) as caught:
        formats.resolve("auto", sample=line * 3)
    asked = f"{nginx.COMBINED} {fields}"
    assert f"; is it --format '{asked}' (100% of them fit)? Else name the format" in str(caught.value)
    assert Parser(formats.resolve(asked), ()).parse(line).rows == 1


@pytest.mark.parametrize("rest", ["x", ' "a', "  1", ' a"b', ' "a""b"', " 1 "])
def test_what_cannot_be_told_apart_is_not_asked_about(rest: str) -> None:
    line = f'10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "curl"{rest}\n'.encode()
    with pytest.raises(FormatError) as caught:
        formats.resolve("auto", sample=line * 3)
    assert "is it" not in str(caught.value)


@pytest.mark.parametrize("sample", [b"", b"\n\n\n", b"   \n"])
def test_an_empty_sample_says_so(sample: bytes) -> None:
    with pytest.raises(FormatError, match="no whole line to detect"):
        formats.resolve("auto", sample=sample)


@pytest.mark.parametrize(
    "sample", [b"\x00" * 300, b"\xff\xfe\n" * 5, b"{" * 50_000 + b"\n", b'"' * 1000, bytes(range(256)) * 40]
)
def test_hostile_samples_are_refused_in_one_line(sample: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        formats.resolve("auto", sample=sample)
    assert "\n" not in str(caught.value)


def test_only_the_first_lines_count() -> None:
    combined = b'::1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "x"\n'
    assert formats.resolve("auto", sample=combined * LINES_MAX + b"garbage\n" * 5000).name == "combined"


def test_the_real_log() -> None:
    if not REAL.exists():
        pytest.skip(f"{REAL.name} is not on this machine")
    with REAL.open("rb") as file:
        assert formats.resolve("auto", sample=file.read(65536)).name == "combined"
