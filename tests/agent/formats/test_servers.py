"""Hostile requests, logged by a real nginx and a real Apache: no line is rejected, and every field is what was sent."""

from __future__ import annotations

import base64
import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elf.agent.formats import formats
from elf.agent.formats.parser import Parser
from tests.rigs.agents.mesh_rig import free_ports

pytestmark = pytest.mark.process

PATHS = "/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", "")
NGINX, APACHE = shutil.which("nginx", path=PATHS), shutil.which("apache2", path=PATHS)
MODULES = Path("/usr/lib/apache2/modules")

COMBINED = '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"'
TAIL = (
    '$remote_addr $remote_user $status [$time_local] "$request" $http_x_forwarded_for $status "$http_referer"'
    " $http_user_agent $request_time $pipe"
)
KEYS = "remote_addr remote_user msec request status http_referer http_user_agent body_bytes_sent"
JSON = "{" + ",".join(f'"{key}":"${key}"' for key in KEYS.split()) + "}"
NGINX_CONF = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log crit;
{user}
events {{ worker_connections 64; }}
http {{
  log_format tail '{tail}';
  log_format whole escape=json '{json}';
  access_log {folder}/combined.log; access_log {folder}/tail.log tail; access_log {folder}/json.log whole;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 10000; large_client_header_buffers 4 32k;
  server {{ listen 127.0.0.1:{port}; location / {{ return 200 "x"; }} location /none {{ return 204; }} }}
}}
"""
A_COMBINED = '%h %l %u %t \\"%r\\" %>s %b \\"%{Referer}i\\" \\"%{User-Agent}i\\"'
A_TAIL = '%a %u %>s %t \\"%r\\" %{X-Forwarded-For}i %>s \\"%{Referer}i\\" %{User-Agent}i %D %X'
APACHE_CONF = """
ServerRoot {folder}
ServerName localhost
PidFile {folder}/apache.pid
Mutex file:{folder}
{modules}
{user}
StartServers 1
MinSpareServers 1
MaxSpareServers 1
MaxRequestWorkers 1
MaxKeepAliveRequests 0
LimitRequestFieldSize 32000
LimitRequestLine 32000
Listen 127.0.0.1:{port}
ErrorLog {folder}/error.log
LogFormat "{combined}" hostile
LogFormat "{tail}" tail
CustomLog {folder}/combined.log hostile
CustomLog {folder}/tail.log tail
DocumentRoot {folder}/site
<Directory />
  AllowOverride None
</Directory>
<Location />
  AuthType Basic
  AuthName x
  AuthBasicProvider file
  AuthUserFile {folder}/users
  Require valid-user
