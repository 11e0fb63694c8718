"""Formats that users write, `[format.NAME]`: what their lines give, and what each mistake is answered with."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from elf.agent.config.config import parse
from elf.agent.formats import formats
from elf.agent.formats.choice import FormatChoice
from elf.agent.formats.parser import Parser
from elf.agent.formats.products import own
from elf.agent.formats.products.notation import TYPES, read_table
from elf.errors import ConfigError, FormatError
from tests.rigs import paths

MAY_17 = 1431857103_000000
"""2015-05-17T10:05:03Z in microseconds."""


def record(table: dict[str, Any], line: str) -> dict[str, Any]:
    """What one line gives, NULLs left out. AssertionError if it is rejected."""
    plan = read_table("x", table)
    batch = Parser(plan, tuple(plan.columns())).parse(line.encode() + b"\n")
    assert batch.rows == 1, batch.samples
    values = {column: vector.to_python()[0] for column, vector in batch.columns.items()}
    return {column: value for column, value in values.items() if value is not None}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file of formats, which does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(own, "SYSTEM", tmp_path / "system" / "formats.toml")
    (tmp_path / "elf").mkdir()
    return tmp_path / "elf" / "formats.toml"


def test_a_line_of_every_part_of_the_notation() -> None:
    table = {
        "line": '{time:iso} {client_ip:host_port} {tier=none,no} "{request}" {status=0} {bytes}B {a:seconds+=-1}/{a:seconds+}'
        " {{{_}}} {request_time:ms} {zone?}"
    }
    line = '2015-05-17T10:05:03Z 10.0.0.1:443 no "GET /a?b=c HTTP/1.1" 200 17B 0.5/0.25 {x y} 3 eu'
    want = {
        "time": MAY_17,
        "client_ip": "10.0.0.1",
        "method": "GET",
        "path": "/a",
        "query": "b=c",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 17,
        "a": Decimal("0.750000"),
        "request_time": Decimal("0.003000"),
    }
    assert record(table, line) == {**want, "zone": "eu"}
    assert record(table, line.replace("no", "gold").removesuffix(" eu")) == {**want, "tier": "gold"}
    without = record(table, line.replace("0.5/", "-1/").replace("200", "0"))
    assert without.keys() == want.keys() - {"a", "status"} | {"zone"}


def test_each_layout_gives_the_same_record() -> None:
    want = {"time": MAY_17, "status": 404, "path": "/a", "query": "b", "request_time": Decimal("0.002000")}
    time = "2015-05-17T10:05:03Z"
    keyed = {"time": "at", ":uri": "what", "status": "code sc", "request_time:ms": "ms"}
    for table, line in (
        ({"line": "{time:iso} {uri} {status} {request_time:ms}"}, f"{time} /a?b 404 2"),
        ({"nginx": "$time_iso8601 $request_uri $status $request_time"}, f"{time} /a?b 404 0.002"),
        ({"apache": "%{%FT%T%z}t %U%q %>s %D"}, "2015-05-17T10:05:03+0000 /a?b 404 2000"),
        (
            {"regex": r"(?P<time>\S+) (?P<uri>\S+) (?P<status>.+) (?P<request_time_ms>.+)"},
            f"{time} /a?b 404 2",
        ),
        ({"json": keyed}, f'{{"at": "{time}", "what": "/a?b", "sc": 404, "ms": 2}}'),
        ({"ltsv": keyed}, f"at:{time}\twhat:/a?b\tsc:404\tms:2"),
        ({"logfmt": keyed}, f'at={time} what="/a?b" sc=404 ms=2'),
    ):
        assert record(table, line) == want, table


def test_keys_that_a_table_does_not_name_mean_what_they_mean_in_json() -> None:
    table = {"json": {"status": "outcome"}}
    line = '{"time": "2015-05-17T10:05:03Z", "outcome": 201, "status": "fine", "method": "PUT"}'
    assert record(table, line) == {"time": MAY_17, "status": 201, "method": "PUT"}


def test_types_of_a_regex_and_a_strptime_pattern_without_a_zone() -> None:
    table = {
        "regex": r"\[(?P<time>[^\]]+)\] (?P<took>\d+) (?P<who>.*)",
        "types": {"time": "%d.%m.%Y %H:%M:%S", "took": "us"},
        "time_is": "start",
    }
    assert record(table, "[17.05.2015 10:05:03] 1500 me") == {
        "time": MAY_17,
        "took": Decimal("0.001500"),
        "who": "me",
    }
    plan = read_table("x", table)
    assert (plan.time_is, plan.zone, plan.name) == ("start", False, "x")


def test_a_date_and_a_time_of_day_are_in_the_sources_zone_unless_the_table_says_utc() -> None:
    table: dict[str, Any] = {"line": "{time:date} {time:time_of_day};{status}"}
    for zone, hours in ((False, 2), (True, 0)):
        plan = read_table("x", table | ({"zone": True} if zone else {}))
        assert plan.zone is zone
        batch = Parser(plan, ("time",), timezone="Europe/Berlin").parse(b"2015-05-17 10:05:03;200\n")
        assert batch.columns["time"].to_python() == [MAY_17 - hours * 3_600_000_000]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "expected one of line, nginx, apache, regex, json, ltsv, logfmt, found none"),
        ({"line": "{time}", "regex": "x"}, "found line and regex"),
        ({"lin": "{time}"}, "unknown key lin; did you mean line?"),
        ({"line": 3}, "line: expected text"),
        ({"json": "status"}, "json: expected a table"),
        ({"line": "{time:isoo}"}, "{time:isoo}: unknown type isoo; did you mean iso?"),
        ({"line": "{time:iso} {}"}, "{}: expected {column} or {column:type}"),
        ({"line": "{time:iso} {a b}"}, "{a b}: expected {column} or {column:type}"),
        ({"line": "{time:iso} {a!r}"}, "{a!r}: expected {column} or {column:type}"),
        ({"line": "{time:iso"}, "line: a single { at byte 0; write it twice"),
        ({"line": "{time:iso}{status}"}, "no separator between time and status"),
        ({"line": "{status}"}, "no field gives the time"),
        ({"line": "{time:iso} {status:text}"}, "status is bigint in every format, and string here"),
        ({"line": "{time:iso} {a:int} {a:text}"}, "a is bigint by another field, and string here"),
        ({"line": "{time:iso} {agent}"}, "agent: this column is the name of the agent"),
        ({"line": "{time:iso}", "time_is": "middle"}, 'time_is: expected "start" or "end"'),
        ({"line": "{time:iso}", "escape": "yes"}, "escape: expected one of none, backslash, json"),
        ({"line": "{time:iso}", "types": {"time": "iso"}}, "types: only a regex has these"),
        ({"regex": "(?P<time>.*)", "types": {"tim": "iso"}}, "types: the pattern has no group tim"),
        ({"regex": "(?P<time>.*"}, "the regular expression is broken"),
        ({"regex": ".*"}, "the pattern has no named group"),
        ({"json": {"status": ""}}, "status: expected keys divided by spaces"),
        ({"apache": "%h %t", "escape": "none"}, "escape: apache has its own"),
        ({"nginx": "$time_iso8601$status"}, "no separator between"),
    ],
)
def test_a_mistake_is_answered_with_its_key_and_what_to_write(table: dict[str, Any], said: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_table("shop", table)
    message = str(caught.value)
    assert message.startswith("[format.shop]: ")
    assert said in message
    assert "\n" not in message


def test_a_name_in_the_users_file_is_a_format_and_detected_first(home: Path) -> None:
    line = b"17/May/2015:10:05:03 +0000|10.0.0.1|GET /a HTTP/1.1|200\n"
    assert formats.resolve("combined").name == "combined"  # without any file
    home.write_text("[format.shop]\nline = '{time:clf}|{client_ip}|{request}|{status}'\n")
    assert formats.resolve("shop").name == "shop"
    notices: list[str] = []
    assert FormatChoice("auto", notices.append).detect("a.log", line).name == "shop"
    assert notices == ["a.log: format shop"]
    with pytest.raises(FormatError, match="did you mean shop"):
        formats.resolve("shopp")


def test_the_users_file_goes_before_the_systems(home: Path) -> None:
    own.SYSTEM.parent.mkdir()
    own.SYSTEM.write_text("[format.a]\nline = '{time:iso} {x}'\n[format.b]\nline = '{time:iso} {y}'\n")
    home.write_text("[format.a]\nline = '{time:iso} {z}'\n")
    assert list(formats.resolve("a").columns()) == ["time", "z"]
    assert list(formats.resolve("b").columns()) == ["time", "y"]


def test_a_broken_file_is_named(home: Path) -> None:
    for text, said in (
        ("[format.a]\nlin = 'x'\n", r"formats.toml: \[format.a\]: unknown key lin"),
        ("[format.a\n", "formats.toml: Expected"),
        ("format = 3\n", r"formats.toml: expected tables \[format.NAME\]"),
        ("[format]\na = 3\n", r"formats.toml: \[format.a\]: expected a table"),
        ("[format.combined]\nline = '{time}'\n", "ELF has a format of this name"),
        ("[format.'a b']\nline = '{time}'\n", "expected a name of letters"),
    ):
        home.write_text(text)
        own._tables.cache_clear()  # files written within a tick of the clock
        with pytest.raises(FormatError, match=said):
            formats.resolve("auto", sample=b"anything\n")


def test_a_table_of_any_file(tmp_path: Path) -> None:
    file = tmp_path / "any.toml"
    file.write_text("[format.shop]\nline = '{time:iso} {x}'\n[format.other]\nline = '{time:iso}'\n")
    assert formats.resolve(f"toml:{file}#shop").name == "shop"
    with pytest.raises(FormatError, match=r"there is no \[format.shp\]; it has shop, other"):
        formats.resolve(f"toml:{file}#shp")
    with pytest.raises(FormatError, match="cannot read the format: No such file"):
        formats.resolve(f"toml:{tmp_path}/none.toml#shop")


def test_the_agents_file_holds_formats_of_its_sources(tmp_path: Path) -> None:
    file = tmp_path / "elf.toml"
    text = (
        '[[source]]\nname="access"\npath="x"\nformat="shop"\n[[job]]\nname="j"\nsql="SELECT 1"\n'
        "[format.shop]\nline = '{time:iso} {x}'\n"
    )
    file.write_text(text)
    [source] = parse(text, file, environ={}).sources
    assert list(formats.resolve(source.format).columns()) == ["time", "x"]
    with pytest.raises(ConfigError, match=r"elf.toml: \[format.shop\]: unknown key lin; did you mean line"):
        parse(text.replace("line =", "lin ="), file, environ={})


def test_the_documentation_lists_every_type() -> None:
    document = (paths.ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    assert [type for type in TYPES if f"`{type}`" not in document] == []


def test_clients_idents_users_and_sizes_of_a_line_are_as_servers_write_them() -> None:
    table = {"line": '{client_ip} {ident} {user} [{time:clf}] "{request}" {status} {bytes}'}
    rest = '[17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 -'
    common = {"time": MAY_17, "method": "GET", "path": "/", "protocol": "HTTP/1.1", "status": 200, "bytes": 0}
    assert record(table, f"1.2.3.4, ::1 - - {rest}") == {**common, "client_ip": "1.2.3.4"}
    assert record(table, f"1.2.3.4 - ann b {rest}") == {**common, "client_ip": "1.2.3.4", "user": "ann b"}
    unknown = {"line": table["line"].replace("bytes", "bytes=-")}
    assert "bytes" not in record(unknown, f"1.2.3.4 - - {rest}")
    parser = Parser(read_table("x", table), ("status",))
    wrong = (
        f"May 17 host: 1.2.3.4 - - {rest}",
        f"web 1.2.3.4 - - {rest}",
        f" - - {rest}",
        f"1.2.3.4 -  {rest}",
        f"1.2.3.4 - - {rest.replace('200', '20')}",
        f"1.2.3.4 - - {rest}5",
    )
    batch = parser.parse("\n".join((*wrong, "")).encode())
    assert (batch.rows, batch.lines) == (0, len(wrong))
    assert sum(batch.rejects.values()) == len(wrong)
    free = {"line": table["line"].replace("client_ip", "client_ip:text").replace("user", "user:text")}
    assert record(free, f"(none) -  {rest}") == {**common, "client_ip": "(none)"}


def test_keys_and_groups_take_any_text_and_no_size_is_null() -> None:
    line = "2015-05-17T10:05:03Z x/y -"
    regex = {"regex": r"(?P<time>\S+) (?P<client_ip>\S*) (?P<bytes>\S*)", "types": {"time": "iso"}}
    assert record(regex, line) == {"time": MAY_17, "client_ip": "x/y"}
    assert record(regex, "2015-05-17T10:05:03Z  +5") == {"time": MAY_17, "bytes": 5}
    ltsv = {"ltsv": {"time:iso": "t", "client_ip": "c", "bytes": "b"}}
    assert record(ltsv, "t:2015-05-17T10:05:03Z\tc:x/y\tb:-") == {"time": MAY_17, "client_ip": "x/y"}
