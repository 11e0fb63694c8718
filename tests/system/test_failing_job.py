"""One job's bug, in real processes: every agent lives, other jobs go on, and all can see which job fails, where, and why."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.rigs import paths
from tests.rigs.agents.mesh_rig import FAST, SQL, Fleet, free_ports, wait_until

BUG = paths.TESTS / "torture" / "bug"
"""Finishing a result with a column `doomed` raises, while the file that TORTURE_BUG names is there."""
DOOMED = SQL.replace("AS hits", "AS doomed")
REASON = "RuntimeError: this agent was given a bug"


def jobs(fleet: Fleet, at: int = 0) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in json.loads(fleet.elf("job", "list", "--output", "json", at=at))}


def tells(fleet: Fleet, command: Sequence[str], text: str) -> bool:
    """Whether the command's table says that."""
    return text in fleet.elf(*command, "--output", "table")


@pytest.fixture(autouse=True)
def has_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORTURE_BUG", str(BUG))


@pytest.fixture
def ports() -> list[int]:
    return free_ports(3)


def figures(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        return str(page.read().decode())


def test_one_jobs_bug_ends_no_agent_and_concerns_no_other_job(tmp_path: Path) -> None:
    # A seat that runs for longer than the maximum has recovered, and its next failure is news: a second is short beside load.
    timings = FAST | {"seat_retry": "100ms", "seat_retry_max": "60s"}
    with Fleet(tmp_path, 3, timings=timings, wait=False) as fleet:
        fleet.close()
        for agent in fleet.agents:
            agent.python_path = BUG
            agent.start()
        fleet.wait_joined()
        fleet.start_job("hits")
        with fleet.watch("hits") as seen:
            with fleet.traffic():
                seen.wait_finals(1)
                pids = [agent.pid for agent in fleet.agents]
                fleet.start_job("doom", DOOMED)
                wait_until(lambda: jobs(fleet)["doom"]["state"] == "failing", "job doom does not fail")
                master = fleet.master("doom")
                failing: list[dict[str, Any]] = []

                def is_tried_again() -> bool:
                    nonlocal failing
                    failing = jobs(fleet)["doom"][
                        "failing"
                    ]  # a later list may lack the report of a busy agent
                    return any(each["failures"] > 3 for each in failing)

                wait_until(is_tried_again, "no attempts")
                assert {each["agent"] for each in failing} == {master.name}
                assert {each["reason"] for each in failing} == {REASON}
                assert jobs(fleet)["hits"]["state"] == "running"
                for command, text in (
                    (("job", "list"), f"failing: job doom at {master.name}: fails ({REASON})"),
                    (("mesh", "status"), f"problem: {master.name}: job doom fails ({REASON})"),
                ):
                    wait_until(partial(tells, fleet, command, text), f"elf {command} does not say {text}")
                seen.wait_finals(2)
                assert [agent.pid for agent in fleet.agents if agent.is_running] == pids
                assert master.said().count("Traceback (most recent call last)") == 1
                assert master.said().count(f"job doom failed here ({REASON})") == 1
                fleet.elf("job", "stop", "doom", "--now")
                assert jobs(fleet)["doom"]["state"] == "stopped"
                fleet.start_job("doom")
                with fleet.watch("doom") as mended:
                    mended.wait_finals(1)
                assert jobs(fleet)["doom"]["state"] == "running"
            assert fleet.settled(seen) == fleet.counted()
        assert all(agent.is_running for agent in fleet.agents)


def test_metrics_tell_of_a_job_that_fails(tmp_path: Path, ports: list[int]) -> None:
    with Fleet(tmp_path, 1, agent=f'metrics = "127.0.0.1:{ports[0]}"', wait=False) as fleet:
        fleet.close()
        fleet.agents[0].python_path = BUG
        fleet.agents[0].start()
        fleet.wait_joined()
        assert "elf_job_failing" not in figures(ports[0])
        fleet.start_job("doom", DOOMED)
        with fleet.traffic():
            told = f'elf_job_failing{{job="doom",reason="{REASON}"}} 1'
            wait_until(lambda: told in figures(ports[0]), "not told")
        assert 'elf_job_failures_total{job="doom"}' in figures(ports[0])
