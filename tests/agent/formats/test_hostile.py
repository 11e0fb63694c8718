"""Lines that look like a format's but are none, or that a visitor has tried to make so."""

from __future__ import annotations

from pathlib import Path

import pytest

from elf.agent.formats.choice import head_of
from elf.agent.formats.fields import Reason
from elf.agent.formats.parser import Parser
from elf.agent.formats.presets import PRESETS


@pytest.mark.parametrize("hole", [1, 67_000, 200_000])
def test_a_hole_of_nuls_in_front_is_left_out(tmp_path: Path, hole: int) -> None:
    """As a log begins that was cut while its writer, which does not append, kept its place."""
    line = b'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "ua"\n'
    (log := tmp_path / "log").write_bytes(b"\0" * hole + line * 3)
    assert head_of(log) == line * 3
    (tmp_path / "empty").write_bytes(b"\0" * hole)
    assert head_of(tmp_path / "empty") == b""


WRAPPED = [
    "May 17 10:05:00 web1 nginx[1]: ",
    "<134>May 17 10:05:00 web1 nginx: ",
    "<134>1 2022-01-28T16:04:05.4Z web1 nginx 12 - - ",
    "2022-01-28T16:04:05.4Z stdout F ",
    "2022-01-28T16:04:05.4Z ",
    "nginx_1  | ",
    "web-1 | ",
    "[pod/nginx-7d9/nginx] ",
    "nginx-7d9 nginx ",
    "shop.example ",
    "shop.example:80 ",
    "10.0.0.1 ",
    "1.2.3.4 -",
]


@pytest.mark.parametrize("before", WRAPPED)
@pytest.mark.parametrize("name", ["common", "combined", "nginx_main", "traefik"])
def test_a_line_with_other_text_in_front_is_rejected(name: str, before: str) -> None:
    tail = {
        "common": "",
        "combined": ' "-" "ua"',
        "nginx_main": ' "-" "ua" "-"',
        "traefik": ' "-" "-" 1 "r" "u" 3ms',
    }
    line = f'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5{tail[name]}\n'
    assert Parser(PRESETS[name], ()).parse(line.encode()).rows == 1
    batch = Parser(PRESETS[name], ()).parse((before + line).encode())
    assert batch.rejects == {Reason.TEXT: 1}


def test_a_list_of_clients_is_its_first_and_a_byte_order_mark_is_none() -> None:
    rest = ' - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5 "-" "ua"\n'
    clients = {
        "1.2.3.4, 5.6.7.8": "1.2.3.4",
        "1.2.3.4,5.6.7.8": "1.2.3.4",
        "unknown, ::1": "unknown",
        "\ufeff1.2.3.4": "1.2.3.4",
        "fe80::1%eth0": "fe80::1%eth0",
        "unix:": "unix:",
    }
    batch = Parser(PRESETS["combined"], ("client_ip",)).parse(
        "".join(each + rest for each in clients).encode()
    )
    assert batch.columns["client_ip"].to_python() == list(clients.values())


def test_a_w3c_line_has_no_more_words_than_its_header_and_a_field_may_be_called_bytes() -> None:
    parser = Parser(PRESETS["w3c"], ("bytes", "path", "status"))
    batch = parser.parse(
        b"#Fields: date time bytes cs-uri-stem status\n2015-05-17 10:05:03 5 /a x\n2015-05-17 10:05:03 5 /a x y\n"
    )
    assert (batch.columns["bytes"].to_python(), batch.columns["path"].to_python()) == ([5], ["/a"])
    assert batch.rejects == {Reason.TEXT: 1}


def test_what_a_visitor_writes_hides_no_haproxy_and_no_traefik_line() -> None:
    begin = "10.0.0.1:5 [17/May/2015:10:05:03.123] fe be/srv 1/2/3/4/5 200 10 "
    lines = (
        begin
        + '- - ---- 1/1/1/1/0 0/0 "GET /]: x HTTP/1.1"\n'
        + begin
        + 'a b - ---- 1/1/1/1/0 0/0 {]: x} "GET /y HTTP/1.1"\n'
    )
    for prefix in ("", "Mar  7 10:05:03 host haproxy[12]: "):
        block = "".join(prefix + line + "\n" for line in lines.splitlines())
        batch = Parser(PRESETS["haproxy"], ("path", "request_cookie")).parse(block.encode())
        assert batch.columns["path"].to_python() == ["/]: x", "/y"]
        assert batch.columns["request_cookie"].to_python() == [None, "a"]
    line = '1.2.3.4 - a" [ - [17/May/2015:10:05:03 +0000] "GET /?" 200 5 "-" HTTP/1.1" 404 19 "-" "-" 1 "r" "u" 3ms\n'
    batch = Parser(PRESETS["traefik"], ("query", "status", "user")).parse(line.encode())
    assert [batch.columns[name].to_python() for name in ("query", "status", "user")] == [
        ['" 200 5 "-"'],
        [404],
        ['a" [ -'],
    ]