</Location>
"""
NEEDED = "mpm_prefork authn_core authz_core authz_user auth_basic authn_file"

Sent = dict[str, bytes]
TEXTS = [
    b"x [17/May/2014:10:00:00 +0000] ",
    b" [",
    b'x [17/May/2014 10 00 00] "GET /other HTTP/1.1" 200 5 "-" "-',
    b'" 200 5 "-" "-"',
    b"\\",
    b'\\\\"',
    b"\\x22",
    b"\\xe9",
    b"caf\xe9",
    b"caf\xc3\xa9",
    b"\xff\\xff\xfe",
    b"200",
    b"a, b",
    b"1.2.3.4,",
    b"] ",
    b"200 [",
    b"- 200 [17/May/2014",
    b"0.000 .",
    b"0.000 . 5 +",
    b"x" * 6000,
    b"\\" * 999,
    b"- -",
    b"-",
    b'""',
]


def hostile(seed: int, controls: bool) -> Iterator[Sent]:
    """Requests: each field in turn, then all at random."""
    chance = random.Random(seed)
    for text in TEXTS:
        for field in ("user", "query", "referer", "agent", "forwarded"):
            yield {field: text}
    alphabet = [*b' []"\\"\\-:+,/[]..0127axGET\xe9\xc3\xa9\xff\x80', *TEXTS[:6]]
    if controls:
        alphabet += [*b"\x01\x7f\x1b\t\n\r"]
    for _ in range(200):
        yield {
            field: b"".join(
                piece if isinstance(piece := chance.choice(alphabet), bytes) else bytes([piece])
                for _ in range(chance.randrange(1, 12))
            )
            for field in ("user", "query", "referer", "agent", "forwarded")
        }


def allowed(sent: Sent) -> Sent:
    """What the servers let through: a user has no colon, a header no control characters and no spaces at its ends."""
    out = dict(sent)
    if "user" in out:
        out["user"] = out["user"].replace(b":", b"") or b"u"
    for name in ("referer", "agent", "forwarded"):
        if name in out:
            out[name] = re.sub(rb"[\x00-\x1f\x7f]", b"", out[name]).strip() or b"h"
    if "query" in out:
        out["query"] = re.sub(rb"[\x00-\x20\x7f#]", b"", out["query"])
    return out


def request(sent: Sent, last: bool) -> bytes:
    lines = [
        b"GET /p?" + sent["query"] + b" HTTP/1.1" if "query" in sent else b"GET /none HTTP/1.1",
        b"Host: localhost",
    ]
    if "user" in sent:
        lines.append(b"Authorization: Basic " + base64.b64encode(sent["user"] + b":secret"))
    for name, field in ((b"Referer", "referer"), (b"User-Agent", "agent"), (b"X-Forwarded-For", "forwarded")):
        if field in sent:
            lines.append(name + b": " + sent[field])
    if last:
        lines.append(b"Connection: close")
    return b"\r\n".join([*lines, b"", b""])


def shown(sent: bytes | None) -> str | None:
    """A text as a column has it: NULL for none, the bytes that are not UTF-8 as \\xhh (docs/formats.md)."""
    if sent in (None, b"", b"-"):
        return None
    assert sent is not None
    text = sent.decode("utf-8", "surrogateescape")
    text = re.sub(r"\\+(?=x[0-9a-f]{2}|[\udc80-\udcff])", lambda m: m[0] * 2, text)
    return re.sub(r"[\udc80-\udcff]", lambda m: f"\\x{ord(m[0]) - 0xDC00:02x}", text)


def rows(format: str, log: Path) -> list[dict[str, object]]:
    """The rows of a log; none of its lines may be rejected."""
    plan = formats.resolve(format)
    batch = Parser(plan, tuple(plan.columns())).parse(log.read_bytes())
    assert not batch.rejects, [(each.expected, each.line[:300]) for each in batch.samples]
    columns = {name: vector.to_python() for name, vector in batch.columns.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def visit(port: int, requests: list[Sent], server: subprocess.Popen[bytes], said: Path) -> None:
    """Send all requests over one connection, and read the answers until the server closes it."""
    connection = None
    while connection is None:
        assert server.poll() is None, said.read_text()
        try:
            connection = socket.create_connection(("127.0.0.1", port), 60)
        except ConnectionRefusedError:
            time.sleep(0.01)
    with connection:
        for at, sent in enumerate(requests):
            connection.sendall(request(sent, at + 1 == len(requests)))
            while b"\r\n\r\n" not in (answer := connection.recv(65536)):
                assert answer, at
        while connection.recv(65536):
            pass


def check(found: list[dict[str, object]], requests: list[Sent], users: bool, names: dict[str, str]) -> None:
    """Whether the rows are those of the requests, in order."""
    assert len(found) == len(requests)
    for row, sent in zip(found, requests, strict=True):
        seconds = row["time"] / 1e6  # type: ignore[operator]
        assert abs(time.time() - seconds) < 3600
        assert (row["client_ip"], row["method"], row["protocol"]) == ("127.0.0.1", "GET", "HTTP/1.1")
        assert row["user"] == (shown(sent.get("user")) if users else None), sent
        assert row["query"] == (
            shown(sent["query"]) if sent.get("query") not in (None, b"-", b"") else row["query"]
        ), sent
        for field, column in names.items():
            assert row[column] == shown(sent.get(field)), (field, sent)


def run(command: list[str], folder: Path, port: int, requests: list[Sent]) -> None:
    said = folder / "said"
    with said.open("wb") as out:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        visit(port, requests, server, said)
    finally:
        server.terminate()
        server.wait(60)


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_nginx_logs_hostile_requests_and_every_field_is_what_was_sent(tmp_path: Path) -> None:
    assert NGINX is not None
    (port,) = free_ports(1)
    (tmp_path / "nginx.conf").write_text(
        NGINX_CONF.format(
            folder=tmp_path, port=port, tail=TAIL, json=JSON, user="user root;" if os.getuid() == 0 else ""
        )
    )
    requests = [allowed(sent) for sent in hostile(1, controls=True)]
    command = [
        NGINX,
        "-p",
        str(tmp_path),
        "-e",
        str(tmp_path / "error.log"),
        "-c",
        str(tmp_path / "nginx.conf"),
    ]
    run(command, tmp_path, port, requests)
    names = {"referer": "referer", "agent": "user_agent"}
    for format in ("combined", COMBINED):
        check(rows(format, tmp_path / "combined.log"), requests, True, names)
    check(rows("nginx_json", tmp_path / "json.log"), requests, True, names)
    check(
        rows(TAIL, tmp_path / "tail.log"),
        requests,
        True,
        {"referer": "referer", "forwarded": "http_x_forwarded_for", **names},
    )


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that Apache's processes, which are not root, may read; pytest's own may not."""
    with tempfile.TemporaryDirectory(prefix="elf-apache-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(APACHE is None, reason="Apache is not installed")
def test_apache_logs_hostile_requests_and_every_field_is_what_was_sent(readable: Path) -> None:
    assert APACHE is not None
    (port,) = free_ports(1)
    (readable / "site").mkdir()
    (readable / "users").touch()
    modules = "\n".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so" for name in NEEDED.split())
    (readable / "apache.conf").write_text(
        APACHE_CONF.format(
            folder=readable,
            port=port,
            modules=modules,
            combined=A_COMBINED,
            tail=A_TAIL,
            user="User www-data\nGroup www-data" if os.getuid() == 0 else "",
        )
    )
    requests = [allowed(sent) for sent in hostile(2, controls=True)]
    run([APACHE, "-f", str(readable / "apache.conf"), "-DFOREGROUND"], readable, port, requests)
    names = {"referer": "referer", "agent": "user_agent"}
    check(rows("combined", readable / "combined.log"), requests, True, names)
    check(rows(A_TAIL, readable / "tail.log"), requests, True, {**names, "forwarded": "http_x_forwarded_for"})
