"""A job of real agents with keys is stopped: its windows up to there are final and exact, and a watch goes on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from elf.agent.control import protocol as w
from elf.typer_cli import app
from tests.rigs.agents.mesh_rig import SQL, WINDOW_S, Agent, Fleet, wait_until
from tests.rigs.agents.seen import WAIT_S, totals_of

LATENESS = "7s"
"""Long enough to look at the job while it is finishing."""
ERRORS = SQL.replace("GROUP BY", "WHERE status >= 400 GROUP BY")


@contextmanager
def command(agent: Agent, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own, which a signal reaches."""
    process = subprocess.Popen(
        [sys.executable, "-m", "elf", *arguments, "--agent", str(agent.socket)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def state(fleet: Fleet, at: int = 2) -> str:
    (job,) = json.loads(fleet.elf("job", "list", "--output", "json", at=at))
    return str(job["state"])


def refused(fleet: Fleet, *arguments: str) -> str:
    agent = ("--agent", str(fleet.agents[0].socket), "--keys", str(fleet.operator))
    result = CliRunner().invoke(app, [*arguments, *agent])
    assert result.exit_code != 0
    return str(result.exception)


def end_of(fleet: Fleet) -> int:
    """The control line of the job's end."""
    held = fleet.agents[0].ask(w.JobGet("hits"))
    assert isinstance(held, w.JobHeld)
    assert held.schedule is not None
    assert held.schedule.lines[-1].version == "end"
    return held.schedule.lines[-1].from_us


def counted(fleet: Fleet, before_us: int) -> dict[int, dict[int, tuple[int, int]]]:
    """One pass over all logs: the lines before that time, by window."""
    totals: dict[int, dict[int, tuple[int, int]]] = {}
    for text in (text for agent in fleet.agents for text in agent.lines()):
        at_us = round(float(text.partition(" ")[0]) * 1e6)
        status, size = map(int, text.rpartition('"')[2].split())
        if at_us < before_us:
            row = totals.setdefault(at_us - at_us % (WINDOW_S * 1_000_000), {})
            hits, total = row.get(status, (0, 0))
            row[status] = hits + 1, total + size
    return totals


def follows(watch: subprocess.Popen[str], status: str) -> dict[str, Any]:
    """The next row of that status that a watch prints."""
    assert watch.stdout is not None
    while (row := json.loads(watch.stdout.readline()))["_elf"]["status"] != status:
        pass
    assert isinstance(row, dict)
    return row


def test_a_stop_finishes_windows_and_a_watch_goes_on_to_the_next_start(tmp_path: Path) -> None:
    with Fleet(tmp_path / "fleet", 3, security="curve") as fleet:
        fleet.wait_known()
        fleet.start_job("hits", lateness=LATENESS)
        keys, other = ("--keys", str(fleet.operator)), fleet.agents[1]
        with (
            fleet.watch("hits") as seen,
            command(other, "job", "watch", "hits", "--output", "json") as watch,
        ):
            with fleet.traffic():
                seen.wait_finals(1)
                follows(watch, "open")  # it is there before the stop
                with command(other, "job", "stop", "hits", *keys) as stop:
                    wait_until(lambda: state(fleet) == "finishing", "the job is not finishing")
                    assert "being stopped" in fleet.elf("mesh", "status", "--output", "table")
                    assert (
                        json.loads(fleet.elf("job", "show", "hits", "--output", "json"))["state"]
                        == "finishing"
                    )
                    for refusal in (
                        refused(fleet, "job", "start", "hits", "--sql", SQL),
                        refused(fleet, "job", "update", "hits", "--sql", ERRORS),
                        refused(fleet, "job", "try", "hits", "--sql", ERRORS),
                    ):
                        assert refusal.startswith(
                            "job hits is being stopped: it ends when its last windows are final; wait"
                        )
                    said, told = stop.communicate(timeout=WAIT_S)
                assert (stop.returncode, said) == (0, "job hits was stopped\n")
                assert re.search(r"job hits: lines from \S+ \S+ UTC on do not count; it ends when", told)
                wait_until(lambda: state(fleet) == "stopped", "agent 2 does not know the end")
            wanted = counted(fleet, end_of(fleet))
            last_start = datetime.fromtimestamp(max(wanted) / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            while follows(watch, "final")["_elf"]["window"]["start"] != last_start:
                pass  # a watch whose pipe is full says nothing more
            seen.wait(
                lambda: wanted.keys() <= seen.final_starts, lambda: f"{wanted.keys() - seen.final_starts}"
            )
            finals = {start: put for start, put in seen.latest.items() if put.status != "open"}
            assert {start: totals_of(put) for start, put in finals.items() if put.rows} == wanted
            last = finals[max(wanted)]
            assert last.covers == (last.start, min(last.end, end_of(fleet)))
            assert all(put.agents_reporting == put.agents_expected == 3 for put in finals.values())

            fleet.start_job("hits", ERRORS, lateness=LATENESS)
            with fleet.traffic():
                while follows(watch, "open")["status"] < 400:
                    pass
                with command(other, "job", "stop", "hits", *keys) as stop:
                    assert stop.stderr is not None
                    assert "do not count" in stop.stderr.readline()  # it waits now
                    wait_until(lambda: state(fleet) == "finishing", "the job is not finishing")
                    stop.send_signal(signal.SIGINT)
                    told = stop.communicate(timeout=WAIT_S)[1]
                    assert (stop.returncode, state(fleet)) == (130, "finishing")
                    assert "wait for it again with elf job stop hits" in told
                assert fleet.elf("job", "stop", "hits", "--now", *keys) == "job hits was stopped\n"
                wait_until(lambda: state(fleet) == "stopped", "agent 2 does not know the end")
            assert (
                fleet.elf("job", "stop", "hits", *keys)
                == "job hits was stopped before; nothing was changed\n"
            )
            watch.send_signal(signal.SIGINT)
            marks = re.findall(
                r"(being stopped|waits for its next start|started again)",
                watch.communicate(timeout=WAIT_S)[1],
            )
            assert marks[:3] == ["being stopped", "waits for its next start", "started again"]
