"""A real MQTT broker for tests, and a subscriber."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

PATIENCE_S = 60.0


def program() -> str:
    """The path of mosquitto. Skips the test without it, but not in CI, which installs it."""
    found = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None:
        assert "CI" not in os.environ, "CI must have mosquitto: see .ci/run"
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Mosquitto:
    """One broker at `port`, with these lines of configuration; it can be stopped and started again, with what it retains."""

    def __init__(self, folder: Path, port: int, *lines: str) -> None:
        self.port = port
        self._file = folder / "mosquitto.conf"
        self._file.write_text(
            "\n".join(
                [
                    f"listener {port} 127.0.0.1",
                    "user root",
                    "persistence true",
                    f"persistence_location {folder}/",
                    *lines,
                ]
            )
            + "\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it listens."""
        self._process = subprocess.Popen(
            [program(), "-c", str(self._file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None, "mosquitto ended"
                assert time.monotonic() < until
                time.sleep(0.02)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(PATIENCE_S)


@contextmanager
def mosquitto(folder: Path, *lines: str) -> Iterator[Mosquitto]:
    broker = Mosquitto(folder, free_port(), *(lines or ("allow_anonymous true",)))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@contextmanager
def subscribed(
    port: int, *, durable: bool = False, topic: str = "elf/v1/+/+/window"
) -> Iterator[SimpleQueue[Any]]:
    """All messages of these topics, as they come: first those that the broker retains. durable: in 3.1.1, with a session that
    outlives the broker."""
    from paho.mqtt.client import Client, MQTTv5, MQTTv311
    from paho.mqtt.enums import CallbackAPIVersion

    found: SimpleQueue[Any] = SimpleQueue()
    ready: SimpleQueue[Any] = SimpleQueue()
    version = CallbackAPIVersion.VERSION2
    client = (
        Client(version, "subscriber", clean_session=False, protocol=MQTTv311)
        if durable
        else Client(version, protocol=MQTTv5)
    )
    client.on_message = lambda client, userdata, message: found.put(message)
    client.on_connect = lambda client, *about: client.subscribe(topic, qos=1)
    client.on_subscribe = lambda *about: ready.put(True)
    client.reconnect_delay_set(1, 1)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        ready.get(timeout=PATIENCE_S)
        yield found
    finally:
        client.disconnect()
        client.loop_stop()
