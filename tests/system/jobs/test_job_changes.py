"""Jobs that change while they run, on real agents: every window is one version's, and all lines count once, as in the logs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from elf.agent.commands.jobs import change
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.results import Put
from elf.typer_cli import app
from tests.rigs.agents.mesh_rig import SQL, WINDOW_S, Fleet, wait_until
from tests.rigs.agents.seen import WAIT_S, Seen, totals_of

ERRORS = SQL.replace("GROUP BY", "WHERE status >= 400 GROUP BY")
LONG_S, CHANGES_S = 20, 10
"""The size of a window, and how long two changes within it may take at most on a busy machine."""
LONG = SQL.replace(f"'{WINDOW_S} second'", f"'{LONG_S} seconds'")
LONG_ERRORS = ERRORS.replace(f"'{WINDOW_S} second'", f"'{LONG_S} seconds'")

Row = dict[int, tuple[int, int]]
Stretch = tuple[str, int, int]
"""A version and the event times [from, to) at which it is in force."""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, 3) as fleet:
        yield fleet


@contextmanager
def watched(fleet: Fleet, job: str, sql: str = SQL) -> Iterator[Seen]:
    """A job that starts, and its windows."""
    fleet.start_job(job, sql)
    with fleet.watch(job, 1) as seen:
        yield seen


def elf(fleet: Fleet, *arguments: str, at: int = 0) -> Result:
    return CliRunner().invoke(app, [*arguments, "--agent", str(fleet.agents[at].socket)])


def history(fleet: Fleet, job: str, at: int = 0) -> list[dict[str, object]]:
    steps: list[dict[str, object]] = json.loads(fleet.elf("job", "history", job, "--output", "json", at=at))
    return steps


def version(fleet: Fleet, job: str) -> str:
    return str(json.loads(fleet.elf("job", "show", job, "--output", "json"))["version"])


def wait_versions(fleet: Fleet, job: str, count: int, at: int = 0) -> list[str]:
    """Until that agent knows of so many versions that were in force, or are: another one may know it sooner. They, in order."""
    wait_until(
        lambda: len(stretches(fleet, job, at)) == count, f"a{at} does not know {count} versions of {job}"
    )
    return [digest for digest, _, _ in stretches(fleet, job, at)]


def stretches(fleet: Fleet, job: str, at: int = 0) -> list[Stretch]:
    """The versions that have results, from the job's history as that agent knows it."""
    steps = [step for step in history(fleet, job, at) if step["state"] in ("in force", "replaced")]
    starts = [int(str(step["from_us"])) for step in steps]
    ends = [*starts[1:], AFTER_ALL]
    return [(str(step["version"]), a, b) for step, a, b in zip(steps, starts, ends, strict=True)]


def counted(
    fleet: Fleet, parts: Sequence[Stretch], keeps: Callable[[str, int], bool], size_s: int
) -> dict[tuple[str, int], Row]:
    """One pass over all logs: (version, start of a window) -> its rows."""
    totals: dict[tuple[str, int], dict[int, Counter[str]]] = {}
    for agent in fleet.agents:
        for text in agent.lines():
            at, _, rest = text.partition(" ")
            status, size = map(int, rest.rpartition('"')[2].split())
            us = round(float(at) * 1000) * 1000
            if us > fleet.last_s * 1e6 + 1000:
                continue  # a line that closes windows
            for digest, low, high in parts:
                if low <= us < high:
                    key = digest, us - us % (size_s * 1_000_000)
                    cells = totals.setdefault(key, {})
                    if keeps(digest, status):
                        cell = cells.setdefault(status, Counter())
                        cell["hits"] += 1
                        cell["bytes"] += size
    return {
        key: {status: (cell["hits"], cell["bytes"]) for status, cell in row.items()}
        for key, row in sorted(totals.items())
    }


def latest(seen: Seen) -> dict[tuple[str, int], Put]:
    """What holds for each window of each version."""
    found: dict[tuple[str, int], Put] = {}
    for _, put in list(seen.puts):
        known = found.get((put.version, put.start))
        if known is None or known.revision < put.revision:
            found[put.version, put.start] = put
    return {key: put for key, put in found.items() if put.status != "withdrawn"}


def settled(fleet: Fleet, seen: Seen, wanted: Set[tuple[str, int]]) -> dict[tuple[str, int], Row]:
    """The windows once all of them are final."""
    fleet.close_windows()

    def are_final() -> bool:
        found = latest(seen)
        return all(key in found and found[key].status != "open" for key in wanted)

    seen.wait(are_final, lambda: f"not final: {sorted(wanted - latest(seen).keys())}")
    return rows_of(seen, wanted)


