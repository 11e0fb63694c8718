"""Job files on real agents: a folder becomes the mesh's jobs, in one command at any agent, and nothing else is touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elf.typer_cli import app
from tests.rigs.agents.mesh_rig import SQL, Fleet, wait_until

ERRORS = SQL.replace("GROUP BY", "WHERE status >= 400 GROUP BY")
HEAD = '-- +++\n-- lateness = "300ms"\n-- +++\n'


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path / "fleet", 3) as fleet:
        fleet.wait_known()
        yield fleet


@pytest.fixture
def web(tmp_path: Path) -> Path:
    """A folder of job files."""
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "hits.sql").write_text(HEAD + SQL)
    (folder / "errors.toml").write_text(f"name = 'errs'\nlateness = '300ms'\nsql = '''\n{ERRORS}\n'''\n")
    return folder


def elf(fleet: Fleet, *arguments: str, at: int = 0) -> Result:
    return CliRunner().invoke(app, [*arguments, "--agent", str(fleet.agents[at].socket)])


def jobs(fleet: Fleet, at: int = 0) -> dict[str, tuple[str, str, str]]:
    """Job -> its state, its label, and whether it was changed since its start, as that agent knows them."""
    found = json.loads(fleet.elf("job", "list", "--output", "json", at=at))
    return {
        job["name"]: (job["state"], job["label"], "changed" if job["number"] > 1 else "as started")
        for job in found
    }


def applied(fleet: Fleet, folder: Path, *options: str, at: int = 0) -> dict[str, str]:
    """Job -> what was done to it."""
    said = json.loads(fleet.elf("job", "apply", "-f", str(folder), "--output", "json", *options, at=at))
    assert not any(job["error"] for job in said["jobs"])
    return {job["name"]: job["action"] for job in said["jobs"]}


def known_everywhere(fleet: Fleet, wanted: dict[str, tuple[str, str, str]]) -> None:
    for at in range(len(fleet.agents)):
        wait_until(lambda at=at: jobs(fleet, at) == wanted, f"agent {at} has {jobs(fleet, at)}")  # type: ignore[misc]


def test_a_folder_becomes_the_meshs_jobs(fleet: Fleet, web: Path) -> None:
    fleet.start_job("own")
    before = jobs(fleet)
    outlook = fleet.elf("job", "apply", "-f", str(web), "--dry-run", at=1)
    assert outlook.endswith("2 to start; nothing was changed\n")
    assert jobs(fleet) == before

    assert applied(fleet, web, at=1) == {"errs": "start", "hits": "start"}
    first = {
        "own": ("running", "", "as started"),
        "errs": ("running", "web", "as started"),
        "hits": ("running", "web", "as started"),
    }
    known_everywhere(fleet, first)
    assert applied(fleet, web, at=2) == {"errs": "unchanged", "hits": "unchanged"}
    assert jobs(fleet) == first

    with fleet.watch("hits") as seen, fleet.traffic():
        seen.wait_finals(2)
        (web / "hits.sql").write_text(HEAD + ERRORS)
        outlook = fleet.elf("job", "apply", "-f", str(web), "--dry-run")
        assert "where: none  ->  (status >= 400)" in outlook
        said = fleet.elf("job", "apply", "-f", str(web), "--prune", at=2)
        assert "updated    hits" in said
        assert said.endswith("1 updated, 1 unchanged\n")
        seen.wait_finals(2)
    known_everywhere(fleet, first | {"hits": ("running", "web", "changed")})

    (web / "hits.sql").unlink()
    refused = elf(fleet, "job", "apply", "-f", str(web), "--prune")
    assert "would stop 1 of the 3 jobs that run (hits), more than a fifth" in str(refused.exception)
    assert applied(fleet, web) == {"errs": "unchanged"}
    assert applied(fleet, web, "--prune", "--yes") == {"errs": "unchanged", "hits": "stop"}
    known_everywhere(fleet, first | {"hits": ("stopped", "web", "changed")})
    (web / "hits.sql").write_text(HEAD + SQL)
    assert applied(fleet, web) == {"errs": "unchanged", "hits": "start"}
    wait_until(partial(fleet.master_name, "hits", fleet.agents[2]), "nobody serves hits")


def test_what_a_file_starts_is_written_as_that_file(fleet: Fleet, web: Path, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    fleet.elf("job", "start", "hits", "-f", str(web / "hits.sql"))
    fleet.start_job("own", ERRORS, "--keep", "10m", "--emit", "90ms", lateness="1500ms")
    for name in ("hits", "own"):
        (copies / f"{name}.toml").write_text(fleet.elf("job", "show", name, "--output", "file"))
    assert applied(fleet, copies) == {"hits": "unchanged", "own": "unchanged"}
    assert fleet.elf("job", "start", "own", "-f", str(copies / "own.toml")) == (
        "job own runs already, with this query; nothing was changed\n"
    )
    before = (copies / "own.toml").read_text()
    fleet.elf("job", "stop", "own", "--now")
    assert applied(fleet, copies) == {"hits": "unchanged", "own": "start"}
    assert fleet.elf("job", "show", "own", "--output", "file") == before
    assert jobs(fleet)["own"] == ("running", "copies", "changed")


def test_one_error_and_nothing_is_done(fleet: Fleet, web: Path) -> None:
    (web / "wrong.sql").write_text("SELECT window, nope\nFROM access GROUP BY window(time, '1 second')")
    (web / "sink.toml").write_text(f"sinks = ['lake']\nsql = '''{SQL}'''")
    (web / "twice.toml").write_text(f"name = 'hits'\nsql = '''{SQL}'''")
    (web / "late.sql").write_text(f"-- +++\n-- lateness = 5\n-- +++\n{SQL}")
    result = elf(fleet, "job", "apply", "-f", str(web))
    assert str(result.exception) == f"{web}: 4 files have errors; nothing was done"
    said = result.stderr
    for error in (
        f"{web}/wrong.sql:1: query: ",
        f"{web}/sink.toml:1: sinks: no agent of the mesh has a sink 'lake'",
        f"{web}/twice.toml: job hits is also in {web}/hits.sql",
        f"{web}/late.sql:2: lateness: expected a duration",
    ):
        assert f"elf: {error}" in said
    assert jobs(fleet) == {}


def test_a_file_beside_the_command(fleet: Fleet, web: Path) -> None:
    path = str(web / "hits.sql")
    outlook = fleet.elf("job", "start", "hits", "-f", path, "--dry-run")
    assert "at 3 agents\n" in outlook
    assert "\nlateness: 300ms\n" in outlook
    assert "\nwindow: 1 s\n" in outlook
    assert outlook.endswith("nothing was changed\n")
    assert jobs(fleet) == {}
    fleet.elf("job", "start", "hits", "-f", path)
    wait_until(partial(fleet.master_name, "hits", fleet.agents[0]), "nobody serves hits")
    Path(path).write_text(ERRORS)
    assert "is in force from" in fleet.elf("job", "update", "hits", "-f", path)
    assert "has this query already" in fleet.elf("job", "update", "hits", "-f", path)
    for arguments, expected in {
        ("start", "hits"): "expected a query (--sql SQL), or a job file (-f FILE)",
        ("start", "hits", "-f", path, "--lateness", "1s"): "--lateness: with -f the file says this",
        ("start", "hits", "-f", path, "--sql", SQL): "--sql: with -f the file says this",
        ("start", "hits", "-f", f"{web}/errors.toml"): "errors.toml:1: name: the file is of job errs",
        ("update", "hits", "-f", f"{web}/errors.toml"): "errors.toml:1: name: the file is of job errs",
        ("update", "hits", "-f", f"{web}/none.sql"): "none.sql: No such file or directory",
    }.items():
        result = elf(fleet, "job", *arguments)
        assert expected in str(result.exception)
    Path(path).write_text(HEAD.replace("300ms", "1s") + SQL)
    assert "\nlateness: 300ms  ->  1s\n" in fleet.elf("job", "update", "hits", "-f", path)


def test_an_operator_signs_what_is_applied(tmp_path: Path, web: Path) -> None:
    with Fleet(tmp_path / "fleet", 2, security="curve") as fleet:
        refused = elf(fleet, "job", "apply", "-f", str(web))
        assert "must be signed" in str(refused.exception)
        assert jobs(fleet) == {}
        keys = ("--keys", str(fleet.operator))
        assert applied(fleet, web, *keys) == {"errs": "start", "hits": "start"}
        assert applied(fleet, web) == {"errs": "unchanged", "hits": "unchanged"}
        (web / "hits.sql").write_text(HEAD + ERRORS)
        assert applied(fleet, web, *keys) == {"errs": "unchanged", "hits": "update"}


def test_a_file_has_values_of_parameters(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "errs.toml"
    query = SQL.replace("GROUP BY", "WHERE status >= :least AND path <> :path GROUP BY")
    file.write_text(f"sql = '''\n{query}\n'''\n[params]\nleast = 400\npath = \"it's\"\n")
    fleet.elf("job", "start", "errs", "-f", str(file), "--param", "least=500")
    assert fleet.elf("job", "show", "errs", "--output", "file").endswith(
        '[params]\nleast = 500\npath = "it\'s"\n'
    )
    assert "least: 500  ->  400" in fleet.elf("job", "update", "errs", "-f", str(file), "--dry-run")
    assert "is in force from" in fleet.elf("job", "update", "errs", "-f", str(file))
    said = elf(fleet, "job", "update", "errs", "-f", str(file), "--param", "more=1")
    assert "more" in str(said.exception)
    file.write_text(fleet.elf("job", "show", "errs", "--output", "file"))
    assert "nothing changes" in fleet.elf("job", "update", "errs", "-f", str(file))
