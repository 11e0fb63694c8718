"""Web servers and their visitors: nginx and Apache, each with two logs of the same lines, of which one is never rotated."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.torture.hosts import Hosts

READY_S_MAX = 60.0
CONNECTIONS = 4
DAY_S = 86_400
PLAIN = '$msec $remote_addr "$request" $status $body_bytes_sent "$http_user_agent"'
COMBINED = (
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
    '"$http_referer" "$http_user_agent"'
)

NGINX = """\
user root;
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log error;
events {{ worker_connections 512; }}
http {{
    log_format main '{format}';
    access_log {log} main;
    access_log {oracle} main;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000;
    server {{
        listen 80;
        root {site};
        location /p/ {{ try_files /page.html =404; }}
        location /old {{ return 301 /p/0; }}
        location /busy {{ return 503; }}
    }}
}}
"""

# No threads: they share Apache's cache of four formatted seconds, and once in some hours a request has a time in one log that is
# four seconds off the other.
APACHE = """\
ServerRoot {folder}
ServerName localhost
PidFile {folder}/apache.pid
Mutex file:{folder}
LoadModule mpm_prefork_module {modules}/mod_mpm_prefork.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule alias_module {modules}/mod_alias.so
StartServers 4
MaxRequestWorkers 32
User www-data
Group www-data
Listen 80
ErrorLog {folder}/error.log
LogFormat "%h %l %u %t \\"%r\\" %>s %b \\"%{{Referer}}i\\" \\"%{{User-Agent}}i\\"" combined
CustomLog {log} combined
CustomLog {oracle} combined
DocumentRoot {site}
AliasMatch ^/p/ {site}/page.html
Redirect 301 /old /p/0
<Directory {site}>
    Require all granted
</Directory>
"""

WRK = """\
local n = 0
function request()
    n = n + 1
    return wrk.format("GET", "/p/" .. ((n * n + n) % {pages}) .. "?n={host}." .. n)
end
function delay()
    return math.random(0, {delay_ms})
end
"""
PAGES = 37
"""Squares modulo a prime: nineteen paths, most with equal frequencies, so that a LIMIT has ties to order."""


def missing() -> str:
    """A program that is not installed; "" if all are."""
    return next((each for each in ("nginx", "apache2", "wrk") if find(each) is None), "")


def find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


class Server:
    """A web server on a host: nginx with that log format, or Apache. `log` is rotated, `oracle` never."""

    def __init__(self, hosts: Hosts, name: str, style: str) -> None:
        self.hosts, self.name, self.style = hosts, name, style
        self.folder = hosts.folder / name
        self.log, self.oracle = self.folder / "logs" / "access.log", self.folder / "oracle.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._visitors: list[subprocess.Popen[bytes]] = []

    @property
    def is_apache(self) -> bool:
        return self.style == "apache"

    @property
    def format(self) -> str:
        """The format of the log, for the agent's configuration."""
        return "combined" if self.is_apache else f"nginx:{self.folder / 'server.conf'}#main"

    @property
    def pid_file(self) -> Path:
        return self.folder / ("apache.pid" if self.is_apache else "nginx.pid")

    def configure(self, site: Path) -> None:
        text = APACHE if self.is_apache else NGINX
        (self.folder / "server.conf").write_text(
            text.format(
                folder=self.folder,
                log=self.log,
                oracle=self.oracle,
                site=site,
                format=PLAIN if self.style == "plain" else COMBINED,
                modules="/usr/lib/apache2/modules",
            )
        )

    def start(self) -> None:
        """Start it; returns when it has written its pid."""
        conf = str(self.folder / "server.conf")
        nginx = [
            find("nginx") or "nginx",
            "-p",
            str(self.folder),
            "-e",
            str(self.folder / "error.log"),
            "-c",
            conf,
        ]
        command = [find("apache2") or "apache2", "-f", conf, "-DFOREGROUND"] if self.is_apache else nginx
        with (self.folder / "server.said").open("ab") as said:
            self._process = subprocess.Popen(
                [*self.hosts.enter(self.name), *command],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Apache without threads ends its whole process group
            )
        until = time.monotonic() + READY_S_MAX
        while not (self.pid_file.exists() and self.pid_file.read_text().strip()):
            if self._process.poll() is not None or time.monotonic() > until:
                raise OSError(f"{self.name}: its web server does not run; see {self.folder}/server.said")
            time.sleep(0.02)

    def welcome(self, rate: float, seed: int) -> None:
        """Start visitors: so many a second on average, and sometimes an odd one."""
        delay_ms = max(1, int(2_000 * CONNECTIONS / rate))
        script = self.folder / "visitors.lua"
        script.write_text(WRK.format(pages=PAGES, host=self.name, delay_ms=delay_ms))
        wrk = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{DAY_S}", "-s", str(script), "http://127.0.0.1/"]
        odd = [sys.executable, "-m", "tests.torture.odd", str(seed), str(rate / 20)]
        self._visitors = [self._visit(wrk), self._visit(odd)]

    def _visit(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.folder / "visitors.said").open("ab") as said:
            return subprocess.Popen(
                [*self.hosts.enter(self.name), *command], stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )

    def dismiss(self) -> None:
        """Stop visitors; returns when the log has its last line."""
        for visitor in self._visitors:
            visitor.kill()
            visitor.wait()
        self._visitors = []
        size, since = -1, time.monotonic()
        while time.monotonic() - since < 1.0:
            if self.oracle.exists() and self.oracle.stat().st_size != size:
                size, since = self.oracle.stat().st_size, time.monotonic()
            time.sleep(0.05)

    def reload(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGUSR1 if self.is_apache else signal.SIGHUP)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(READY_S_MAX)
