"""`python -m tests.torture.readers.keeper FOLDER ADDRESS`: keeps what sinks deliver, on the host of the receivers.

It subscribes to the broker there with a session that outlives both of them, and it is an endpoint of webhooks, whose signatures
the reference library verifies. FOLDER/broker.jsonl and FOLDER/hook.jsonl get a line for each window: the second at which it came,
and its body. While FOLDER/deaf exists, the endpoint answers 503.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from paho.mqtt.client import Client, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion
from standardwebhooks.webhooks import Webhook

HOOK_PORT = 8080
BROKER_PORT = 1883
TOPIC = "elf/v1/torture/+/window"


class Log:
    """A file of lines, each written at once."""

    def __init__(self, path: Path) -> None:
        self._file, self._lock = path.open("ab"), Lock()

    def add(self, body: bytes) -> None:
        with self._lock:
            self._file.write(f"{time.time():.3f} ".encode() + body.replace(b"\n", b" ") + b"\n")
            self._file.flush()


def subscribe(address: str, log: Log) -> Client:
    client = Client(CallbackAPIVersion.VERSION2, "keeper", clean_session=False, protocol=MQTTv311)
    client.on_message = lambda client, about, message: (
        None if message.retain else log.add(bytes(message.payload))
    )
    client.on_connect = lambda client, *about: client.subscribe(TOPIC, qos=1)
    client.reconnect_delay_set(1, 1)
    client.connect(address, BROKER_PORT)
    client.loop_start()
    return client


def endpoint(folder: Path, address: str, log: Log) -> ThreadingHTTPServer:
    hook = Webhook((folder / "hook.secret").read_text().strip())

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = 503 if (folder / "deaf").exists() else 204
            if status == 204:
                hook.verify(body, dict(self.headers.items()))
                log.add(json.dumps(json.loads(body)["data"]).encode())
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *about: Any) -> None:
            pass

    return ThreadingHTTPServer((address, HOOK_PORT), Handler)


def main(folder: Path, address: str) -> None:
    server = endpoint(folder, address, Log(folder / "hook.jsonl"))
    subscribe(address, Log(folder / "broker.jsonl"))
    (folder / "ready").touch()
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
