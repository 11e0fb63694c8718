"""Parameters of running jobs, on real agents: every version counts with its own values, as the logs say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.agents.mesh_rig import SQL, WINDOW_S, Fleet
from tests.rigs.agents.seen import Seen
from tests.system.jobs.test_job_changes import (
    counted,
    elf,
    history,
    latest,
    settled,
    stored,
    stretches,
    version,
)

LEAST = SQL.replace("GROUP BY", "WHERE status >= :least GROUP BY")
PATTERN = SQL.replace("GROUP BY", "WHERE path RLIKE :pattern AND status >= :least GROUP BY") + " LIMIT :rows"


def least(fleet: Fleet, job: str) -> dict[str, int]:
    """The value of each version."""
    return {str(step["version"]): int(step["parameters"]["least"]) for step in history(fleet, job)}  # type: ignore[index]


def wait_final(seen: Seen, version: str) -> None:
    """Until a window is final that this version has alone: a later change cannot begin before it."""
    whole = (1_000_000 * WINDOW_S, "final", version)
    seen.wait(
        lambda: whole in [(put.covers[1] - put.covers[0], put.status, put.version) for _, put in seen.puts]
    )


def test_every_version_counts_with_its_own_values(tmp_path: Path) -> None:
    def lake(number: int) -> str:
        return '[[sink]]\nname = "lake"\nparquet = "lake"\n' if number == 1 else ""

    with Fleet(tmp_path, 3, more=lake) as fleet:
        fleet.start_job("hits", LEAST, "--param", "least=400", "--sink", "lake")
        with fleet.watch("hits", 1) as seen:
            with fleet.traffic():
                first = version(fleet, "hits")
                wait_final(seen, first)
                said = fleet.elf("job", "set", "hits", "least=301", "--expect-version", first[:6], at=2)
                assert f"version {version(fleet, 'hits')} is in force" in said
                wait_final(seen, version(fleet, "hits"))
                fleet.elf("job", "set", "hits", "least=500", "--at", "next", at=1)
                wait_final(seen, version(fleet, "hits"))
                lower = ("--sql", LEAST.lower(), "--param", "least=200")
                fleet.elf("job", "update", "hits", *lower, "--at", "restate")
                wait_final(seen, version(fleet, "hits"))
                fleet.elf("job", "set", "hits", "least=400")
                seen.wait_finals(1)
            parts, values = stretches(fleet, "hits"), least(fleet, "hits")
            assert [values[digest] for digest, _, _ in parts] == [400, 301, 500, 200, 400]
            assert parts[-1][0] == first  # equal values are the same version again
            truth = counted(fleet, parts, lambda digest, status: status >= values[digest], WINDOW_S)
            since = min(start for _, start in truth) + WINDOW_S * 1_000_000
            truth = {key: row for key, row in truth.items() if key[1] >= since}
            assert settled(fleet, seen, truth.keys()) == truth
            folder = fleet.agents[1].folder / "lake"
            kept = {key: row for key, row in truth.items() if row}

            def held() -> bool:
                groups = stored(folder).items()
                return {k: row for k, row in groups if since <= k[1] <= fleet.last_s * 1e6} == kept

            seen.wait(held, lambda: "the lake differs from the logs", 40)
            assert {digest for digest, _ in latest(seen)} == set(values)


def test_another_having_cuts_no_window_and_reads_nothing_again(fleet: Fleet) -> None:
    fleet.start_job("busy", f"{SQL} HAVING count(*) >= :least", "--param", "least=1000000")
    with fleet.watch("busy", 1) as seen:
        with fleet.traffic():
            wait_final(seen, version(fleet, "busy"))
            assert "no line is read again, and no window is cut\n" in fleet.elf(
                "job", "set", "busy", "least=1", "--dry-run"
            )
            planned = json.loads(fleet.elf("job", "set", "busy", "least=1", "--dry-run", "--output", "json"))
            assert {
                key: planned[key]
                for key in ("dry_run", "cuts", "windows", "rereads", "read_again", "differences")
            } == {
                "dry_run": True,
                "cuts": False,
                "windows": [],
                "read_again": [],
                "rereads": False,
                "differences": [{"part": "least", "before": "1000000", "after": "1"}],
            }
            assert planned["estimates"]["of"] == 3
            assert planned["from_us"] % (1_000_000 * WINDOW_S) == 0
            made = json.loads(fleet.elf("job", "set", "busy", "least=1", "--output", "json"))
            assert (made["former"], made["version"]) == (planned["former"], version(fleet, "busy"))
            assert (made["agents"], made["confirmed"], made["missing"]) == (3, 3, [])
            seen.wait_finals(2)
        parts = stretches(fleet, "busy")
        line_us = parts[-1][1]
        assert line_us % (1_000_000 * WINDOW_S) == 0
        truth = counted(fleet, parts, lambda digest, status: digest == parts[-1][0], WINDOW_S)
        assert settled(fleet, seen, truth.keys()) == truth


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, 3) as fleet:
        fleet.wait_known()
        yield fleet


@pytest.fixture
def job(fleet: Fleet) -> Fleet:
    """A job with three parameters."""
    values = ("pattern=^/a", "least=400", "rows=5")
    fleet.start_job("hits", PATTERN, *(word for value in values for word in ("--param", value)))
    return fleet


def test_what_cannot_be_a_value_changes_nothing(job: Fleet) -> None:
    before = json.loads(job.elf("job", "show", "hits", "--output", "json"))
    assert before["parameters"] == {"least": "400", "pattern": "^/a", "rows": "5"}
    update = ("update", "hits", "--sql", PATTERN)
    refused = {
        ("set", "hits", "lest=5"): "job hits: the query has no parameter 'lest'; did you mean least?; nothing was changed",
        ("set", "hits", "least"): "NAME=VALUE: expected NAME=VALUE, found 'least'",
        ("set", "hits", "least=1", "least=2"): "NAME=VALUE: least is given twice",
        ("set", "hits", "least=many"): "the parameter least: expected a whole number (BIGINT), found 'many'",
        ("set", "hits", f"least={2**63}"): "beyond the range of BIGINT",
        ("set", "hits", "rows=-5"): "LIMIT -5 is out of range",
        ("set", "hits", "least=500", "pattern=(a+)+"): "rlike does not take pattern = '(a+)+': it has a repeat within",
        ("set", "hits", "least=500", "--expect-version", "0123456789ab"): "has version",
        ("set", "nobody", "least=500"): "no job is called 'nobody'",
        (*update, "--param", "lest=5"): "the query has no parameter 'lest'; did you mean least?",
        (*update, "--param", "least=many"): "expected a whole number (BIGINT), found 'many'",
        ("update", "hits", "--sql", PATTERN.replace(":rows", ":few")): "the parameter few has no value",
        ("start", "other", "--sql", PATTERN, "--param", "rows=5"): "has no value; give it one (--param",
    }  # fmt: skip
    for arguments, said in refused.items():
        result = elf(job, "job", *arguments)
        assert said in str(result.exception), (arguments, result.exception)
    assert json.loads(job.elf("job", "show", "hits", "--output", "json")) == before
    assert [step["state"] for step in history(job, "hits", at=2)] == ["in force"]


def test_a_change_of_values_is_shown(job: Fleet) -> None:
    outlook = job.elf("job", "set", "hits", "least=500", "rows=5", "--dry-run").splitlines()
    assert "least: 400  ->  500" in outlook
    assert outlook[-1] == "nothing was changed"
    same = job.elf("job", "set", "hits", "rows=+5")
    assert (
        same
        == f"job hits has this query and these values already, as version {version(job, 'hits')}; nothing changes\n"
    )
    moved = job.elf(
        "job", "update", "hits", "--dry-run", "--sql", PATTERN.replace("path RLIKE :pattern AND ", "")
    )
    assert "pattern: ^/a  ->  none\n" in moved
    assert "least" not in moved.replace(":least", "")  # it keeps its value
    job.elf("job", "set", "hits", "least=500")
    assert [step["parameters"] for step in history(job, "hits")] == [
        {"least": "400", "pattern": "^/a", "rows": "5"},
        {"least": "500", "pattern": "^/a", "rows": "5"},
    ]
    table = elf(job, "job", "history", "hits", "--output", "table").output.splitlines()
    assert table[0].split()[-3:] == ["values", "differences", "query"]
    assert "least=500, pattern=^/a, rows=5" in table[2]
    shown = elf(job, "job", "show", "hits", "--output", "table").output
    assert "values    least=500, pattern=^/a, rows=5\n" in shown


@pytest.mark.parametrize("command", [("update", "hits", "--sql", SQL), ("rollback", "hits")])
def test_a_version_without_parameters_shows_none(job: Fleet, command: tuple[str, ...]) -> None:
    job.elf("job", "update", "hits", "--sql", SQL)
    assert "no parameter 'least'; it has none" in str(elf(job, "job", "set", "hits", "least=5").exception)
    job.elf("job", *command)
    held = json.loads(job.elf("job", "show", "hits", "--output", "json"))["parameters"]
    assert held == ({} if command[0] == "update" else {"least": "400", "pattern": "^/a", "rows": "5"})
