"""A real Alertmanager for tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.sinks.delivery.mosquitto import PATIENCE_S, free_port


def program() -> str:
    """The path of Debian's. Skips the test without it, but not in CI, which installs it."""
    found = shutil.which("prometheus-alertmanager")
    if found is None:
        assert "CI" not in os.environ, "CI must have prometheus-alertmanager: see .ci/run"
        pytest.skip("Alertmanager is not installed (apt-get install prometheus-alertmanager)")
    return found


class Alertmanager:
    """One that listens at `port`."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str) -> Any:
        """Raises OSError."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def alerts(self) -> list[dict[str, Any]]:
        """Those that fire."""
        return list(self.get("/api/v2/alerts"))


@contextmanager
def alertmanager(folder: Path) -> Iterator[Alertmanager]:
    """Return when it is ready."""
    file, port = folder / "alertmanager.yml", free_port()
    file.write_text("route:\n  receiver: none\nreceivers:\n  - name: none\n")
    argv = [program(), f"--config.file={file}", f"--storage.path={folder}/am"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        found, until = Alertmanager(port), time.monotonic() + PATIENCE_S
        try:
            while not _is_ready(found):
                assert process.poll() is None, "Alertmanager ended"
                assert time.monotonic() < until
                time.sleep(0.02)
            yield found
        finally:
            process.kill()


def _is_ready(found: Alertmanager) -> bool:
    try:
        return found.alerts() == []
    except (OSError, ValueError):
        return False
