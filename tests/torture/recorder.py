"""Records each second the memory, descriptors, processor time, disk use and log size of every agent."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.torture.agents import Agent

EVERY_S = 1.0
CAP_BYTES = 64 << 20
SLACK_BYTES = 8 << 20
"""An agent checks its memory at intervals, so it may exceed its cap by so much, as README says."""
TICK = os.sysconf("SC_CLK_TCK")


class Recorder:
    """`samples` in `path`, an object a line, and `events` in a file beside it."""

    def __init__(self, path: Path, agents: Callable[[], Sequence[Agent]], lakes: Sequence[Path]) -> None:
        self.samples: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.began_s = time.time()
        self._agents, self._lakes = agents, lakes
        self._path, self._file = path, path.open("w")
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._record, name="recorder")
        self._thread.start()

    def event(self, kind: str, host: str, text: str, until_s: float | None = None) -> dict[str, Any]:
        """Record an event, now; the caller sets `until_s` when it is over."""
        event = {"event": kind, "host": host, "text": text, "at": time.time(), "until": until_s}
        with self._lock:
            self.events.append(event)
        return event

    def _write(self, what: dict[str, Any]) -> None:
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()

    def _record(self) -> None:
        while not self._is_over.wait(EVERY_S):
            sample = {"at": time.time(), "load": os.getloadavg()[0], "agents": self._of_agents()}
            sample["lakes"] = [_used(lake) for lake in self._lakes]
            with self._lock:
                self.samples.append(sample)
                self._write(sample)

    def _of_agents(self) -> dict[str, dict[str, float]]:
        taken = {}
        for agent in self._agents():
            with suppress(OSError, ValueError, KeyError):
                taken[agent.name] = _of_agent(agent)
        return taken

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        with self._lock:
            self._file.close()
        # Only now the end of each event is known.
        events = "".join(json.dumps(event) + "\n" for event in self.events)
        self._path.with_name("events.jsonl").write_text(events)


def beyond_cap(samples: Sequence[dict[str, Any]], bare: float) -> dict[str, float]:
    """The peak in bytes of each agent that exceeded its cap. bare: what an agent has before it reads its journal, as they say."""
    peaks: dict[str, float] = {}
    for sample in samples:
        for name, each in sample["agents"].items():
            peaks[name] = max(peaks.get(name, 0.0), each.get("peak", 0.0))
    return {name: peak for name, peak in peaks.items() if peak > bare + CAP_BYTES + SLACK_BYTES}


def _of_agent(agent: Agent) -> dict[str, float]:
    taken: dict[str, float] = {"disk": _used(agent.folder / "disk"), "said": agent.log_file.stat().st_size}
    if agent.process is not None and agent.is_running:
        proc = Path(f"/proc/{agent.process.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        taken["rss"], taken["peak"] = (int(status[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        taken["files"] = len(os.listdir(proc / "fd"))
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        taken["cpu"] = (int(fields[11]) + int(fields[12])) / TICK
    return taken


def _used(disk: Path) -> float:
    """Bytes of a disk of its own."""
    with suppress(OSError):
        facts = os.statvfs(disk)
        return float((facts.f_blocks - facts.f_bfree) * facts.f_frsize)
    return 0.0
