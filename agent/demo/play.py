"""The demo's play: a web server with visitors, an agent beside it, a rotation, a report, and the totals compared.

visitors -> web server -> access.log -> agent -> windows on the console, lake -> Spark report
                              |                                          |
                              +--------- one pass over all lines --------+---- equal?
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
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
from elf.errors import PeerError

WINDOW_S = 5
LATENESS_S = 1
QUIET_S = 5
"""How long a log must be quiet before the agent takes the clock's word that nothing earlier will come."""
ENDING_MAX_S = 30.0

Totals = dict[int, tuple[int, int]]
"""status -> (hits, bytes)."""

CONFIGURATION = """\
[agent]
name = "demo"
state_dir = "state"
memory_max = "64MiB"

[[source]]
name = "access"
path = "logs/access.log*"
format = {format}
start = "beginning"

[[job]]
name = "traffic"
sql = '''
SELECT window, status, count(*) AS hits, sum(bytes) AS bytes
FROM access
GROUP BY window(time, '{window} seconds'), status
ORDER BY status
'''
lateness = "{lateness}s"
sinks = ["console:table", "parquet:lake"]

[[job]]
name = "paths"
sql = '''
SELECT window, path, count(*) AS hits, sum(bytes) AS bytes, max(request_time) AS slowest
FROM access
GROUP BY window(time, '{window} seconds'), path
ORDER BY hits DESC
LIMIT 5
'''
lateness = "{lateness}s"
sinks = ["console:table", "parquet:lake"]
"""


def demo_command(folder: Path, seconds: int, seed: int) -> int:
    """Play it all. Returns 0 when the lake's totals equal the log's, else 1."""
    folder = folder.absolute()
    logs = collect(folder, seconds, seed)
    counted = count_logs(logs)
    page = folder / "report.html"
    tell(f"the Spark report of {folder / 'lake'}")
    stored = report(folder / "lake", page)
    tell(f"the report as a page, to open in a browser: {page}")
    return compare(counted, stored)


def collect(folder: Path, seconds: int, seed: int) -> list[Path]:
    """Serve, visit, follow and rotate; returns the logs that were written, oldest first."""
    clean(folder)
    site.build(folder / "site")
    web = server.start(folder, folder / "site")
    try:
        (folder / "elf.toml").write_text(configuration(web.format), encoding="utf-8")
        tell(f"{web.name} on 127.0.0.1:{web.port} writes {web.log}")
        tell(f"an agent follows it with the two jobs of {folder / 'elf.toml'}")
        tell(f"visitors come for {seconds} s; half way the log is renamed and begun anew, as logrotate does")
        # Nothing is said meanwhile: the agent draws open windows in place, and may be the only one to write.
        with agent(folder / "elf.toml") as process:
            rotated, sent = visit(web, seconds, seed)
            wait_for_last_window(process)
        failed = f", {sent.failed} failed" if sent.failed else ""
        tell(f"{sent.answered:,} requests were answered{failed}; their lines are in {len(rotated) + 1} files")
        return [*rotated, web.log]
    finally:
        web.stop()


def clean(folder: Path) -> None:
    """Remove what an earlier play left in `folder`, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("logs", "lake", "state", "site", "server"):
        shutil.rmtree(folder / name, ignore_errors=True)


def configuration(format: str) -> str:
    """The agent's TOML for a log of `format`."""
    return CONFIGURATION.format(format=json.dumps(format), window=WINDOW_S, lateness=LATENESS_S)


@contextmanager
def agent(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An agent in a process of its own, ended in good order. Raises `PeerError` if it failed."""
    sys.stdout.flush()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ELF_")}
    command = [sys.executable, "-m", "elf.typer_cli", "agent", "run", "-c", str(path)]
    process = subprocess.Popen(command, env=environment)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        process.wait(ENDING_MAX_S)
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"the agent did not end within {ENDING_MAX_S:.0f} s") from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise PeerError(f"the agent ended with exit code {process.returncode}; its messages are above")


def visit(web: Server, seconds: int, seed: int) -> tuple[list[Path], Sent]:
    """Send the visits, and rotate the log at half time. Returns the rotated logs, and what came back."""
    rotated: list[Path] = []

    def rotate_at_half_time(one: Visit) -> None:
        if not rotated and one.at >= seconds / 2:
            rotated.append(web.rotate())

    sent = asyncio.run(load.send(web.port, site.visits(seed, seconds), rotate_at_half_time))
    return rotated, sent


def wait_for_last_window(process: subprocess.Popen[bytes]) -> None:
    """Return when the window of the last request is final: its end, the lateness, and the quiet that proves the end.

    Raises `PeerError` if the agent ends before.
    """
    end = (time.time() // WINDOW_S + 1) * WINDOW_S + LATENESS_S + QUIET_S
    try:
        process.wait(end + 2 - time.time())
    except subprocess.TimeoutExpired:
        return
    raise PeerError(f"the agent ended early with exit code {process.returncode}; its messages are above")


def count_logs(paths: Sequence[Path]) -> Totals:
    """One pass over the raw lines, with nothing of ours: status and bytes are the two numbers after the request."""
    totals: Totals = {}
    for path in paths:
        with path.open("rb") as lines:
            for line in lines:
                status, size = map(int, line.split(b'" ', 1)[1].split(b" ", 2)[:2])
                hits, so_far = totals.get(status, (0, 0))
                totals[status] = (hits + 1, so_far + size)
    return totals


def report(lake: Path, page: Path) -> Totals:
    """Print the built-in report, leave it as a page too, and give the lake's totals by status."""
    from elf.sinks.report import report as spark_report

    sys.stdout.flush()
    spark_report(str(lake), output="table")
    spark_report(str(lake), output=f"html:{page}", notices=StringIO())  # they were said just now
    found = BytesIO()
    sql = "SELECT status, sum(hits) AS hits, sum(bytes) AS bytes FROM traffic GROUP BY status"
    spark_report(str(lake), sql=sql, output="json", stdout=found)
    rows = [json.loads(line) for line in found.getvalue().splitlines()]
    return {row["status"]: (row["hits"], row["bytes"]) for row in rows}


def compare(counted: Totals, stored: Totals, say: Callable[[str], None] | None = None) -> int:
    """Say whether the lake holds exactly what the log does. Returns the exit code."""
    say = say or tell
    for status in sorted(counted.keys() | stored.keys()):
        ours, theirs = stored.get(status, (0, 0)), counted.get(status, (0, 0))
        verdict = "equal" if ours == theirs else f"the log has {theirs[0]:,} hits, {theirs[1]:,} bytes"
        say(f"status {status}: {ours[0]:,} hits, {ours[1]:,} bytes in the lake: {verdict}")
    hits = sum(n for n, _ in counted.values())
    if counted == stored:
        say(
            f"the lake's totals are those of the raw log, counted in one pass: {hits:,} lines, each counted once"
        )
        return 0
    say(f"the lake's totals DIFFER from the raw log's {hits:,} lines")
    return 1


def tell(message: str) -> None:
    """One line of the play's own, apart from the agent's windows."""
    print(f"\x1b[1m» {message}\x1b[0m" if sys.stdout.isatty() else f"» {message}", flush=True)
