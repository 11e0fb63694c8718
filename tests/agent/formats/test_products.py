"""Products' formats: lines from the documentation that each table names as its `source`, and every value that they must give.

The lines of tests/golden/formats/products are those of that documentation (nginx's and Apache's additions: their manuals'
examples with the added variables), with names and values changed where it shows none for a column. Besides them, also in the
goldens of the general formats, stand lines that the products wrote, shortened:

- lighttpd 1.4.69, HAProxy 2.6.12, varnishncsa 7.1.1, Squid 5.7, Icecast 2.4.4, gunicorn, uvicorn (127.0.0.1, November 2026): what
  these wrote for requests with quotes, backslashes, bytes that are not UTF-8, no Host, or no request at all.
- alb, elb, haproxy (2018), haproxy_tcp (2018), traefik (2017), envoy (2019), gitlab (2018): test logs of Elastic's Beats.
- w3c, cloudfront, api_gateway, azure_front_door, cloudflare, nginx_ingress, squid (2006), tomcat, modsecurity_json: test logs of
  Elastic's integrations.
- traefik (2009, 2025) and traefik_json: Traefik's own tests, and lines in reports of it (issue 11722).
- caddy, fastly (2025), icecast (2021): logs shown by who runs them. caddy_text (2025), cloudfront_json: parsers' tests.
- modsecurity (2018): its mailing list. jetty, jetty_timed: Jetty's documentation, and logs of Jetty 7 and 8 in tutorials.
- uwsgi: logs shown by who runs it, and uWSGI's documentation. fastly (without a server): the default format of Fastly's API.
  api_gateway_clf: the format of AWS's documentation.
- nlb (2022), aws_waf: parsers' tests, and a log shown by who runs it (2023). kong (2026): logs shown by who runs it.
  kong_json (2017 to 2020): logs shown by who runs it, and in Kong's documentation. azure_app_gateway_v1 (2018): a log shown by
  who runs it.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elf.agent.formats import formats
from elf.agent.formats.choice import FormatChoice
from elf.agent.formats.detect import detect, doubt
from elf.agent.formats.fields import Shape
from elf.agent.formats.parser import Parser
from elf.agent.formats.products.catalogue import OURS, TABLES, product
from elf.agent.formats.products.notation import KEYS
from elf.agent.formats.steps import column_types
from elf.errors import FormatError
from tests.agent.formats.test_golden import Entry, entries, shown

SAME = {
    "icecast": "apache_timed",
    "tomcat_timed": "apache_common_timed",
    "tomcat": "common",
    "jetty": "combined",
    "gunicorn": "combined",
}
"""Products whose lines are those of another format, and what detection calls them."""


def lines_of(name: str) -> list[Entry]:
    return entries(f"products/{name}")


@pytest.mark.parametrize("name", TABLES)
def test_every_line_gives_its_golden_record(name: str) -> None:
    plan, expected = product(name), lines_of(name)
    columns = tuple(plan.columns())
    batch = Parser(plan, columns).parse(b"".join(entry.line + b"\n" for entry in expected))
    assert (batch.rows, batch.samples) == (len(expected), ())
    types: dict[str, object] = dict(column_types(plan))
    for column in columns:
        got = [shown(value, column, types) for value in batch.columns[column].to_python()]
        assert got == [(entry.values or {}).get(column) for entry in expected], column


@pytest.mark.parametrize("name", TABLES)
def test_the_golden_records_cover_every_column(name: str) -> None:
    plan = product(name)
    covered = {column for entry in lines_of(name) for column in entry.values or ()}
    named = {key.partition(":")[0] for key in TABLES[name].get("json", {})} - {""}
    assert covered >= (named or set(plan.columns()))
    assert covered <= set(plan.columns())


@pytest.mark.parametrize("name", TABLES)
def test_each_is_detected(name: str) -> None:
    assert (name in SAME) == (not TABLES[name].get("detected", True))
    lines = [entry.line for entry in lines_of(name)]
    for sample in (b"\n".join(lines) + b"\n", lines[-1] + b"\r\n"):
        assert formats.resolve("auto", sample=sample).name == SAME.get(name, name), sample


@pytest.mark.parametrize("name", TABLES)
def test_each_table_has_what_readers_need(name: str) -> None:
    table = TABLES[name]
    assert table.keys() <= {*KEYS, *OURS}
    assert table["source"].startswith("https://")
    assert not table["summary"].endswith(".")
    assert product(name).shape is not Shape.REGEX or table["has"]


@pytest.mark.parametrize(
    ("fields", "line", "record"),
    [
        (  # WebLogic, and Tomcat's ExtendedAccessLogValve: seconds; a report of it, https://github.com/allinurl/goaccess/issues/2491
            "date time time-taken cs-method cs-uri sc-status",
            "2023-03-21 14:01:39 0.029 POST /FCdgoWeb/SgdrtLogServlet?a=1 200",
            {"request_time": "0.029000", "path": "/FCdgoWeb/SgdrtLogServlet", "query": "a=1"},
        ),
        (  # IIS with X-Forwarded-For as a custom field: Elastic's integrations
            "date time s-computername cs-method cs-uri-stem c-ip cs-host sc-status time-taken X-Forwarded-For",
            "2022-03-13 02:04:11 SE119654 GET /a+b ::1%0 example.com 200 29 216.160.83.61,+81.2.69.193",
            {
                "request_time": "0.029000",
                "host": "example.com",
                "http_x_forwarded_for": "216.160.83.61, 81.2.69.193",
            },
        ),
    ],
)
def test_headers_of_w3c_logs(fields: str, line: str, record: dict[str, str]) -> None:
    sample = f"#Fields: {fields}\n{line}\n".encode()
    batch = Parser(formats.resolve("auto", sample=sample), tuple(record)).parse(sample)
    assert {column: str(batch.columns[column].to_python()[0]) for column in record} == record


def test_a_line_that_haproxy_cut_within_its_request_counts() -> None:
    start = b'::1:5 [06/Feb/2009:12:14:14.655] web app/s1 0/0/0/6/6 404 182 - - ---- 1/1/0/0/0 0/0 "GET /'
    lines = [start + b"y" * 900, start + b'y HTTP/1.1"', start[:-7]]
    batch = Parser(formats.resolve("haproxy"), ("status", "method")).parse(
        b"".join(line + b"\n" for line in lines)
    )
    assert batch.columns["status"].to_python() == [404, 404]
    assert batch.columns["method"].to_python() == [None, "GET"]
    assert len(batch.samples) == 1


def test_no_quotes_in_a_user_agent_move_fields_of_traefik() -> None:
    agents = [b'foo " bar', b'"', b'a" 1 "r" "s" 2ms', b'a\\"', b'" "', b"\\"]
    start = b'::1 - - [28/Apr/2025:00:22:33 +0000] "GET / HTTP/2.0" 200 659 "http://r/" "'
    lines = [start + agent + b'" 116 "example@file" "http://s:1" 1ms\n' for agent in agents]
    columns = ("referer", "user_agent", "request_count", "router", "server", "request_time")
    batch = Parser(formats.resolve("traefik"), columns).parse(b"".join(lines))
    rows = list(zip(*(batch.columns[column].to_python() for column in columns), strict=True))
    assert {(row[0], *map(str, row[2:])) for row in rows} == {
        ("http://r/", "116", "example@file", "http://s:1", "0.001000")
    }
    assert [row[1] for row in rows] == ['foo " bar', '"', 'a" 1 "r" "s" 2ms', 'a"', '" "', "\\"]


def test_lines_of_alb_may_end_with_a_space() -> None:  # those of 2017 did
    line = entries("alb")[-1].line + b" \n"
    assert Parser(formats.resolve("alb"), ("trace_id",)).parse(line).columns["trace_id"].to_python() == [
        "Root=1-5"
    ]


def told(sample: bytes) -> tuple[str, str]:
    found = detect(sample)
    return found.name, doubt(sample, found)


def test_a_guess_is_called_one() -> None:
    line = b'::1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "x" 0.250 0.100\n'
    said = ", a guess by its shape (nginx: combined, `$request_time` and `$upstream_response_time`)"
    assert told(line) == ("nginx_timed_upstream", said)
    notices: list[str] = []
    FormatChoice("auto", notices.append).detect("a.log", line)
    assert notices == [f"a.log: format nginx_timed_upstream{said}"]


def test_one_line_that_proves_it_is_enough() -> None:
    start = '::1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "x"'
    lines = f'{start} "-"\n'.encode() * 20
    assert detect(lines).name == "nginx_main"
    assert detect(lines + f'{start} "3.17"\n'.encode()).name == "nginx_gzip"
    assert detect(f'{start} "10.0.0.1"\n'.encode() * 2 + f'{start} "3.17"\n'.encode()).name == "nginx_main"


def test_quotes_in_what_a_client_sends_do_not_hide_lines_of_servers_that_escape_nothing() -> None:
    line = b'[2016-04-15T20:17:00.310Z] "GET /a HTTP/2" 200 - 1 2 3 - "-" "x\\" y \\" "id" "shop" "-"\n'
    batch = Parser(product("envoy"), ("user_agent", "host")).parse(line)
    assert batch.columns["user_agent"].to_python() == ['x\\" y \\']
    assert batch.columns["host"].to_python() == ["shop"]


UNESCAPED = {
    "envoy": '[2016-04-15T20:17:00.310Z] "GET /a HTTP/2" 200 - 1 2 3 - "9.9.9.9" "{}" "id" "shop" "10.0.0.1:80"',
    "istio": '[2016-04-15T20:17:00.310Z] "GET /a HTTP/2" 200 - via_upstream - "-" 1 2 3 - "9.9.9.9" "{}" "id" "shop"'
    ' "10.0.0.1:80" outbound|80||x 1.1.1.1:1 2.2.2.2:2 3.3.3.3:3 sni default',
    "s3": "79a5 bkt [06/Feb/2019:00:00:38 +0000] 192.0.2.3 79a5 3E57 REST.GET.VERSIONING - "
    '"GET /b?versioning HTTP/1.1" 200 - 113 - 7 - "-" "{}" - s9lzH SigV4 ECDHE AuthHeader host.s3 TLSV1.2 - -',
}


@pytest.mark.parametrize("name", UNESCAPED)
@settings(max_examples=60)
@example('x" "y')
@example('a" "b" "c" "d')
@example('" 200 - 1 2 3 - "')
@given(st.text('" -/:[]0x\\é', min_size=1, max_size=30).filter(lambda text: text != "-"))
def test_a_user_agent_moves_no_other_field_of_servers_that_escape_nothing(name: str, agent: str) -> None:
    columns = [column for column in formats.column_types(product(name)) if column != "user_agent"]

    def read(agent: str) -> tuple[list[Any], dict[str, list[Any]]]:
        batch = Parser(product(name), [*columns, "user_agent"]).parse(UNESCAPED[name].format(agent).encode())
        return batch.columns["user_agent"].to_python(), {
            column: batch.columns[column].to_python() for column in columns
        }

    assert read(agent) == ([agent], read("x")[1])


def test_a_quote_in_the_request_of_a_server_that_escapes_nothing() -> None:
    line = UNESCAPED["envoy"].replace("/a HTTP", '/a" b HTTP').format('z" 404 - 1 2 3 - "').encode()
    batch = Parser(product("envoy"), ("path", "status", "user_agent")).parse(line)
    assert [batch.columns[column].to_python() for column in ("path", "status", "user_agent")] == [
        ['/a" b'],
        [200],
        ['z" 404 - 1 2 3 - "'],
    ]


@pytest.mark.parametrize("name", ["gunicorn", "gunicorn_timed"])
def test_behind_a_unix_socket_gunicorn_writes_no_client(name: str) -> None:
    line = b' - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.0" 200 5 "-" "x" 0.012345\n'
    batch = Parser(product(name), ("client_ip", "status")).parse(
        line if name == "gunicorn_timed" else line.replace(b" 0.012345", b"")
    )
    assert (batch.columns["client_ip"].to_python(), batch.columns["status"].to_python()) == ([None], [200])


def test_lighttpd_writes_0_for_the_status_of_a_request_that_was_given_up() -> None:
    line = b'::1 shop.example - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 0 - "-" "x"\n'
    batch = Parser(product("lighttpd"), ("status", "bytes")).parse(line)
    assert (batch.columns["status"].to_python(), batch.columns["bytes"].to_python()) == ([None], [0])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'INFO:     127.0.0.1:52012 - "GET / HTTP/1.1" 200 OK\n', "uvicorn's, which have no time"),
        (b"--5c3a1b2f-A--\n", "use SecAuditLogType Concurrent"),
    ],
)
def test_what_cannot_be_read_is_answered_with_what_to_do(line: bytes, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        detect(line * 3)


def test_a_detection_that_is_not_sure_says_so_and_names_the_next() -> None:
    combined = b'::1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "x"\n'
    common = combined.replace(b' "-" "x"', b"")
    fits = ", which fits 60% of the first 100 lines"
    assert told(combined * 60 + common * 40) == ("combined", f"{fits} (next is common with 40%)")
    assert told(combined * 60 + b"garbage\n" * 40) == ("combined", f"{fits} (no other fits any)")
    assert told(combined * 96 + common * 4) == ("combined", "")
    comments = b"#Fields: date time sc-status\n#Remark: no record\n2024-01-01 00:00:00 200\n"
    assert told(comments) == ("w3c", "")


@pytest.mark.parametrize(
    ("category", "instance", "name"),
    [
        ("ApplicationGatewayAccessLog", "appgw_0", "azure_app_gateway"),
        ("ApplicationGatewayAccessLog", "ApplicationGatewayRole_IN_0", "azure_app_gateway_v1"),
        ("ApplicationGatewayFirewallLog", "appgw_0", "json"),  # Elastic's integrations, 2024
        ("FrontdoorAccessLog", "appgw_0", "azure_front_door"),
    ],
)
def test_logs_of_azures_resources_differ_by_values(category: str, instance: str, name: str) -> None:
    line = (
        '{"resourceId": "/S", "operationName": "x", "time": "2024-05-28T08:58:53.2900501Z",'
        f' "category": "{category}", "properties": {{"instanceId": "{instance}", "timeTaken": 205}}}}\n'
    )
    assert formats.resolve("auto", sample=line.encode()).name == name


def test_an_object_of_a_products_keys_that_is_not_its_own_is_json() -> None:
    line = b'{"time": "2024-01-01T00:00:00Z", "transaction": {"id": "1"}, "status": 200}\n'
    assert formats.resolve("auto", sample=line).name == "json"