def rows_of(seen: Seen, wanted: Set[tuple[str, int]]) -> dict[tuple[str, int], Row]:
    """What holds for these windows."""
    return {
        key: {int(row[1]): (int(row[2]), int(row[3])) for row in put.rows}
        for key, put in latest(seen).items()
        if key in wanted
    }


def stays_exact(fleet: Fleet, seen: Seen, job: str, size_s: int, errors: Sequence[str]) -> list[Stretch]:
    """All windows of all versions are final and equal to the logs, and each window is of the versions in force in it alone.
    errors: the versions that count errors only."""
    parts = stretches(fleet, job)
    truth = counted(fleet, parts, lambda digest, status: digest not in errors or status >= 400, size_s)
    since = min(start for _, start in truth) + size_s * 1_000_000  # the job may have begun within the first
    truth = {key: row for key, row in truth.items() if key[1] >= since}
    assert settled(fleet, seen, truth.keys()) == truth
    strangers = {key for key in latest(seen) if since <= key[1] <= fleet.last_s * 1e6} - truth.keys()
    assert not {key for key in strangers if latest(seen)[key].rows}
    return parts


def test_an_update_cuts_a_window_and_a_rollback_does_too(fleet: Fleet) -> None:
    with watched(fleet, "cut") as seen:
        with fleet.traffic():
            first = version(fleet, "cut")
            seen.wait_finals(2)
            said = fleet.elf("job", "update", "cut", "--sql", ERRORS, at=2)
            _, second = wait_versions(fleet, "cut", 2)
            assert re.fullmatch(
                rf"job cut: version {second} is in force from [-0-9]+ [:.0-9]+ UTC on at 3 of 3 agents; "
                r"that took \d+ ms\n",
                said,
            )
            seen.wait_finals(2)
            wait_versions(fleet, "cut", 2, at=1)
            assert f"version {first} is in force" in fleet.elf("job", "rollback", "cut", at=1)
            seen.wait_finals(2)
            wait_versions(fleet, "cut", 3)
            assert f"version {second} is in force" in fleet.elf("job", "rollback", "cut", "--to", second[:6])
            seen.wait_finals(1)
        to_errors = [{"part": "where", "before": "none", "after": "(status >= 400)"}]
        back = [{"part": "where", "before": "(status >= 400)", "after": "none"}]
        assert [step["differences"] for step in history(fleet, "cut")] == [[], to_errors, back, to_errors]
        table = fleet.elf("job", "history", "cut", "--output", "table")
        assert table.splitlines()[2].count("where none -> (status >= 400)") == 1
        parts = stays_exact(fleet, seen, "cut", WINDOW_S, [second])
        assert [digest for digest, _, _ in parts] == [first, second, first, second]
        # A window at a line has results of both versions, unless the line is so close to its boundary that one has no lines.
        cut = {line_us - line_us % 1_000_000 for _, line_us, _ in parts[1:]}
        assert any({digest for digest, at in latest(seen) if at == start} == {first, second} for start in cut)


def test_a_version_comes_back_within_one_window(fleet: Fleet) -> None:
    with watched(fleet, "long", LONG) as seen:
        with fleet.traffic():
            first = version(fleet, "long")
            wait_until(lambda: time.time() % LONG_S < LONG_S - CHANGES_S, "the window is too short for it")
            fleet.elf("job", "update", "long", "--sql", LONG_ERRORS)
            second = version(fleet, "long")
            seen.wait(lambda: any(put.version == second and put.rows for _, put in seen.puts))
            wait_versions(fleet, "long", 2, at=1)
            fleet.elf("job", "rollback", "long", at=1)
            assert wait_versions(fleet, "long", 3) == [first, second, first]
            parts = stretches(fleet, "long")
            wait_until(lambda: fleet.last_s * 1e6 > parts[2][1] + 100_000, "no lines after the return")
        fleet.last_s += LONG_S
        truth = counted(fleet, parts, lambda digest, status: digest == first or status >= 400, LONG_S)
        window = parts[1][1] - parts[1][1] % (LONG_S * 1_000_000)
        truth = {key: row for key, row in truth.items() if key[1] == window}
        assert set(truth) == {(first, window), (second, window)}
        fleet.close_windows()  # the first version's window is revised, more than once, while its lines arrive
        seen.wait(lambda: rows_of(seen, truth.keys()) == truth, lambda: f"{rows_of(seen, truth.keys())}")
        assert latest(seen)[second, window].covers == parts[1][1:]


