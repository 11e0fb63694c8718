"""The demo's play: three web servers with visitors, an agent beside each, a job that changes, a master that dies, and a report.

visitors -> web servers -> access logs -> agents -> master of each job -> windows on the console, webhook, lake -> Spark report
                               |                                                               |                  |
                               +------------- one pass over all lines (oracle) ----------------+------------------+---- equal?
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from elf.agent.demo import load, rush, server, site
from elf.agent.demo.load import Sent
from elf.agent.demo.oracle import Cell, Meaning, Stretch, Totals, compare, count_logs
from elf.agent.demo.receiver import Receiver
from elf.agent.demo.server import Server
from elf.agent.demo.site import Visit
from elf.agent.demo.team import Team
from elf.errors import PeerError
from elf.sinks.lake import layout

HOSTS = 3
WINDOW_S = 5
WINDOW_US = WINDOW_S * 1_000_000
LATENESS_S = 1
TRIED_AT, PROMOTED_AT, KILLED_AT, SET_AT, BACK_AT, ROTATED_AT, RETURNED_AT = 0.1, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9
"""Fractions of the time that the traffic lasts."""
LAKE_S_MAX = 120.0

TRAFFIC = f"""
SELECT window, status, count(*) AS hits, sum(bytes) AS bytes, count_if(bytes >= :least) AS large
FROM access
GROUP BY window(time, '{WINDOW_S} seconds'), status
ORDER BY status
"""
TRIED = TRAFFIC.replace(":least)", ":least AND user_agent NOT LIKE '%bot%')")
"""The trial's query: it counts large answers to people only."""
LEAST, LEAST_SET = 10_000, 50_000
MEANINGS = (Meaning(LEAST, False), Meaning(LEAST, True), Meaning(LEAST_SET, True), Meaning(LEAST, True))
"""Of the versions in order: as started, promoted, with another value, and rolled back."""
PATHS = f"""
SELECT window, path, count(*) AS hits, sum(bytes) AS bytes, max(request_time) AS slowest
FROM access
GROUP BY window(time, '{WINDOW_S} seconds'), path
ORDER BY hits DESC
LIMIT 5
"""
STORED = """
SELECT _version AS version, unix_micros(window_start) AS start, status,
    sum(hits) AS hits, sum(bytes) AS bytes, sum(large) AS large
FROM traffic GROUP BY _version, window_start, status
"""


def demo_command(folder: Path, seconds: int, seed: int) -> int:
    """Play it all. Returns 0 when the lake's rows equal the logs', else 1."""
    folder = folder.absolute()
    logs, stretches, received, alerts = collect(folder, seconds, seed)
    counted = count_logs(logs, stretches, WINDOW_US)
    page = folder / "report.html"
    announce(f"the Spark report of {folder / 'lake'}")
    stored = report(folder / "lake", page)
    announce(f"the report as a page, to open in a browser: {page}")
    wrong = compare(counted, stored, stretches, announce) or check_hook(counted, received)
    return wrong or rush.check(alerts, rush.count_lines(logs), announce)


def check_hook(counted: Totals, received: Totals) -> int:
    """Print whether the webhook's windows are the logs'. Returns the exit code."""
    windows = len({(version, start) for version, start, _ in received})
    verdict = "all equal" if received == counted else "they DIFFER from the logs"
    announce(f"webhook: {len(received)} rows in {windows} windows, each signed: {verdict}")
    return int(received != counted)


def collect(
    folder: Path, seconds: int, seed: int
) -> tuple[list[Path], list[Stretch], Totals, list[rush.Event]]:
    """Serve, visit, follow, change, kill and rotate; returns the logs that were written, the versions of traffic, and what the
    webhook received of it, and of the alert."""
    clean(folder)
    site.build(folder / "site")
    receiver = Receiver(folder)
    with receiver.at_work(), web_servers(folder) as webs:
        for web in webs:
            announce(f"{web.name} on 127.0.0.1:{web.port} writes {web.log}")
        team = Team(folder, webs, receiver)
        with team.at_work():
            announce(f"{HOSTS} agents follow them, with keys of {team.keys}; no agent is special")
            announce(f"the windows of traffic go to the lake, and to the webhook of {team.agents[1].name}")
            team.start_job(
                "traffic", TRAFFIC, f"{LATENESS_S}s", "--sink", "hook", "--param", f"least={LEAST}"
            )
            team.start_job("paths", PATHS, f"{LATENESS_S}s")
            announce(f"job rush has an alert for the webhook: more than {rush.LEAST} requests in two seconds")
            team.start_file("rush", rush.JOB)
            play = Play(team, webs, receiver, seconds)
            play.run(seed)
            stretches = play.stretches()
    return play.logs(), stretches, receiver.totals(), receiver.alerts()


