"""The demo's play: three web servers with visitors, an agent beside each, a master that dies, a report, and the totals compared.

visitors -> web servers -> access logs -> agents -> master of each job -> windows on the console, lake -> Spark report
                               |                                                                               |
                               +----------------------- one pass over all lines -------------------------------+---- equal?
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path

from elf.agent.demo import load, server, site
from elf.agent.demo.load import Sent
from elf.agent.demo.server import Server
from elf.agent.demo.site import Visit
from elf.agent.demo.team import Team
from elf.errors import PeerError
from elf.sinks.lake import layout

HOSTS = 3
WINDOW_S = 5
LATENESS_S = 1
KILLED_AT, BACK_AT, ROTATED_AT = 0.35, 0.5, 0.65
"""Fractions of the time that the traffic lasts."""
LAST_WINDOW_S_MAX = 120.0

Totals = dict[int, tuple[int, int]]
"""status -> (hits, bytes)."""

TRAFFIC = f"""
SELECT window, status, count(*) AS hits, sum(bytes) AS bytes
FROM access
GROUP BY window(time, '{WINDOW_S} seconds'), status
ORDER BY status
"""
PATHS = f"""
SELECT window, path, count(*) AS hits, sum(bytes) AS bytes, max(request_time) AS slowest
FROM access
GROUP BY window(time, '{WINDOW_S} seconds'), path
ORDER BY hits DESC
LIMIT 5
"""


def demo_command(folder: Path, seconds: int, seed: int) -> int:
    """Play it all. Returns 0 when the lake's totals equal the logs', else 1."""
    folder = folder.absolute()
    logs = collect(folder, seconds, seed)
    counted = count_logs(logs)
    page = folder / "report.html"
    announce(f"the Spark report of {folder / 'lake'}")
    stored = report(folder / "lake", page)
    announce(f"the report as a page, to open in a browser: {page}")
    return compare(counted, stored)


def collect(folder: Path, seconds: int, seed: int) -> list[Path]:
    """Serve, visit, follow, kill and rotate; returns the logs that were written."""
    clean(folder)
    site.build(folder / "site")
    with web_servers(folder) as webs:
        for web in webs:
            announce(f"{web.name} on 127.0.0.1:{web.port} writes {web.log}")
        team = Team(folder, webs)
        with team.at_work():
            announce(f"{HOSTS} agents follow them, with keys of {team.keys}; no agent is special")
            team.start_job("traffic", TRAFFIC, f"{LATENESS_S}s")
            team.start_job("paths", PATHS, f"{LATENESS_S}s")
            play = Play(team, webs, seconds)
            play.run(seed)
    return [*play.rotated, *(web.log for web in webs)]


class Play:
    """The events while visitors come."""

    def __init__(self, team: Team, webs: Sequence[Server], seconds: int) -> None:
        self.team, self.webs, self.seconds = team, webs, seconds
        self.rotated: list[Path] = []
        self.master = team.master("traffic")
        self.witness = next(agent for agent in team.agents if agent is not self.master)
        self._todo: list[tuple[float, Callable[[], None]]] = [
            (KILLED_AT * seconds, self._kill),
            (BACK_AT * seconds, self._bring_back),
            (ROTATED_AT * seconds, self._rotate),
        ]

    def run(self, seed: int) -> None:
        """Run until the window of the last request is in the lake."""
        announce(f"visitors come for {self.seconds} s; `elf job watch traffic` at {self.witness.name}:")
        watched = self.team.watch("traffic", self.witness)
        try:
            sent = self._visit(seed)
            self._wait_for_last_window()
        finally:
            watched.terminate()
            watched.wait()
        failed = f", {sum(each.failed for each in sent)} failed" if any(each.failed for each in sent) else ""
        answered = sum(each.answered for each in sent)
        announce(
            f"{answered:,} requests were answered{failed}; their lines are in {2 * len(self.webs)} files"
        )

    def _visit(self, seed: int) -> list[Sent]:
        """Send traffic to all web servers at once, each with a schedule of its own."""
        sent: list[Sent] = []

        async def all_of_them() -> None:
            visits = [
                load.send(web.port, site.visits(seed + number, self.seconds), self._happen)
                for number, web in enumerate(self.webs)
            ]
            sent.extend(await asyncio.gather(*visits))

        asyncio.run(all_of_them())
        for agent in self.team.agents:
            agent.check()
        return sent

    def _happen(self, visit: Visit) -> None:
        while self._todo and visit.at >= self._todo[0][0]:
            self._todo.pop(0)[1]()

    def _kill(self) -> None:
        self.master.kill()
        announce(
            f"kill -9 of {self.master.name}'s agent, the master of traffic; its web server keeps running"
        )

    def _bring_back(self) -> None:
        self.master.start()
        announce(f"{self.master.name}'s agent is started again")

    def _rotate(self) -> None:
        self.rotated += [web.rotate() for web in self.webs]
        announce("all logs are renamed and new ones opened, as logrotate does")

    def _wait_for_last_window(self) -> None:
        """Return when the lake holds all windows of both jobs, up to that of the last request. Raises `PeerError`."""
        width = WINDOW_S * 1_000_000
        last = int(time.time() * 1e6) // width * width
        until = time.monotonic() + LAST_WINDOW_S_MAX
        for job in ("traffic", "paths"):
            while not self._holds(job, last, width):
                for agent in self.team.agents:
                    agent.check()
                if time.monotonic() > until:
                    raise PeerError(
                        f"{job}: its last window is not in the lake; see the agent.log of each agent"
                    )
                time.sleep(0.1)

    def _holds(self, job: str, last: int, width: int) -> bool:
        """Whether the lake has all windows from its first one to this one: each is final once all agents have reported."""
        starts = {start for _, start in layout.ledger(self.team.folder / "lake", job)}
        return last in starts and set(range(min(starts), last, width)) <= starts


@contextmanager
def web_servers(folder: Path) -> Iterator[list[Server]]:
    """Start a web server for each host, with logs of its own."""
    webs: list[Server] = []
    try:
        for number in range(1, HOSTS + 1):
            webs.append(server.start(folder / f"web{number}", folder / "site"))
        yield webs
    finally:
        for web in webs:
            web.stop()


def clean(folder: Path) -> None:
    """Remove only what an earlier play left in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("lake", "keys", "site", *(f"web{number}" for number in range(1, HOSTS + 1))):
        shutil.rmtree(folder / name, ignore_errors=True)