@pytest.mark.parametrize("at", ["next", "restate"])
def test_no_window_is_cut(fleet: Fleet, at: str) -> None:
    job = f"whole-{at}"
    with watched(fleet, job) as seen:
        with fleet.traffic():
            seen.wait_finals(2)
            first = version(fleet, job)
            fleet.elf("job", "update", job, "--sql", ERRORS, "--at", at, at=1)
            wait_until(lambda: version(fleet, job) != first, "a0 does not know the second version")
            second = version(fleet, job)
            seen.wait_finals(3)
        parts = stays_exact(fleet, seen, job, WINDOW_S, [second])
        assert parts[-1][1] % 1_000_000 == 0
        starts = Counter(start for _, start in latest(seen))
        assert set(starts.values()) == {1}


def test_a_lake_has_each_window_of_each_version(tmp_path: Path) -> None:
    def lake(number: int) -> str:
        return '[[sink]]\nname = "lake"\nparquet = "lake"\n' if number == 1 else ""

    with Fleet(tmp_path, 3, more=lake) as fleet:
        fleet.start_job("hits", SQL, "--sink", "lake")
        with fleet.watch("hits") as seen:
            with fleet.traffic():
                seen.wait_finals(2)
                fleet.elf("job", "update", "hits", "--sql", ERRORS)
                second = version(fleet, "hits")
                seen.wait_finals(2)
                fleet.elf("job", "rollback", "hits", "--at", "restate", at=2)
                seen.wait_finals(2)
            stays_exact(fleet, seen, "hits", WINDOW_S, [second])
            parts = stretches(fleet, "hits")
            truth = counted(fleet, parts, lambda digest, status: digest != second or status >= 400, WINDOW_S)
            since = min(start for _, start in truth) + 1_000_000
            truth = {key: row for key, row in truth.items() if key[1] >= since and row}
            folder = fleet.agents[1].folder / "lake"

            def held() -> dict[tuple[str, int], Row]:
                return {
                    key: row for key, row in stored(folder).items() if since <= key[1] <= fleet.last_s * 1e6
                }

            wait_until(lambda: held() == truth, "the lake differs from the logs")


def stored(folder: Path) -> dict[tuple[str, int], Row]:
    """The groups of each window of each version in a lake of `SQL`, by the rule of docs/lake.md."""
    from pyarrow.parquet import ParquetFile

    best: dict[tuple[str, int], tuple[Any, ...]] = {}
    rows: dict[tuple[Any, ...], dict[int, tuple[int, int]]] = {}
    for path in folder.rglob("date=*/*.parquet"):
        (digest,) = (part.removeprefix("version=v") for part in path.parts if part.startswith("version=v"))
        for row in ParquetFile(path).read().to_pylist():
            key = digest, round(row["_pane_start"].timestamp() * 1e6)
            revision = row["_revision_epoch"], row["_revision_node"], row["_revision_n"], row["_digest"]
            best[key] = max(best.get(key, revision), revision)
            found = rows.setdefault((*key, *revision), {})
            if row["_status"] != "withdrawn" and row["status"] is not None:
                found[row["status"]] = (row["_acc0"], int(row["_acc2"]))
    return {key: found for key, revision in best.items() if (found := rows[(*key, *revision)])}


def test_what_is_refused_changes_nothing(fleet: Fleet) -> None:
    fleet.start_job("same")
    before = json.loads(fleet.elf("job", "show", "same", "--output", "json"))
    present = before["version"]
    for text in (SQL.lower().replace("count(*)", "COUNT( * )"), f"-- the same\n{SQL}"):
        assert elf(fleet, "job", "update", "same", "--sql", text).output == (
            f"job same has this query already, as version {present}; nothing changes\n"
        )
    refused = {
        (
            "update",
            "same",
            "--sql",
            ERRORS,
            "--expect-version",
            "0123456789ab",
        ): f"has version {present}, not 0123456789ab",
        ("update", "same", "--sql", ERRORS.replace("status >=", "nope >=")): "nope",
        ("update", "nobody", "--sql", ERRORS): "no job is called 'nobody'",
        ("rollback", "same"): "job same has no earlier version",
    }
    for arguments, said in refused.items():
        result = elf(fleet, "job", *arguments)
        assert said in str(result.exception), result.exception
    outlook = fleet.elf(
        "job", "update", "same", "--sql", ERRORS, "--dry-run", "--expect-version", present[:6]
    )
    assert "where: none  ->  (status >= 400)" in outlook
    assert outlook.endswith("nothing was changed\n")
    assert json.loads(fleet.elf("job", "show", "same", "--output", "json")) == before
    wait_until(
        lambda: [step["state"] for step in history(fleet, "same", at=2)] == ["in force"],
        "a2 knows another one",
    )
    fleet.elf("job", "stop", "same", "--now")
    result = elf(fleet, "job", "update", "same", "--sql", ERRORS)
    assert "job same was stopped, so there is nothing to change" in str(result.exception)