class Play:
    """The events while visitors come."""

    def __init__(self, team: Team, webs: Sequence[Server], receiver: Receiver, seconds: int) -> None:
        self.team, self.webs, self.receiver, self.seconds = team, webs, receiver, seconds
        self.rotated: list[Path] = []
        self.master = team.master("traffic")
        self.witness = next(agent for agent in team.agents if agent is not self.master)
        self._todo: list[tuple[float, Callable[[], None]]] = [
            (TRIED_AT * seconds, self._try),
            (PROMOTED_AT * seconds, self._promote),
            (KILLED_AT * seconds, self._kill),
            (SET_AT * seconds, self._set),
            (BACK_AT * seconds, self._bring_back),
            (ROTATED_AT * seconds, self._rotate),
            (RETURNED_AT * seconds, self._roll_back),
        ]
        self._events = ThreadPoolExecutor(1)
        """One event after another, beside the visitors: a command may take seconds."""
        self._happening: list[Future[None]] = []

    def run(self, seed: int) -> None:
        """Run until every request is in the lake."""
        announce(f"visitors come for {self.seconds} s; `elf job watch traffic` at {self.witness.name}:")
        watched = self.team.watch("traffic", self.witness)
        try:
            sent = self._visit(seed)
            self._wait_for_lake()
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
        self._events.shutdown()
        for event in self._happening:
            event.result()
        for agent in self.team.agents:
            agent.check()
        return sent

    def _happen(self, visit: Visit) -> None:
        while self._todo and visit.at >= self._todo[0][0]:
            self._happening.append(self._events.submit(self._todo.pop(0)[1]))

    def _try(self) -> None:
        announce("elf job try traffic: what if it counted large answers to people only? both, side by side:")
        self.team.try_job("traffic", TRIED, self.witness)

    def _promote(self) -> None:
        announce("elf job promote traffic")
        announce(self.team.change("promote", "traffic", self.witness))

    def _set(self) -> None:
        announce(f"elf job set traffic least={LEAST_SET}")
        announce(self.team.change("set", "traffic", self.witness, f"least={LEAST_SET}"))

    def _roll_back(self) -> None:
        announce("elf job rollback traffic")
        announce(self.team.change("rollback", "traffic", self.witness))

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

    def stretches(self) -> list[Stretch]:
        """The versions of traffic and the event times at which each is in force. Raises `PeerError` if a change is missing."""
        steps = self.team.versions("traffic")
        if len(steps) != len(MEANINGS):
            raise PeerError(f"traffic has {len(steps)} changes in force, not {len(MEANINGS)}")
        # A job counts the whole window in which it starts: the first visitors may come in the same second.
        starts = [0, *(since for _, since in steps[1:])]
        changes = zip(steps, starts, [*starts[1:], sys.maxsize], MEANINGS, strict=True)
        return [Stretch(version, since, until, meaning) for (version, _), since, until, meaning in changes]

    def logs(self) -> list[Path]:
        return [*self.rotated, *(web.log for web in self.webs)]

    def _wait_for_lake(self) -> None:
        """Return when the lake holds each window of both jobs that has lines, the webhook those of traffic, and the alert is
        resolved. Raises `PeerError`.

        A change may leave one version a part of a window without lines: nothing is stored of it.
        """
        (version, _), *_ = self.team.versions("paths")
        paths = [Stretch(version, 0, sys.maxsize, MEANINGS[0])]
        until = time.monotonic() + LAKE_S_MAX
        for job, stretches in (("traffic", self.stretches()), ("paths", paths)):
            wanted = {(version, start) for version, start, _ in count_logs(self.logs(), stretches, WINDOW_US)}
            while missing := wanted - self._arrived(job):
                for agent in self.team.agents:
                    agent.check()
                if time.monotonic() > until:
                    raise PeerError(
                        f"{job}: {len(missing)} of {len(wanted)} windows did not arrive; see the agent.log of each agent"
                    )
                time.sleep(0.1)
        while not rush.is_over(self.receiver.alerts()):
            if time.monotonic() > until:
                raise PeerError("the alert rush was not resolved; see the agent.log of each agent")
            time.sleep(0.1)

    def _arrived(self, job: str) -> set[tuple[str, int]]:
        """(version, start) of each window of a job that is where it goes."""
        stored = set(layout.ledger(self.team.folder / "lake", job))
        return stored & self.receiver.windows() if job == "traffic" else stored


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
    (folder / "webhook.secret").unlink(missing_ok=True)
    for name in ("lake", "keys", "site", *(f"web{number}" for number in range(1, HOSTS + 1))):
        shutil.rmtree(folder / name, ignore_errors=True)


def report(folder: Path, page: Path) -> Totals:
    """Print the built-in report, write it as a page too, and return the lake's rows of traffic."""
    from elf.sinks.report.report import report as spark_report

    sys.stdout.flush()
    spark_report(str(folder), output="table")
    spark_report(str(folder), output=f"html:{page}", notices=StringIO())  # already printed
    found = BytesIO()
    spark_report(str(folder), sql=STORED, output="json", stdout=found)
    rows = map(json.loads, found.getvalue().splitlines())
    return {cell_of(row): (row["hits"], row["bytes"], row["large"]) for row in rows}


def cell_of(row: dict[str, Any]) -> Cell:
    """Which version, window and status a row of `STORED` is of."""
    return row["version"], row["start"], row["status"]


def announce(message: str) -> None:
    """Print lines of the play, marked to stand out from the agent's windows."""
    for line in message.splitlines():
        print(f"\x1b[1m» {line}\x1b[0m" if sys.stdout.isatty() else f"» {line}", flush=True)
