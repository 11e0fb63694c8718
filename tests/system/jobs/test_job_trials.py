"""Trials on real agents: a query runs beside a job, and both results can be compared; then one of the two is left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from elf.agent.commands.jobs.trial.trial import SLOTS
from elf.agent.control import protocol as w
from elf.typer_cli import app
from tests.rigs.agents.mesh_rig import SQL, Fleet, wait_until

ERRORS = SQL.replace("GROUP BY", "WHERE status >= 400 GROUP BY")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, 3) as fleet:
        fleet.wait_known()
        fleet.start_job("hits", lateness="2s")
        yield fleet


def refused(fleet: Fleet, *arguments: str, at: int = 0) -> str:
    result = CliRunner().invoke(app, [*arguments, "--agent", str(fleet.agents[at].socket)])
    assert result.exception is not None, result.output
    return str(result.exception)


def compared(fleet: Fleet, *options: str, at: int = 0) -> list[dict[str, Any]]:
    """The windows that `elf job try` prints."""
    said = fleet.elf("job", "try", "hits", *options, "--output", "json", at=at)
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def shown(fleet: Fleet, at: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(fleet.elf("job", "show", "hits", "--output", "json", at=at))
    return found


def counted(fleet: Fleet, start_us: int, *numbers: int) -> dict[int, tuple[int, int]]:
    """One pass over the logs of these agents: a window's hits and bytes by status."""
    hits: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for number in numbers:
        for text in fleet.agents[number].lines():
            at, _, rest = text.partition(" ")
            status, size = map(int, rest.rpartition('"')[2].split())
            if 0 <= round(float(at) * 1000) * 1000 - start_us < 1_000_000:
                hits[status] += 1
                sizes[status] += size
    return {status: (hits[status], sizes[status]) for status in hits}


def side(window: dict[str, Any], which: str) -> dict[int, tuple[int, int]]:
    return {
        row["keys"]["status"]: (row[which]["hits"], row[which]["bytes"])
        for row in window["rows"]
        if row[which] is not None
    }


def wait_for_one_job(fleet: Fleet) -> None:
    """Until every agent works for one job only, and none knows a trial that runs."""

    def is_alone() -> bool:
        statuses = [agent.ask(w.MeshStatus()) for agent in fleet.agents]
        roles = [member.roles for status in statuses for member in status.members]
        return all(role and role["worker"] == 1 and role["master"] <= 1 for role in roles) and not any(
            status.trials for status in statuses
        )

    wait_until(is_alone, "something of the trial is left")
    assert "hits~try1" in refused(fleet, "mesh", "tree", "hits~try1")


@pytest.mark.process
def test_a_trial_on_some_agents_is_compared_and_promoted(fleet: Fleet) -> None:
    present = shown(fleet)
    with fleet.traffic():
        windows = compared(fleet, "--sql", ERRORS, "--on", "a[01]", "--windows", "2")
        trial = shown(fleet, at=2)["trial"]
        assert (trial["compared_with"], trial["agents"]) == (present["version"], ["a[01]"])
        assert [job["name"] for job in json.loads(fleet.elf("job", "list", "--output", "json", at=1))] == [
            "hits"
        ]
        assert "trial of job hits: version" in fleet.elf("mesh", "status", "--output", "table")
        assert "job hits has a trial already" in refused(fleet, "job", "try", "hits", "--sql", ERRORS, at=1)
        assert "is a trial of job hits" in refused(fleet, "job", "update", "hits~try1", "--sql", SQL)
        windows += compared(fleet, "--windows", "1", at=2)  # the display again, at another agent

        def is_measured() -> bool:
            costs = {cost.job: cost for cost in fleet.agents[0].ask(w.MeshStatus()).costs}
            return {"hits", "hits~try1", "hits~now1"} <= {job for job, cost in costs.items() if cost.cpu_ms}

        wait_until(is_measured, "a job has no costs")
        said = fleet.elf("mesh", "status", "--output", "table")
        assert [line for line in said.splitlines() if line.startswith("hits~try1") and "core-ms/s" in line]
        said = fleet.elf("job", "promote", "hits", at=1)
    assert f"version {trial['version']} is in force" in said
    assert "the trial has ended" in said
    for window in windows:
        truth = counted(fleet, window["start_us"], 0, 1)
        assert side(window, "now") == truth
        assert side(window, "try") == {status: row for status, row in truth.items() if status >= 400}
        assert {
            (each["agents_reporting"], each["agents_expected"]) for each in (window["now"], window["try"])
        } == {(2, 2)}
        assert window["now"]["lines"]["read"] == sum(hits for hits, _ in truth.values())
        differences = [row["difference"] for row in window["rows"] if row["try"] is not None]
        assert differences == [{"hits": 0, "bytes": 0}] * len(differences)
    assert shown(fleet)["version"] == trial["version"] == windows[0]["try"]["version"]
    wait_for_one_job(fleet)