def at_once(fleet: Fleet, job: str, *arguments: str) -> list[subprocess.Popen[str]]:
    """An update at each agent, all at the same moment, to a query of its own."""
    return [
        subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "elf",
                    "job",
                    "update",
                    job,
                    *arguments,
                    "--agent",
                    str(agent.socket),
                ),
                *("--sql", SQL.replace("GROUP BY", f"WHERE status > {number} GROUP BY")),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, agent in enumerate(fleet.agents)
    ]


def test_of_operators_at_three_agents_who_expect_one_version_one_changes_it(fleet: Fleet) -> None:
    with watched(fleet, "hits") as seen:
        with fleet.traffic():
            first = version(fleet, "hits")
            seen.wait_finals(1)
            commands = at_once(fleet, "hits", "--expect-version", first)
            told = [command.communicate(timeout=WAIT_S) for command in commands]
            codes = [command.returncode for command in commands]
            assert sorted(codes) == [0, 2, 2], told
            second = version(fleet, "hits")
            assert f"version {second} is in force" in told[codes.index(0)][0]
            refused = f"--expect-version: job hits has version {second}, not {first}; nothing was changed"
            assert all(refused in told[at][1] for at in range(3) if codes[at])
            seen.wait_finals(2)
        parts = stays_exact(fleet, seen, "hits", WINDOW_S, [])
        assert [digest for digest, _, _ in parts] == [first, second]


def test_operators_at_three_agents_who_expect_nothing_change_a_job_in_turn(fleet: Fleet) -> None:
    fleet.start_job("hits")
    first = version(fleet, "hits")
    commands = at_once(fleet, "hits")
    told = [command.communicate(timeout=WAIT_S) for command in commands]
    assert [command.returncode for command in commands] == [0, 0, 0], told
    versions = {re.findall(r"version (\w+) is in force", out)[0] for out, _ in told}
    for at in range(3):
        steps = history(fleet, "hits", at)
        assert (steps[0]["version"], {step["version"] for step in steps[1:]}) == (first, versions)
        assert [step["state"] for step in steps][-1] == "in force"


