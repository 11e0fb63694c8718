"""A Prometheus of Debian's package on a port of its own, with a remote-write receiver, which scrapes one page."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.sinks.delivery.mosquitto import PATIENCE_S, free_port

CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
- job_name: elf
  static_configs: [{{targets: [{targets}]}}]
"""


class Prometheus:
    """Its data stays when it is stopped."""

    def __init__(self, folder: Path, page: str = "") -> None:
        self.port, self._folder = free_port(), folder
        (folder / "prometheus.yml").write_text(CONFIG.format(targets=f'"{page}"' if page else ""))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with (self._folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                    "--web.enable-remote-write-receiver",
                ],
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            assert time.monotonic() < until
            assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()[-2000:]
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)

    def query(self, text: str) -> list[dict[str, Any]]:
        """The result of an expression, now."""
        address = f"http://127.0.0.1:{self.port}/api/v1/query?{urlencode({'query': text})}"
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            return list(json.load(answer)["data"]["result"])


@contextmanager
def prometheus(folder: Path, page: str = "") -> Iterator[Prometheus]:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    folder.mkdir(exist_ok=True)
    server = Prometheus(folder, page)
    try:
        yield server
    finally:
        server.stop()
