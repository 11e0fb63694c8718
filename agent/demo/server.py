"""The demo's web server: nginx where there is one, else our own origin. Either writes the same log and rotates alike."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from elf.agent.demo.site import LOG_FORMAT
from elf.errors import PeerError

READY_SECONDS = 60.0

CONFIGURATION = """\
{user}worker_processes 1;
daemon off;
pid {server}/nginx.pid;
error_log {server}/error.log warn;
events {{ worker_connections 256; }}
http {{
    log_format demo '{log_format}';
    access_log {log} demo;
    client_body_temp_path {server}/body;
    proxy_temp_path {server}/proxy;
    fastcgi_temp_path {server}/fastcgi;
    uwsgi_temp_path {server}/uwsgi;
    scgi_temp_path {server}/scgi;
    default_type text/html;
    if_modified_since before;
    keepalive_requests 100000;
{real_ip}
    server {{
        listen 127.0.0.1:{port};
        root {site};
        location = /api/pay {{
            if ($arg_declined) {{ return 503 "declined\\n"; }}
            return 201 "{{}}\\n";
        }}
        location = /search {{ return 200 "no luck\\n"; }}
        location = /old {{ return 301 /; }}
        location /products/ {{ try_files $uri.html =404; }}
        location = /cart {{ try_files /cart.html =404; }}
        location /images/ {{ limit_rate 4m; }}
    }}
}}
"""

REAL_IP = """\
    set_real_ip_from 127.0.0.1;
    real_ip_header X-Forwarded-For;
"""


class Server:
    """A running web server. name: which one. format: of its log, for the agent's configuration."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], port: int, log: Path, format: str
    ) -> None:
        self.name, self.process, self.port, self.log, self.format = name, process, port, log, format

    def rotate(self) -> Path:
        """Rename the log and let the server open a new one, as logrotate does. Returns the old log's new name."""
        old = self.log.with_name(self.log.name + ".1")
        self.log.rename(old)
        self.process.send_signal(signal.SIGUSR1)
        return old

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(folder: Path, site: Path) -> Server:
    """Start a server for `site` with its log in `folder`/logs, and wait until it answers. Raises `PeerError`."""
    log = folder / "logs" / "access.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    server = _nginx(nginx, folder / "server", site, log) if nginx else None
    return server or start_built_in(site, log)


def _nginx(nginx: str, server: Path, site: Path, log: Path) -> Server | None:
    """Start nginx with a configuration of its own; None if it cannot run like that."""
    server.mkdir(parents=True, exist_ok=True)
    port = free_port()
    built = subprocess.run([nginx, "-V"], capture_output=True, text=True, check=False).stderr
    configuration = server / "nginx.conf"
    configuration.write_text(
        CONFIGURATION.format(
            user="user root;\n" if os.geteuid() == 0 else "",
            server=server,
            site=site,
            log=log,
            port=port,
            log_format=LOG_FORMAT,
            real_ip=REAL_IP if "http_realip_module" in built else "",
        )
    )
    command = [nginx, "-p", str(server), "-e", str(server / "error.log"), "-c", str(configuration)]
    if subprocess.run([*command, "-t"], capture_output=True, check=False).returncode:
        return None
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until_ready(process, port)
    version = built.split("\n", 1)[0].rpartition("/")[2]
    return Server(f"nginx {version}", process, port, log, f"nginx:{configuration}#demo")


def start_built_in(site: Path, log: Path) -> Server:
    """Start our own server for `site`, and wait until it answers."""
    port = free_port()
    command = [sys.executable, "-m", "elf.agent.demo.origin", str(port), str(site), str(log)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    wait_until_ready(process, port)
    return Server("the built-in server", process, port, log, LOG_FORMAT)


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    """Return when the port answers. Raises `PeerError` when the process ends or the time is up."""
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    process.kill()
    process.wait()
    raise PeerError(f"the demo's web server did not start on port {port}; see its error.log")
