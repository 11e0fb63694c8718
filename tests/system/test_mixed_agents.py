"""Real agents of two versions: the older one is named, serves no job that it cannot decode, is missing in its windows, and takes
part, with all its lines, once it is upgraded."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from elf.errors import UsageError
from elf.srt.messages.results import Put
from elf.typer_cli import app
from tests.rigs.agents.mesh_rig import SQL, Agent, Fleet, wait_until
from tests.rigs.agents.seen import Seen

OLDER = """
from elf.jobmaster.functions import compile
from elf.jobmaster.plan import signatures
del signatures.SIGNATURES["split_part"]
"""
"""What a process of an agent loads whose version of elf did not have that function yet."""
NEW = SQL.replace("GROUP BY", "WHERE split_part(path, '/', 2) = 'p' GROUP BY")
"""Counts what `SQL` counts."""


def restart(fleet: Fleet, agent: Agent, python_path: Path | None) -> None:
    agent.stop()
    agent.python_path = python_path
    agent.start()
    fleet.wait_joined()


def problems(fleet: Fleet, at: int) -> str:
    status = json.loads(fleet.elf("mesh", "status", "--output", "json", at=at))
    return "\n".join(status["problems"])


def test_an_older_agent_is_named_and_missing_until_it_is_upgraded(tmp_path: Path) -> None:
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "sitecustomize.py").write_text(OLDER)
    with Fleet(tmp_path / "fleet", 4) as fleet:
        fleet.start_job("hits")
        old = fleet.master("hits")
        restart(fleet, old, tmp_path / "older")
        at = next(number for number, agent in enumerate(fleet.agents) if agent is not old)
        wait_until(lambda: fleet.master("hits") is old, "the older agent does not serve")
        with fleet.watch("hits", at) as seen:
            check(fleet, seen, old, at)


def is_of(put: Put, version: str, agents: int) -> bool:
    about = (put.version, put.agents_reporting, put.agents_expected)
    return put.status != "open" and about == (version, agents, 4)


def check(fleet: Fleet, seen: Seen, old: Agent, at: int) -> None:
    named = f"1 of 4 agents cannot run this query ({old.name}): their version of elf does not know its function split_part"
    with fleet.traffic():
        seen.wait_finals(1)
        update = ["job", "update", "hits", "--sql", NEW, "--agent", str(fleet.agents[at].socket)]
        refused = CliRunner().invoke(app, [*update, "--strict"])
        assert isinstance(refused.exception, UsageError)
        assert f"--strict: {named}" in str(refused.exception)
        taken = CliRunner().invoke(app, update)
        assert taken.exit_code == 0, taken.output
        assert named in " ".join(taken.output.split())
        version = json.loads(fleet.elf("job", "show", "hits", "--output", "json", at=at))["version"]
        seen.wait(
            lambda: any(is_of(put, version, 3) for put in seen.latest.values()),
            lambda: "no window of three agents",
        )
        assert fleet.master("hits") is not old
        assert f"job hits: {named}" in problems(fleet, at)
        restart(fleet, old, None)
        wait_until(lambda: "cannot run" not in problems(fleet, at), "its upgrade is not noticed")
    fleet.close_windows()
    counted = fleet.counted()
    # Not from `latest`: the control line splits the first window, whose other half may be the newest for its start.
    first = min(put.start for _, put in seen.puts if is_of(put, version, 3))
    later = [start for start in counted if start > first]
    assert later

    def is_whole(start: int) -> bool:
        return start in seen.latest and is_of(seen.latest[start], version, 4)

    seen.wait(lambda: all(map(is_whole, later)), lambda: "windows lack the upgraded agent")
    totals = seen.totals()
    assert {start: totals[start] for start in later} == {start: counted[start] for start in later}
