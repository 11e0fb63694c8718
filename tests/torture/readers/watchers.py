"""`elf job watch` at several agents, and the windows received."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from tests.torture.agents import environment
from tests.torture.jobs import Job
from tests.torture.oracle import Count
from tests.torture.readers.publications import Publication

AGAIN_S = 0.5


class Watcher:
    """Watches a job at an agent for as long as the run lasts. The command ends with its agent and is started again, as another
    reader: number n writes `folder`/JOB@AGENT.n.jsonl, each line after the second at which it arrived."""

    def __init__(self, job: Job, name: str, socket: Path, folder: Path) -> None:
        self.job, self.name, self.readers = job, f"{job.name}@{name}", 0
        self._socket, self._folder = socket, folder
        self._is_over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._watch, name=f"watch {self.name}")
        folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            if self._socket.exists():
                self._read_one()
            self._is_over.wait(AGAIN_S)

    def _read_one(self) -> None:
        command = [sys.executable, "-m", "elf", "job", "watch", self.job.name, "--output", "json", "--agent"]
        path = self._folder / f"{self.name}.{self.readers + 1}.jsonl"
        with path.open("wb") as out, (self._folder / "said").open("ab") as said:
            self._process = subprocess.Popen(
                [*command, str(self._socket)], cwd="/", env=environment(), stdout=subprocess.PIPE, stderr=said
            )
            assert self._process.stdout is not None
            with self._process, suppress(ValueError):
                if self._is_over.is_set():
                    self._process.terminate()
                self._copy(self._process.stdout, out)
        if path.stat().st_size:
            self.readers += 1

    @staticmethod
    def _copy(heard: Iterable[bytes], out: BinaryIO) -> None:
        for line in heard:
            out.write(f"{time.time():.3f} ".encode() + line)
            out.flush()

    def close(self) -> None:
        self._is_over.set()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()
        self._thread.join()

    def sessions(self) -> Iterator[list[Publication]]:
        """The windows that each reader received, in order."""
        for number in range(1, self.readers + 1):
            path = self._folder / f"{self.name}.{number}.jsonl"
            with path.open("rb") as file:
                yield list(publications(file, self.job, f"watcher {self.name}.{number}"))


def publications(lines: BinaryIO, job: Job, where: str) -> Iterator[Publication]:
    """Rows of one revision follow one another; each is one publication."""
    now: Publication | None = None
    meta: Mapping[str, Any] | None = None
    for line in lines:
        at, _, text = line.partition(b" ")
        try:
            row = json.loads(text)
        except json.JSONDecodeError:
            continue  # the reader ended within the line
        if row["_elf"] != meta:
            if now is not None:
                yield now
            meta = row["_elf"]
            now = publication(row["_elf"], job, where, float(at))
        if now is not None:
            group = tuple(row[key] for key in job.keys)
            now.rows[group] = Count(row[job.hits], int(row["bytes"] or 0) if job.has_bytes else 0)
    if now is not None:
        yield now


def publication(meta: Mapping[str, Any], job: Job, where: str, at_s: float) -> Publication:
    epoch, node, n = meta["revision"]
    return Publication(
        where=where,
        job=job.name,
        start_s=int(datetime.fromisoformat(meta["window"]["start"]).timestamp()),
        status=meta["status"],
        revision=(epoch, str(node), n),
        reporting=meta["agents_reporting"],
        expected=meta["agents_expected"],
        lines_read=meta["lines_read"],
        lines_rejected=meta["lines_rejected"],
        lines_late=meta["lines_late"],
        is_all=meta["status"] in {"final", "revised"},
        at_s=at_s,
    )