def test_restate_names_the_agents_that_have_left_and_needs_force(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.start_job("hits", lateness="600s")
    first = version(fleet, "hits")
    with fleet.watch("hits") as seen:
        fleet.log()
        seen.wait(lambda: bool(seen.puts), lambda: "no window")
    fleet.elf("mesh", "leave", at=2)
    name = fleet.agents[2].name
    restate = ("job", "update", "hits", "--sql", ERRORS, "--at", "restate")
    gone = ("--dry-run", "--at", "restate")
    wait_until(
        lambda: elf(fleet, "job", "update", "hits", "--sql", ERRORS, *gone).exit_code != 0,
        "nobody knows that it left",
    )
    said = [str(elf(fleet, *restate, *more).exception) for more in ((), ("--dry-run",))]
    monkeypatch.setattr(change, "_oldest_expected", lambda former, held: AFTER_ALL)
    said.append(
        str(elf(fleet, *restate).exception)
    )  # the master knows windows that wait longer than was expected
    for text in said:
        assert re.search(
            rf"cannot be read again at agents that have left, were revoked or have lost logs since [-0-9]+ [:.0-9]+ UTC: {name};",
            text,
        )
        assert "nothing was changed; change the job --at next, or add --force" in text
    assert version(fleet, "hits") == first
    monkeypatch.undo()
    assert "is in force" in fleet.elf(*restate, "--force")
    assert "is in force" in fleet.elf("job", "rollback", "hits")
    query = SQL.replace("GROUP BY", "WHERE status >= :least GROUP BY")
    fleet.elf("job", "update", "hits", "--sql", query, "--param", "least=300")
    fleet.elf("job", "try", "hits", "--set", "least=500", "--for", "20m", "--windows", "0")
    for command in (("job", "set", "hits", "least=400"), ("job", "promote", "hits")):
        assert "or add --force" in str(elf(fleet, *command, "--at", "restate", "--dry-run").exception)
        assert "nothing was changed" in fleet.elf(*command, "--at", "restate", "--dry-run", "--force")
    assert "is in force" in fleet.elf("job", "promote", "hits", "--at", "restate", "--force")
    assert "is in force" in fleet.elf("job", "set", "hits", "least=400", "--at", "restate", "--force")


def hits(seen: Seen) -> int:
    return sum(hits for put in seen.latest.values() for hits, _ in totals_of(put).values())


def test_restate_names_the_agents_whose_logs_are_gone(fleet: Fleet) -> None:
    fleet.start_job("hits", lateness="600s")
    first = version(fleet, "hits")
    with fleet.watch("hits") as seen:
        fleet.log()
        seen.wait(lambda: hits(seen) == 3, lambda: "no window")
    agent = fleet.agents[2]
    restate = ("job", "update", "hits", "--sql", ERRORS, "--at", "restate")
    assert "nothing was changed" in fleet.elf(*restate, "--dry-run")
    agent.stop()
    agent.log.unlink()
    agent.start()
    wait_until(lambda: elf(fleet, *restate, "--dry-run").exit_code != 0, "nobody knows that its log is gone")
    text = str(elf(fleet, *restate).exception)
    assert re.search(rf"have lost logs since [-0-9]+ [:.0-9]+ UTC: {agent.name};", text)
    assert version(fleet, "hits") == first
    assert "is in force" in fleet.elf(*restate, "--force")


def test_a_change_needs_an_operators_signature(tmp_path: Path) -> None:
    with Fleet(tmp_path, 2, security="curve") as fleet:
        fleet.start_job("hits")
        assert "must be signed" in str(elf(fleet, "job", "update", "hits", "--sql", ERRORS).exception)
        keys = ("--keys", str(fleet.operator))
        assert "is in force" in fleet.elf("job", "update", "hits", "--sql", ERRORS, *keys, at=1)
        wait_versions(fleet, "hits", 2)
        assert "is in force" in fleet.elf("job", "rollback", "hits", *keys)
        assert "must be signed" in str(elf(fleet, "job", "try", "hits", "--sql", ERRORS).exception)
        fleet.elf("job", "try", "hits", "--sql", ERRORS, "--windows", "0", *keys)
        assert "must be signed" in str(elf(fleet, "job", "abort", "hits", at=1).exception)
        assert "is in force" in fleet.elf("job", "promote", "hits", *keys, at=1)


def test_a_change_while_the_master_dies(tmp_path: Path) -> None:
    with Fleet(tmp_path, 4) as fleet:
        fleet.start_job("hits")
        master = fleet.master("hits")
        at = next(number for number, agent in enumerate(fleet.agents) if agent is not master)
        with fleet.watch("hits", at) as seen:
            with fleet.traffic():
                seen.wait_finals(2)
                master.kill()
                assert "is in force" in fleet.elf("job", "update", "hits", "--sql", ERRORS, at=at)
                master.start()
                fleet.wait_joined()
                seen.wait_finals(3)
            second = version(fleet, "hits")
            parts = stays_exact(fleet, seen, "hits", WINDOW_S, [second])
            assert [digest for digest, _, _ in parts][1:] == [second]


def test_an_update_names_the_agents_that_have_not_confirmed_it(fleet: Fleet) -> None:
    fleet.start_job("hits")
    asked = fleet.agents.index(fleet.master("hits"))
    silent = fleet.agents[asked - 1]
    with silent.paused():
        said = fleet.elf("job", "update", "hits", "--sql", ERRORS, at=asked)
    assert "at 2 of 3 agents; that took" in said
    assert said.splitlines()[1:] == [f"{silent.name} has not confirmed it: it does not answer"]
    wait_versions(fleet, "hits", 2, at=asked)


def test_a_watch_marks_where_the_version_changes(fleet: Fleet) -> None:
    fleet.start_job("hits")
    agent = ("--agent", str(fleet.agents[1].socket))
    watch = subprocess.Popen(
        [sys.executable, "-m", "elf", "job", "watch", "hits", "--output", "json", *agent],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with fleet.traffic():
        first = version(fleet, "hits")
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())["_elf"]["version"] == first
        fleet.elf("job", "update", "hits", "--sql", ERRORS)
        second = version(fleet, "hits")
        while json.loads(watch.stdout.readline())["_elf"]["version"] != second:
            pass
        fleet.elf("job", "rollback", "hits")
        while json.loads(watch.stdout.readline())["_elf"]["version"] != first:
            pass
    watch.send_signal(signal.SIGINT)
    marks = [line for line in watch.communicate(timeout=WAIT_S)[1].splitlines() if "version" in line]
    assert [re.findall(r"version (\w+) is in force from", mark) for mark in marks] == [[second], [first]]