@pytest.mark.process
def test_a_trial_is_aborted_or_ends_by_itself(fleet: Fleet) -> None:
    before = shown(fleet)
    with fleet.traffic():
        compared(fleet, "--sql", ERRORS, "--windows", "0")
        assert shown(fleet)["trial"]["agents"] == []
        assert "the job is as it was" in fleet.elf("job", "abort", "hits", at=2)
        assert "job hits has no trial" in refused(fleet, "job", "abort", "hits", at=2)
        assert shown(fleet, at=2) == before
        wait_for_one_job(fleet)
        windows = compared(fleet, "--sql", ERRORS, "--for", "5s", at=1)  # to the end of the trial
        assert all(side(window, "now") == counted(fleet, window["start_us"], 0, 1, 2) for window in windows)
        assert "and has ended" in refused(fleet, "job", "promote", "hits", at=1)
    wait_for_one_job(fleet)
    assert shown(fleet) == before


@pytest.mark.process
def test_what_is_no_trial_is_refused(fleet: Fleet) -> None:
    refusals = {
        ("--sql", SQL): "has this query already",
        ("--sql", ERRORS, "--on", "b*"): "no agent that follows access has a name like b*",
        ("--sql", ERRORS, "--for", "25h"): "--for: expected at most a day",
        ("--sql", ERRORS, "--for", "soon"): "--for: expected a duration",
        (
            "--sql",
            ERRORS,
            "--for",
            "2s",
        ): "--for: 2s is too short: the first window is final after 3s at most",
        ("--sql", "SELECT count(*) FROM access"): "--sql: a trial compares final windows",
        ("--sql", ERRORS.replace("status >=", "nope >=")): "nope",
        (): "job hits has no trial; start one with: elf job try hits --sql SQL",
    }
    for options, said in refusals.items():
        assert said in refused(fleet, "job", "try", "hits", *options)
    assert "no job is called 'nobody'" in refused(fleet, "job", "try", "nobody", "--sql", SQL)
    for number in range(SLOTS + 2):
        fleet.elf("job", "try", "hits", "--sql", ERRORS, "--on", f"a{number % 3}", "--windows", "0")
        fleet.elf("job", "abort", "hits")
    fleet.elf("job", "try", "hits", "--sql", ERRORS, "--windows", "0")
    fleet.elf("job", "update", "hits", "--sql", ERRORS.replace("400", "500"))
    assert "--expect-version: job hits has version" in refused(fleet, "job", "promote", "hits")
    fleet.elf("job", "stop", "hits", "--now")
    assert fleet.agents[0].ask(w.MeshStatus()).trials == ()


@pytest.mark.process
def test_other_values_of_parameters_are_tried(fleet: Fleet) -> None:
    query = ERRORS.replace("400", ":least")
    fleet.elf("job", "update", "hits", "--sql", query, "--param", "least=300")
    assert "least: expected a whole number" in refused(fleet, "job", "try", "hits", "--set", "least=x")
    assert "has this query already" in refused(fleet, "job", "try", "hits", "--set", "least=300")
    with fleet.traffic():
        (window,) = compared(fleet, "--set", "least=400", "--on", "a[01]", "--windows", "1")
        truth = counted(fleet, window["start_us"], 0, 1)
        assert side(window, "now") == {status: row for status, row in truth.items() if status >= 300}
        assert side(window, "try") == {status: row for status, row in truth.items() if status >= 400}
        fleet.elf("job", "promote", "hits")
    assert shown(fleet)["parameters"] == {"least": "400"}
