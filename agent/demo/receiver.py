"""A webhook's receiver, on the loopback, as a user would write one: it believes only what is signed, and keeps the windows."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from elf.agent.demo.oracle import Totals

Found = dict[tuple[str, int], tuple[list[Any], list[dict[str, Any]]]]
"""(version, start in microseconds) of a window: its newest revision, and the rows of that."""


class Receiver:
    """The endpoint at `url`, for a sink whose secret is the file `secret`. unsigned: requests that were refused."""

    def __init__(self, folder: Path) -> None:
        key = secrets.token_bytes(32)
        self.secret = folder / "webhook.secret"
        self.secret.touch(mode=0o600)
        self.secret.write_text(f"whsec_{b64encode(key).decode()}\n", "ascii")
        self.unsigned = 0
        self._windows: Found = {}
        self._alerts: dict[str, dict[str, Any]] = {}
        self._lock = Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, key))
        self.url = f"http://127.0.0.1:{self._server.server_port}/windows"

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def take(self, event: dict[str, Any]) -> None:
        """Keep a window, unless a later revision of it is there, or a change of an alert. Both may come twice."""
        if event["type"] == "elf.alert":
            with self._lock:
                self._alerts[event["id"]] = event["data"]
            return
        about, rows = event["data"]["_elf"], event["data"]["rows"]
        start = int(datetime.fromisoformat(about["window"]["start"]).timestamp()) * 1_000_000
        with self._lock:
            known = self._windows.get((about["version"], start))
            if known is None or known[0] <= about["revision"]:
                self._windows[about["version"], start] = about["revision"], rows

    def windows(self) -> set[tuple[str, int]]:
        with self._lock:
            return set(self._windows)

    def alerts(self) -> list[dict[str, Any]]:
        """The changes of alerts, each once, in the order of their times."""
        with self._lock:
            return sorted(self._alerts.values(), key=lambda each: str(each["at"]))

    def totals(self) -> Totals:
        """The rows of all windows."""
        with self._lock:
            return {
                (version, start, row["status"]): (row["hits"], row["bytes"], row["large"])
                for (version, start), (_, rows) in self._windows.items()
                for row in rows
            }


def _handler(receiver: Receiver, key: bytes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            about = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}."
            expected = b64encode(hmac.digest(key, about.encode() + body, hashlib.sha256)).decode()
            is_signed = hmac.compare_digest(self.headers["webhook-signature"] or "", f"v1,{expected}")
            if is_signed:
                receiver.take(json.loads(body))
            else:
                receiver.unsigned += 1
            self.send_response(204 if is_signed else 401)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: the demo prints what it finds in the end."""

    return Handler
