"""The receivers of a run, on a host of their own: an MQTT broker and an endpoint of webhooks, which fail now and then."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rigs.paths import ROOT
from tests.torture.agents import environment
from tests.torture.hosts import Hosts
from tests.torture.jobs import Job
from tests.torture.options import Options
from tests.torture.oracle import Count
from tests.torture.readers.keeper import BROKER_PORT, HOOK_PORT
from tests.torture.readers.publications import Publication
from tests.torture.readers.watchers import publication

READY_S_MAX = 30.0
KINDS = {"restart": 2, "stop": 2, "deaf": 2}
"""By weight: the broker is restarted; broker and endpoint accept and answer nothing; the endpoint answers 503."""
GAP_S = 45.0
LONGEST_S = 25.0
SINKS = """
[[sink]]
name = "broker"
mqtt = "mqtt://{address}:{broker}"
mesh = "torture"

[[sink]]
name = "hook"
webhook = "http://{address}:{hook}/in"
secret = "hook.secret"
mesh = "torture"
private = true
"""


@dataclass(frozen=True)
class Outage:
    """at_s: since the first visitors."""

    at_s: float
    kind: str
    seconds: float


def drawn(options: Options) -> list[Outage]:
    """All outages of a run, in order, one at a time."""
    draws, at_s, outages = random.Random(options.seed ^ 0x0B0C), 0.0, []
    while (at_s := at_s + draws.uniform(0.2, 1.8) * min(GAP_S, options.seconds / 2)) < options.seconds:
        [kind] = draws.choices(list(KINDS), list(KINDS.values()))
        outages.append(Outage(at_s, kind, draws.uniform(1.0, LONGEST_S)))
        at_s += outages[-1].seconds
    return outages


def missing() -> str:
    """A program that receivers need and that is not installed; "" if all are."""
    found = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
    return "" if found else "mosquitto"


class Receivers:
    """They write what they receive into `folder`."""

    def __init__(self, hosts: Hosts, host: str, folder: Path) -> None:
        self._hosts, self._host, self.folder = hosts, host, folder
        self.address = hosts.address(host)
        folder.mkdir()
        self.secret = f"whsec_{base64.b64encode(random.Random(0).randbytes(32)).decode()}\n"
        (folder / "hook.secret").write_text(self.secret)
        lines = (
            f"listener {BROKER_PORT} {self.address}",
            "allow_anonymous true",
            "user root",
            "persistence true",
            f"persistence_location {folder}/",
            "max_queued_messages 0",
        )
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
        self._broker: subprocess.Popen[bytes] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    def sinks(self) -> str:
        """The tables of an agent's configuration."""
        return SINKS.format(address=self.address, broker=BROKER_PORT, hook=HOOK_PORT)

    def start(self) -> None:
        """Return when both listen. Raises OSError."""
        self._start_broker()
        command = [sys.executable, "-m", "tests.torture.readers.keeper", str(self.folder), self.address]
        until = time.monotonic() + READY_S_MAX
        with (self.folder / "keeper.log").open("ab") as said:
            while not (self.folder / "ready").exists():
                if self._keeper is None or self._keeper.poll() is not None:  # the broker may not listen yet
                    self._keeper = self._run(command, said, environment())
                if time.monotonic() > until:
                    raise OSError(f"the receivers do not begin: see {self.folder}/keeper.log")
                time.sleep(0.1)

    def _start_broker(self) -> None:
        program = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin") or "mosquitto"
        with (self.folder / "mosquitto.log").open("ab") as said:
            self._broker = self._run([program, "-c", str(self.folder / "mosquitto.conf")], said, None)

    def _run(self, command: list[str], said: Any, environ: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._hosts.enter(self._host), *command],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )

    def fail(self, outage: Outage, pause: Any) -> None:
        """Perform an outage. pause: waits for some seconds, or until the run is over."""
        if outage.kind == "restart":
            self._end(self._broker)
            pause(outage.seconds)
            self._start_broker()
        elif outage.kind == "deaf":
            (self.folder / "deaf").touch()
            pause(outage.seconds)
            (self.folder / "deaf").unlink()
        else:
            self._signal(signal.SIGSTOP)
            pause(outage.seconds)
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in (self._broker, self._keeper):
            if process is not None:
                process.send_signal(number)

    @staticmethod
    def _end(process: subprocess.Popen[bytes] | None) -> None:
        if process is not None:
            process.terminate()
            process.wait()

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        self._end(self._keeper)
        self._end(self._broker)

    def publications(self, sink: str, job: Job) -> list[Publication]:
        """All windows of that job which came to that sink, in order."""
        path = self.folder / f"{sink}.jsonl"
        if not path.exists():
            return []
        with path.open("rb") as lines:
            return list(publications(lines, job, f"sink {sink}"))


def publications(lines: Iterable[bytes], job: Job, where: str) -> Iterator[Publication]:
    for line in lines:
        at, _, text = line.partition(b" ")
        if not line.endswith(b"\n"):
            return  # it is being written
        window = json.loads(text)
        if window["_elf"]["job"] == job.name:
            said = publication(window["_elf"], job, where, float(at))
            for row in window["rows"]:
                group = tuple(row[key] for key in job.keys)
                said.rows[group] = Count(row[job.hits], int(row["bytes"] or 0) if job.has_bytes else 0)
            yield said


def latest(heard: Iterable[Publication]) -> dict[int, Publication]:
    """The highest revision of each window, without withdrawn ones."""
    found: dict[int, Publication] = {}
    for said in heard:
        former = found.get(said.start_s)
        if former is None or said.revision >= former.revision:
            found[said.start_s] = said
    return {start_s: said for start_s, said in found.items() if said.status != "withdrawn"}
