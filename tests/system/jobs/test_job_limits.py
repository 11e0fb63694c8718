"""Limits of jobs on real agents: past them a job fails visibly, or the rest of its groups is one row; a trial ends."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from elf.agent.control import protocol as w
from elf.typer_cli import app
from tests.rigs.agents.mesh_rig import SQL, Fleet, wait_until

WIDER = SQL.replace("GROUP BY", "WHERE bytes > 9 GROUP BY")
STATUSES = {200, 301, 404, 500}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, 3) as fleet:
        fleet.wait_known()
        yield fleet


def start(fleet: Fleet, tmp_path: Path, name: str, limits: str, sql: str = SQL) -> str:
    file = tmp_path / f"{name}.toml"
    file.write_text(f"lateness = '2s'\nsql = '''\n{sql}\n'''\n[limits]\n{limits}\n")
    result = CliRunner().invoke(
        app, ["job", "start", name, "-f", str(file), "--agent", str(fleet.agents[0].socket)]
    )
    return result.output if result.exception is None else str(result.exception)


def windows(fleet: Fleet, name: str, count: int) -> dict[str, list[dict[str, Any]]]:
    """Rows of final windows, by start."""
    said = fleet.elf("job", "watch", name, "--windows", str(count), "--output", "json")
    found: dict[str, list[dict[str, Any]]] = {}
    for line in said.splitlines():
        row = json.loads(line)
        if row["_elf"]["status"] == "final":
            found.setdefault(row["_elf"]["window"]["start"], []).append(row)
    return found


def job(fleet: Fleet, name: str, at: int = 0) -> dict[str, Any]:
    jobs = json.loads(fleet.elf("job", "list", "--output", "json", at=at))
    return next(each for each in jobs if each["name"] == name)


@pytest.mark.process
def test_past_a_limit_a_job_fails_or_has_a_row_other(fleet: Fleet, tmp_path: Path) -> None:
    assert "was started" in start(fleet, tmp_path, "hits", "groups = 2\nover = 'other'")
    assert "was started" in start(fleet, tmp_path, "narrow", "groups = 2")
    assert "there is no row other" in start(
        fleet,
        tmp_path,
        "distinct",
        "groups = 2\nover = 'other'",
        SQL.replace("count(*)", "count(DISTINCT bytes)"),
    )
    with fleet.traffic():
        found = windows(fleet, "hits", 4)
        wait_until(lambda: job(fleet, "narrow")["state"] == "failing", "narrow does not fail")
        table = fleet.elf("job", "watch", "hits", "--windows", "4", "--output", "table")
        dry = fleet.elf("job", "update", "hits", "--dry-run", "--sql", WIDER)
        folder = tmp_path / "jobs"
        folder.mkdir()
        (folder / "next.sql").write_text(SQL)
        planned = json.loads(fleet.elf("job", "apply", "-f", str(folder), "--dry-run", "--output", "json"))
        said = fleet.elf("mesh", "status", "--output", "table")
        (failure, *_) = job(fleet, "narrow")["failing"]
    assert failure["reason"].startswith("limit: more than 2 groups in one pane; group by fewer values")
    assert job(fleet, "hits")["state"] == "running"
    assert "job narrow fails (limit: more than 2 groups in one pane" in said
    assert "traceback" not in said
    assert "other" in {line.split()[0] for line in table.splitlines() if line.strip()}
    assert "estimate: up to 4 groups in a pane and " in dry
    assert " at 3 of 3 agents" in dry
    (step,) = planned["jobs"]
    assert [each["agent"] for each in step["estimates"]["agents"]] == ["a0", "a1", "a2"]
    assert all(2 < each["groups"] <= 4 and each["sent_bytes"] > 0 for each in step["estimates"]["agents"])
    truth = truth_of(fleet)
    shown: set[frozenset[int]] = set()
    for start_text, rows in found.items():
        groups = {row["status"]: (row["hits"], row["bytes"]) for row in rows if "other" not in row["_elf"]}
        others = [row for row in rows if row["_elf"].get("other")]
        whole = truth[start_text]
        assert len(groups) <= 2
        assert groups == {status: whole[status] for status in groups}
        rest = [whole[status] for status in whole.keys() - groups.keys()]
        assert [row["status"] for row in others] == [None] * bool(rest)
        assert [(row["hits"], row["bytes"]) for row in others] == [
            (sum(hits for hits, _ in rest), sum(size for _, size in rest))
        ] * bool(rest)
        if whole.keys() == STATUSES:
            shown.add(frozenset(groups))
    assert len(shown) == 1, "the groups that stay depend on their hashes alone"
    assert "limits    2 groups, the rest as one row" in fleet.elf("job", "show", "hits", "--output", "table")
    assert 'over = "other"' in fleet.elf("job", "show", "hits", "--output", "file")


def truth_of(fleet: Fleet) -> dict[str, dict[int, tuple[int, int]]]:
    """One pass over the logs: start of each window, as JSON has it -> status -> (hits, bytes)."""
    from elf.sinks.console.cells import iso

    found: dict[str, Counter[tuple[int, str]]] = {}
    for agent in fleet.agents:
        for text in agent.lines():
            at, _, rest = text.partition(" ")
            status, size = map(int, rest.rpartition('"')[2].split())
            start_us = int(float(at)) * 1_000_000
            sums = found.setdefault(iso(start_us), Counter())
            sums[status, "hits"] += 1
            sums[status, "bytes"] += size
    return {
        start: {status: (sums[status, "hits"], sums[status, "bytes"]) for status, _ in sums}
        for start, sums in found.items()
    }


@pytest.mark.process
def test_a_trial_that_passes_a_limit_ends_by_itself(fleet: Fleet, tmp_path: Path) -> None:
    few = SQL.replace("GROUP BY", "WHERE status = 200 GROUP BY")
    assert "was started" in start(fleet, tmp_path, "hits", "groups = 2", few)
    with fleet.traffic():
        said = fleet.elf("job", "try", "hits", "--sql", SQL, "--on", "a[01]", "--output", "json")
        assert "the trial of job hits has ended: it passed a limit at a" in said
        result = CliRunner().invoke(app, ["job", "promote", "hits", "--agent", str(fleet.agents[2].socket)])
        assert "has ended: it passed a limit at a" in str(result.exception)
        windows(fleet, "hits", 1)
        assert job(fleet, "hits")["failing"] == []
        roles = [member.roles for member in fleet.agents[1].ask(w.MeshStatus()).members]
    assert all(each and each["worker"] == 1 for each in roles)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("bytes = '64B'", "sent up in a second, of 64 B"),
        ("groups = 2", "more than 2 groups in one pane"),
    ],
)
def test_an_agents_own_limit_holds_for_jobs_that_run(
    fleet: Fleet, tmp_path: Path, limit: str, reason: str
) -> None:
    """The job fails at that agent alone; it goes on at the others."""
    assert "was started" in start(fleet, tmp_path, "hits", "over = 'fail'")
    agent = fleet.agents[fleet.beside(fleet.master("hits"))]
    agent.stop()
    with (agent.folder / "elf.toml").open("a") as file:
        file.write(f"\n[limits]\n{limit}\n")
    agent.start()
    agent.wait_ready()
    with fleet.traffic(400.0):
        wait_until(lambda: job(fleet, "hits")["state"] == "failing", "it does not fail")
        failing = job(fleet, "hits")["failing"]
        found = windows(fleet, "hits", 2)
    assert [each["agent"] for each in failing] == [agent.name]
    assert reason in failing[0]["reason"]
    truth = truth_of(fleet)
    for start_text, rows in found.items():
        assert all(row["hits"] <= truth[start_text][row["status"]][0] for row in rows)