def count_logs(paths: Sequence[Path]) -> Totals:
    """Totals from one pass over the raw lines, without our parser: status and bytes are the two numbers after the request."""
    totals: Totals = {}
    for path in paths:
        with path.open("rb") as lines:
            for line in lines:
                status, size = map(int, line.split(b'" ', 1)[1].split(b" ", 2)[:2])
                hits, so_far = totals.get(status, (0, 0))
                totals[status] = (hits + 1, so_far + size)
    return totals


def report(folder: Path, page: Path) -> Totals:
    """Print the built-in report, write it as a page too, and return the lake's totals by status."""
    from elf.sinks.report.report import report as spark_report

    sys.stdout.flush()
    spark_report(str(folder), output="table")
    spark_report(str(folder), output=f"html:{page}", notices=StringIO())  # already printed
    found = BytesIO()
    sql = "SELECT status, sum(hits) AS hits, sum(bytes) AS bytes FROM traffic GROUP BY status"
    spark_report(str(folder), sql=sql, output="json", stdout=found)
    rows = [json.loads(line) for line in found.getvalue().splitlines()]
    return {row["status"]: (row["hits"], row["bytes"]) for row in rows}


def compare(counted: Totals, stored: Totals, say: Callable[[str], None] | None = None) -> int:
    """Print whether the lake's totals equal the logs'. Returns the exit code."""
    say = say or announce
    for status in sorted(counted.keys() | stored.keys()):
        ours, theirs = stored.get(status, (0, 0)), counted.get(status, (0, 0))
        verdict = "equal" if ours == theirs else f"the logs have {theirs[0]:,} hits, {theirs[1]:,} bytes"
        say(f"status {status}: {ours[0]:,} hits, {ours[1]:,} bytes in the lake: {verdict}")
    hits = sum(n for n, _ in counted.values())
    if counted == stored:
        say(
            f"the lake's totals are those of the raw logs, counted in one pass: {hits:,} lines, each counted once"
        )
        return 0
    say(f"the lake's totals DIFFER from the raw logs' {hits:,} lines")
    return 1


def announce(message: str) -> None:
    """Print a line of the play, marked to stand out from the agent's windows."""
    print(f"\x1b[1m» {message}\x1b[0m" if sys.stdout.isatty() else f"» {message}", flush=True)
