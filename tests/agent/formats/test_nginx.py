"""What a real nginx writes: the same requests logged in three escapes give the same records, lists of upstreams included."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from elf.agent.formats import formats
from elf.agent.formats.parser import Parser

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="there is no nginx on this machine"),
    pytest.mark.process,
]

VARIABLES = (
    "time_iso8601 msec remote_addr remote_user request status body_bytes_sent bytes_sent http_referer http_user_agent"
    " request_time host scheme request_length upstream_addr upstream_status upstream_response_time upstream_connect_time"
    " connection http_x_forwarded_for"
)

CONFIG = """\
daemon off; error_log {root}/error.log; pid {root}/pid; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3;
  uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;
  log_format pairs '{pairs}';
  log_format object escape=json '{object}';
  log_format bars escape=none '{bars}';
  access_log {root}/pairs.log pairs; access_log {root}/object.log object; access_log {root}/bars.log bars;
  access_log {root}/combined.log;
  upstream dead {{ server 127.0.0.1:1; server 127.0.0.1:2; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ return 200 "hello"; }}
    location /dead {{ proxy_pass http://dead; }}
  }}
}}
"""

REQUESTS = (
    b"GET /a?b=c HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: curl/8.0\r\nReferer: http://r/\r\nConnection: close\r\n\r\n",
    b'GET /q"u\\o HTTP/1.1\r\nHost: x\r\nUser-Agent: say "hi" \\ \xd0\x9f\t.\r\nConnection: close\r\n\r\n',
    b"GET /none HTTP/1.0\r\n\r\n",
    b"GET /dead/1?x HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 10.1.1.1, 10.2.2.2\r\nConnection: close\r\n\r\n",
    b"\x16\x03\x01\x02\x01\xfc\x03\x03\r\n\r\n",
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("nginx")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = CONFIG.format(
        root=root,
        port=port,
        pairs=" ".join(
            f"${name} ;" if name.startswith("upstream_") else f'"${name}"' for name in VARIABLES.split()
        ),
        object="{" + ",".join(f'"{name}":"${name}"' for name in VARIABLES.split()) + "}",
        bars=" | ".join(f"${name}" for name in VARIABLES.split()),
    )
    (root / "nginx.conf").write_text(config)
    assert NGINX is not None
    server = subprocess.Popen(
        [NGINX, "-p", str(root), "-c", str(root / "nginx.conf")], stderr=subprocess.PIPE
    )
    try:
        wait_for(port, server)
        for request in REQUESTS:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                client.sendall(request)
                while client.recv(4096):
                    pass
    finally:
        server.send_signal(3)  # SIGQUIT: finishes the requests and their log lines
        server.wait(timeout=10)
        if server.stderr is not None:
            server.stderr.close()
    return root


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except ConnectionRefusedError:
            try:
                server.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail("nginx did not start")


def records(root: Path, name: str) -> list[dict[str, Any]]:
    plan = formats.resolve(f"nginx:{root / 'nginx.conf'}#{name}")
    columns = tuple(plan.columns())
    batch = Parser(plan, columns).parse((root / f"{name}.log").read_bytes())
    assert not batch.rejects, batch.samples
    rows = [batch.columns[column].to_python() for column in columns]
    return [dict(zip(columns, row, strict=True)) for row in zip(*rows, strict=True)]


def test_three_escapes_of_one_nginx_agree(logs: Path) -> None:
    pairs, objects, bars = records(logs, "pairs"), records(logs, "object"), records(logs, "bars")
    assert len(pairs) >= len(REQUESTS)
    # Only escape=default tells an empty value from a missing one.
    assert [
        {column: None if value == "" else value for column, value in row.items()} for row in pairs
    ] == objects
    # Unescaped text is the same as long as it holds no separator.
    assert bars == objects


def test_the_records_are_those_that_were_sent(logs: Path) -> None:
    rows = [row for row in records(logs, "pairs") if row["path"] or row["bytes"]]
    plain, quoted, bare, dead, tls = rows[-len(REQUESTS) :]
    assert (plain["method"], plain["path"], plain["query"], plain["protocol"]) == (
        "GET",
        "/a",
        "b=c",
        "HTTP/1.1",
    )
    assert (plain["status"], plain["bytes"], plain["host"]) == (200, 5, "shop.example")
    assert (plain["user_agent"], plain["referer"]) == ("curl/8.0", "http://r/")
    assert quoted["path"] == '/q"u\\o'
    assert quoted["user_agent"] == 'say "hi" \\ П\t.'
    assert (bare["user_agent"], bare["referer"], bare["query"]) == (None, None, None)
    assert dead["status"] == 502
    assert dead["upstream_addr"] == "127.0.0.1:1, 127.0.0.1:2"
    assert dead["upstream_status"] == "502, 502"
    assert dead["upstream_response_time"] is not None
    assert dead["http_x_forwarded_for"] == "10.1.1.1, 10.2.2.2"
    assert (tls["status"], tls["method"], tls["path"]) == (400, None, None)


def test_its_default_format_and_its_json_are_detected(logs: Path) -> None:
    assert formats.resolve("auto", sample=(logs / "combined.log").read_bytes()).name == "combined"
    assert formats.resolve("auto", sample=(logs / "object.log").read_bytes()).name == "nginx_json"


def test_its_default_format_gives_the_same_in_whole_seconds(logs: Path) -> None:
    combined, objects = records(logs, "combined"), records(logs, "object")
    for row, whole in zip(combined, objects, strict=True):
        same = {column: whole[column] for column in row}
        assert row == {**same, "time": whole["time"] // 1_000_000 * 1_000_000}
