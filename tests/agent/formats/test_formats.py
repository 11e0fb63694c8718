"""What an operator may write as a format: names, pasted strings, configurations, regular expressions."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from elf.agent.formats import formats
from elf.agent.formats.fields import Convert, Format, type_of
from elf.agent.formats.parser import Parser
from elf.agent.formats.presets import COLUMN_TYPES, PRESETS
from elf.agent.formats.table import refreshed, summaries
from elf.errors import FormatError
from tests.rigs import paths

MAY_17 = 1431857103_000000
"""2015-05-17T10:05:03Z in microseconds."""


def record(plan: Format, line: str) -> dict[str, Any]:
    """What one line gives, NULLs left out. AssertionError if it is rejected."""
    batch = Parser(plan, tuple(plan.columns())).parse(line.encode() + b"\n")
    assert batch.rows == 1, batch.samples
    values = {column: vector.to_python()[0] for column, vector in batch.columns.items()}
    return {column: value for column, value in values.items() if value is not None}


def test_presets_have_their_own_names_and_resolve_to_themselves() -> None:
    for name in formats.names():
        assert formats.resolve(name).name == name
    assert set(summaries()) == set(formats.names())


@pytest.mark.parametrize("name", PRESETS)
def test_a_column_has_one_type_whichever_field_fills_it(name: str) -> None:
    seen: dict[str, object] = {}
    for field in PRESETS[name].fields:
        for column in field.columns:
            type = type_of(field.convert)
            assert seen.setdefault(column, type) == type, (column, field.name)
            assert COLUMN_TYPES.get(column, type) == type, (column, field.name)


def test_column_types_hold_every_column_and_the_agent() -> None:
    types = {column: str(type) for column, type in formats.column_types(formats.resolve("traefik")).items()}
    assert types["time"] == "timestamp"
    assert types["status"] == types["bytes"] == types["request_count"] == "bigint"
    assert types["request_time"] == "decimal(18,6)"
    assert types["path"] == types["agent"] == "string"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("combind", "did you mean combined?"),
        ("Cloudfront", "did you mean cloudfront?"),
        (
            "ngixn",
            "did you mean nginx_main, nginx_ingress, nginx_json, nginx_timed, nginx_timed_upstream, nginx_main_timed, …",
        ),
        ("zzz", "known are auto, common, combined, vhost_common, vhost_combined, nginx_main and "),
        ("nginx:/etc/nginx.conf", "expected nginx:FILE#NAME"),
        ("apache:#x", "expected apache:FILE#NAME"),
        ("nginx:/does/not/exist#main", "/does/not/exist: cannot be read (No such file or directory)"),
        ("$time_local $host$request_uri", "no separator between host and request_uri"),
        ('%t %h%l "%r"', "no separator between %h and %l"),
        ("$remote_addr $status", "no field gives the time"),
        ("%h %u", "no field gives the time"),
        ("%t %h %Z", "%Z is not a directive"),
        ("%t 100% of", "is not a directive"),
        ("%{%H:%M}t %h", "is not a whole date and time"),
        ("regex:(?P<time>[0-9", "unterminated character set"),
        ("^(?P<time>.*)$", "write regex: before a regular expression"),
        ("regex:^(\\d+)$", "has no named group"),
        ("regex:^(?P<status>\\d+)$", "no field gives the time"),
        ("log_format main;", "did you mean"),
        ("log_format x escape=html '$time_local';", "escape=html is not one of default, json, none"),
        ("auto", "no whole line"),
    ],
)
def test_a_wrong_format_says_what_and_what_to_do(spec: str, said: str) -> None:
    if said == "did you mean":
        said = "is not known"
    with pytest.raises(FormatError) as caught:
        formats.resolve(spec)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_w3c_log_has_the_columns_that_a_later_header_may_bring() -> None:
    assert "host" not in formats.resolve("w3c").columns()
    assert {"host", "protocol", "bytes", "request_length"} <= set(
        formats.column_types(formats.resolve("w3c"))
    )


# --- nginx


NGINX_TIMED = (
    """log_format timed '$remote_addr - $remote_user [$time_local] "$request" '\n"""
    """                 '$status $body_bytes_sent rt=$request_time uct="$upstream_connect_time" '\n"""
    """                 "urt=$upstream_response_time host=${http_host} x=$upstream_addr msec=$msec";"""
)


def test_a_pasted_log_format_statement() -> None:
    plan = formats.resolve(NGINX_TIMED)
    assert (plan.name, plan.time_is) == ("nginx:timed", "end")
    line = (
        '2001:db8::1 - - [17/May/2015:12:05:03 +0200] "PUT /a?b HTTP/1.1" 201 - rt=1.250 uct="0.001, 0.002 : -"'
        " urt=0.005, 0.019 : 0.001 host=shop.example:8080 x=10.0.0.1:80, 10.0.0.2:80 : unix:/s msec=1431857103.123"
    )
    assert record(plan, line) == {
        "client_ip": "2001:db8::1",
        "method": "PUT",
        "path": "/a",
        "query": "b",
        "protocol": "HTTP/1.1",
        "status": 201,
        "bytes": 0,
        "request_time": Decimal("1.250000"),
        "upstream_connect_time": Decimal("0.003000"),
        "upstream_response_time": Decimal("0.025000"),
        "host": "shop.example",
        "upstream_addr": "10.0.0.1:80, 10.0.0.2:80 : unix:/s",
        "time": MAY_17 + 123_000,
    }


def test_escape_json_is_read_as_literal_text_with_json_escapes() -> None:
    plan = formats.resolve(
        """log_format j escape=json '{"t":"$time_iso8601","a":"$http_user_agent","s":$status,'"""
        """'"u":"$uri$is_args$args","rt":$request_time,"up":"$upstream_response_time"}';"""
    )
    line = '{"t":"2015-05-17T10:05:03+00:00","a":"say \\"hi\\" \\u00fc\\n","s":200,"u":"/p?q=\\"1\\"","rt":0.5,"up":""}'
    assert record(plan, line) == {
        "time": MAY_17,
        "user_agent": 'say "hi" ü\n',
        "status": 200,
        "path": "/p",
        "query": 'q="1"',
        "request_time": Decimal("0.500000"),
    }
    assert "query" not in record(plan, line.replace('?q=\\"1\\"', ""))


def test_escape_none_decodes_nothing() -> None:
    plan = formats.resolve("""log_format n escape=none '$time_iso8601|$http_user_agent|$status';""")
    assert record(plan, '2015-05-17T10:05:03+00:00|a\\x41\\"|200')["user_agent"] == 'a\\\\x41\\"'


def test_of_variables_with_one_meaning_the_better_fills_the_column() -> None:
    plan = formats.resolve(
        '[$time_iso8601] $uri "$request" $request_method $bytes_sent $body_bytes_sent $server_name $host $x1'
    )
    line = '[2015-05-17T10:05:03Z] /rewritten "GET /asked?q=1 HTTP/1.0" GET 900 700 _ shop.example y'
    assert record(plan, line) == {
        "time": MAY_17,
        "uri": "/rewritten",
        "method": "GET",
        "path": "/asked",
        "query": "q=1",
        "protocol": "HTTP/1.0",
        "request_method": "GET",
        "bytes_sent": 900,
        "bytes": 700,
        "server_name": "_",
        "host": "shop.example",
        "x1": "y",
    }
    alone = formats.resolve("$time_iso8601 $uri $args $bytes_sent $server_name")
    assert record(alone, "2015-05-17T10:05:03Z /p a=1 900 shop.example") == {
        "time": MAY_17,
        "path": "/p",
        "query": "a=1",
        "bytes": 900,
        "host": "shop.example",
    }


def test_what_a_client_chooses_is_never_a_number() -> None:
    """Else a client could have its own lines rejected, and so hide."""
    plan = formats.resolve(
        "$time_iso8601 $content_length $http_content_length $arg_n $cookie_n $http_x_request_time $sent_http_x"
    )
    assert {field.convert for field in plan.fields[1:]} == {Convert.STRING}


def nginx_tree(root: Path) -> Path:
    (root / "conf.d").mkdir()
    main = root / "nginx.conf"
    main.write_text(
        "user www-data; # log_format fake '$time_local';\n"
        "events { worker_connections 768; }\nhttp {\n  include mime.types;\n"
        "  init_by_lua_block { local s = \"it's { nested } \" ; log_format x 'y'; }\n"
        "  log_format main '$remote_addr [$time_local] \"$request\" '\n    '$status \\'$http_x\\'';\n"
        "  include conf.d/*.conf;\n  server { location ~ \\.php$ { access_log /var/log/a.log main; } }\n}\n"
    )
    (root / "mime.types").write_text("types { text/html html; }\n")
    (root / "conf.d" / "a.conf").write_text(
        "log_format timed escape=json '$time_iso8601 $request_time $http_y';\n"
    )
    (root / "conf.d" / "b.conf").write_text('log_format  tabbed "$msec\\t$status";\n')
    return main


def test_a_log_format_read_from_the_configuration(tmp_path: Path) -> None:
    main = nginx_tree(tmp_path)
    plan = formats.resolve(f"nginx:{main}#main")
    assert plan.name == "nginx:main"
    assert record(plan, "10.0.0.1 [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 'v'") == {
        "client_ip": "10.0.0.1",
        "time": MAY_17,
        "method": "GET",
        "path": "/",
        "protocol": "HTTP/1.1",
        "status": 200,
        "http_x": "v",
    }
    assert record(formats.resolve(f"nginx:{main}#tabbed"), "1431857103.5\t404") == {
        "time": MAY_17 + 500_000,
        "status": 404,
    }
    assert formats.resolve(f"nginx:{main}#timed").fields[2].escape.value == "json"
    assert formats.resolve(f"nginx:{main}#combined").name == "nginx:combined"


def test_a_missing_log_format_is_answered_with_those_there_are(tmp_path: Path) -> None:
    main = nginx_tree(tmp_path)
    with pytest.raises(
        FormatError, match="there is no log_format 'mian'; it has main, timed, tabbed, combined"
    ):
        formats.resolve(f"nginx:{main}#mian")


def test_include_cycles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text("include b.conf;")
    (tmp_path / "b.conf").write_text("include a.conf;")
    with pytest.raises(FormatError, match="includes itself"):
        formats.resolve(f"nginx:{tmp_path / 'a.conf'}#main")
    (tmp_path / "httpd.conf").write_text("Include httpd.conf\n")
    with pytest.raises(FormatError, match="includes itself"):
        formats.resolve(f"apache:{tmp_path / 'httpd.conf'}#main")


def test_deep_includes_are_refused(tmp_path: Path) -> None:
    for n in range(20):
        (tmp_path / f"{n}.conf").write_text(f"include {n + 1}.conf;")
    with pytest.raises(FormatError, match="more than 16 includes within one another"):
        formats.resolve(f"nginx:{tmp_path / '0.conf'}#main")


# --- Apache


def test_a_pasted_logformat_line() -> None:
    plan = formats.resolve(
        r'LogFormat "%v:%p %h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\" %D %X %b" vhost_time'
    )
    assert (plan.name, plan.time_is) == ("apache:vhost_time", "start")
    line = 'shop.example:443 10.0.0.1 - "" [17/May/2015:10:05:03 +0000] "GET /x HTTP/1.1" 200 900 "-" "curl \\"x\\"" 1500 - -'
    assert record(plan, line) == {
        "host": "shop.example",
        "server_port": 443,
        "client_ip": "10.0.0.1",
        "time": MAY_17,
        "method": "GET",
        "path": "/x",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 0,
        "bytes_sent": 900,
        "user_agent": 'curl "x"',
        "request_time": Decimal("0.001500"),
        "connection_status": "-",
    }


@pytest.mark.parametrize(
    ("directive", "text", "column", "value"),
    [
        ("%D", "1500", "request_time", Decimal("0.001500")),
        ("%T", "3", "request_time", Decimal("3.000000")),
        ("%{ms}T", "15", "request_time", Decimal("0.015000")),
        ("%{us}T", "15", "request_time", Decimal("0.000015")),
        ("%{s}T", "2", "request_time", Decimal("2.000000")),
        ("%a", "::1", "client_ip", "::1"),
        ("%h", "host.example", "client_ip", "host.example"),
        ("%{c}a", "10.0.0.9", "client_ip", "10.0.0.9"),
        ("%A", "10.0.0.2", "server_addr", "10.0.0.2"),
        ("%B", "0", "bytes", 0),
        ("%b", "7", "bytes", 7),
        ("%O", "9", "bytes", 9),
        ("%I", "11", "request_length", 11),
        ("%S", "20", "bytes_total", 20),
        ("%>s", "404", "status", 404),
        ("%s", "302", "status", 302),
        ("%m", "HEAD", "method", "HEAD"),
        ("%U", "/p", "path", "/p"),
        ("%q", "?a=b", "query", "a=b"),
        ("%H", "HTTP/2.0", "protocol", "HTTP/2.0"),
        ("%v", "shop", "host", "shop"),
        ("%V", "shop", "host", "shop"),
        ("%{Host}i", "shop:81", "host", "shop"),
        ("%p", "80", "server_port", 80),
        ("%{remote}p", "5000", "remote_port", 5000),
        ("%P", "12", "pid", 12),
        ("%{tid}P", "13", "tid", 13),
        ("%k", "2", "keepalive_requests", 2),
        ("%L", "Zx", "log_id", "Zx"),
        ("%R", "cgi-script", "handler", "cgi-script"),
        ("%f", "/srv/x", "filename", "/srv/x"),
        ("%X", "+", "connection_status", "+"),
        ("%l", "id", "ident", "id"),
        ("%u", "ann", "user", "ann"),
        ("%^FB", "250", "first_byte_time", Decimal("0.000250")),
        ("%{X-Real-IP}i", "1.2.3.4", "http_x_real_ip", "1.2.3.4"),
        ("%{Content-Type}o", "text/html", "sent_http_content_type", "text/html"),
        ("%{UNIQUE_ID}e", "u1", "env_unique_id", "u1"),
        ("%{SID}C", "s1", "cookie_sid", "s1"),
        ("%{ratio}n", "54%", "note_ratio", "54%"),
        ("%{SSL_PROTOCOL}x", "TLSv1.3", "ssl_protocol", "TLSv1.3"),
        ("%400,501{User-agent}i", "curl", "user_agent", "curl"),
        ("%!200,304{Referer}i", "http://r/", "referer", "http://r/"),
    ],
)
def test_each_apache_directive(directive: str, text: str, column: str, value: object) -> None:
    plan = formats.resolve(f"%t {directive}")
    assert record(plan, f"[17/May/2015:10:05:03 +0000] {text}") == {"time": MAY_17, column: value}


def test_a_dash_is_no_bytes() -> None:
    for plan in (formats.resolve("%t %b"), formats.resolve("[$time_local] $body_bytes_sent")):
        assert record(plan, "[17/May/2015:10:05:03 +0000] -") == {"time": MAY_17, "bytes": 0}


@pytest.mark.parametrize(
    ("directive", "text", "micros", "time_is"),
    [
        ("%t", "[17/May/2015:10:05:03 +0000]", 0, "start"),
        ("%{sec}t", "1431857103", 0, "start"),
        ("%{msec}t", "1431857103123", 123_000, "start"),
        ("%{usec}t", "1431857103123456", 123_456, "start"),
        ("%{begin:usec}t", "1431857103123456", 123_456, "start"),
        ("%{end:msec}t", "1431857103123", 123_000, "end"),
        ("%{%s}t", "1431857103", 0, "start"),
        ("%{sec}t.%{msec_frac}t", "1431857103.123", 123_000, "start"),
        ("%t %{msec_frac}t", "[17/May/2015:10:05:03 +0000] 123", 0, "start"),
        ("%{%s}t.%{usec_frac}t", "1431857103.000250", 250, "start"),
        ("[%{%d/%b/%Y:%H:%M:%S %z}t]", "[17/May/2015:12:05:03 +0200]", 0, "start"),
        ("[%{%d/%b/%Y:%T}t.%{msec_frac}t %{%z}t]", "[17/May/2015:12:05:03.123 +0200]", 123_000, "start"),
        ("[%{%d/%b/%Y %T}t.%{msec_frac}t %{%z}t]", "[17/May/2015 12:05:03.123 +0200]", 123_000, "start"),
        ("%{%FT%T%z}t", "2015-05-17T10:05:03+0000", 0, "start"),
        ("%{end:%Y-%m-%d %H:%M:%S}t", "2015-05-17 10:05:03", 0, "end"),
        ("%{%m/%d/%Y %I:%M:%S %p}t", "05/17/2015 10:05:03 AM", 0, "start"),
    ],
)
def test_each_apache_time(directive: str, text: str, micros: int, time_is: str) -> None:
    plan = formats.resolve(f'{directive} "%r"')
    assert plan.time_is == time_is
    assert record(plan, f'{text} "-"') == {"time": MAY_17 + micros}


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("%t", True),
        ("%{%s}t", True),
        ("%{usec}t", True),
        ("%{%FT%T%z}t", True),
        ("%{%FT%T}t", False),
        ("%{%c}t", False),
    ],
)
def test_a_pattern_without_a_zone_says_so(text: str, zone: bool) -> None:
    assert formats.resolve(f"{text} %h").zone is zone


def test_the_finest_of_several_times_counts() -> None:
    plan = formats.resolve("%t %{end:usec}t %h")
    assert plan.time_is == "end"
    assert record(plan, "[17/May/2015:10:05:02 +0000] 1431857103000007 ::1") == {
        "time": MAY_17 + 7,
        "client_ip": "::1",
    }


def test_path_and_query_of_apache_are_one_uri() -> None:
    plan = formats.resolve("%t %m %U%q %H")
    assert record(plan, "[17/May/2015:10:05:03 +0000] GET /a HTTP/1.1") == {
        "time": MAY_17,
        "method": "GET",
        "path": "/a",
        "protocol": "HTTP/1.1",
    }
    assert record(plan, "[17/May/2015:10:05:03 +0000] GET /a?b=c HTTP/1.1")["query"] == "b=c"


def test_a_logformat_read_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf.d" / "more").mkdir(parents=True)
    main = tmp_path / "conf" / "httpd.conf"
    main.write_text(
        f'ServerRoot "{tmp_path}"\n# LogFormat "%h" commented\nInclude conf.d\nIncludeOptional nothing/*.conf\n'
        '<IfModule log_config_module>\n    logformat "%h %t \\"%r\\" %>s \\\n%b" folded\n</IfModule>\n'
        'CustomLog "logs/access_log" folded\n'
    )
    (tmp_path / "conf.d" / "more" / "x.conf").write_text('LogFormat "%t %D" timed\n')
    plan = formats.resolve(f"apache:{main}#folded")
    assert plan.name == "apache:folded"
    line = '::1 [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 7'
    assert record(plan, line)["bytes"] == 7
    assert record(formats.resolve(f"apache:{main}#timed"), "[17/May/2015:10:05:03 +0000] 5")[
        "request_time"
    ] == Decimal("0.000005")
    assert formats.resolve(f"apache:{main}#common").columns() == formats.resolve("common").columns()
    with pytest.raises(FormatError, match="there is no LogFormat 'nope'; it has timed, folded, common"):
        formats.resolve(f"apache:{main}#nope")


# --- regular expressions


def test_a_regular_expression_with_named_groups() -> None:
    plan = formats.resolve(
        r"regex:^(?P<time>\S+) (?P<client_ip>\S+) <(?P<request>[^>]*)> (?P<status>\d+|-) (?P<bytes>\S*) "
        r"(?P<request_time_ms>\d+)ms(?: (?P<tenant>\w+))?$"
    )
    assert record(plan, "2015-05-17T10:05:03Z ::1 <GET /a?b=1 HTTP/1.1> 200 17 250ms acme") == {
        "time": MAY_17,
        "client_ip": "::1",
        "method": "GET",
        "path": "/a",
        "query": "b=1",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 17,
        "request_time": Decimal("0.250000"),
        "tenant": "acme",
    }
    assert record(plan, "1431857103 ::1 <-> -  5ms") == {
        "time": MAY_17,
        "client_ip": "::1",
        "request_time": Decimal("0.005000"),
    }


# --- the table


@pytest.mark.parametrize("name", PRESETS)
def test_the_table_has_a_row_for_every_column(name: str) -> None:
    rows = formats.describe(name)
    columns = [row.column for row in rows]
    assert columns[: len(PRESETS[name].columns())] == list(PRESETS[name].columns())
    assert set(columns) == set(formats.column_types(PRESETS[name])) - {"agent"}
    assert {row.time for row in rows if row.column == "time"} <= {
        "start",
        "end",
        "start (Apache), end (nginx)",
    }
    assert all(row.type == str(formats.column_types(PRESETS[name])[row.column]) for row in rows)


def test_the_table_says_units_and_null_rules() -> None:
    alb = {row.column: row for row in formats.describe("alb")}
    assert (
        alb["request_time"].fields
        == "request_processing_time + target_processing_time + response_processing_time"
    )
    assert (alb["request_time"].unit, alb["request_time"].null) == ("seconds", "-1, -; any part is NULL")
    assert {row.column: row.unit for row in formats.describe("w3c")}["request_time"] == (
        "milliseconds, seconds if it has a decimal point"
    )
    assert {row.column: row.null for row in formats.describe("cloudfront")}["status"] == "-, 000"
    assert {row.column: row.time for row in formats.describe("haproxy")}["time"] == "start"


def test_the_documentation_is_what_the_code_says() -> None:
    path = paths.ROOT / "docs" / "formats.md"
    document = path.read_text(encoding="utf-8")
    assert refreshed(document, paths.GOLDEN / "formats") == document, (
        "run: python -m elf.agent.formats.table docs/formats.md"
    )
