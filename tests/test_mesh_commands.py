"""`elf job` and `elf mesh` as an operator types them, against agents whose mesh is simulated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from elf.typer_cli import main
from tests.hosted import Mesh

SQL = "SELECT window, path, count(*) AS hits, sum(bytes) AS bytes FROM access GROUP BY window(time, '2 seconds'), path"


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    with Mesh(tmp_path) as mesh:
        yield mesh


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


class TestJobs:
    def test_start_list_stop(self, mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
        first, second = str(mesh.socket(0)), str(mesh.socket(1))
        code, out, err = run(
            capsys, "job", "start", "hits", "--sql", SQL, "--lateness", "1s", "--agent", first
        )
        assert (code, err) == (0, "")
        assert "elf job watch hits" in out
        mesh.wait_for(lambda: mesh.masters("hits") == 1)
        code, out, err = run(capsys, "job", "list", "--output", "json", "--agent", second)
        (job,) = json.loads(out)
        assert job["name"] == "hits"
        assert job["state"] == "running"
        assert job["lateness_us"] == 1_000_000
        assert job["agents"] == 3
        assert job["sql"] == SQL
        assert job["master"].startswith("web")
        code, out, err = run(capsys, "job", "stop", "hits", "--agent", second)
        assert code == 0
        mesh.wait_for(lambda: mesh.masters("hits") == 0)
        code, out, err = run(capsys, "job", "list", "--agent", first, "--output", "table")
        assert "stopped" in out
        code, out, err = run(capsys, "job", "start", "hits", "--sql", SQL, "--agent", first)
        assert code == 0
        mesh.wait_for(lambda: mesh.masters("hits") == 1)

    def test_a_name_that_runs_is_refused_unless_it_asks_the_same(
        self, mesh: Mesh, capsys: pytest.CaptureFixture[str]
    ) -> None:
        agent = ("--agent", str(mesh.socket()))
        assert run(capsys, "job", "start", "hits", "--sql", SQL, *agent)[0] == 0
        code, out, _ = run(capsys, "job", "start", "hits", "--sql", SQL, *agent)
        assert code == 0
        assert "runs already" in out
        code, _, err = run(capsys, "job", "start", "hits", "--sql", SQL.replace("hits", "n"), *agent)
        assert code == 2
        assert err.count("\n") == 1
        assert "elf job stop hits" in err

    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            (["start", "a", "--sql", "SELECT count(*) FROM access WHERE nope > 1"], "nope"),
            (["start", "a", "--sql", SQL, "--lateness", "5"], "--lateness"),
            (["start", "a", "--sql", SQL, "--emit", "1ms"], "--emit"),
            (
                ["start", "a", "--sql", SQL.replace("access", "acess"), "--source", "acess"],
                "did you mean access",
            ),
            (["start", "a", "--sql", SQL, "--sink", "lake"], "[[sink]]"),
            (["stop", "hit"], "did you mean hits?"),
        ],
    )
    def test_what_is_wrong_is_said_in_a_line(
        self, mesh: Mesh, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
    ) -> None:
        agent = ("--agent", str(mesh.socket()))
        assert run(capsys, "job", "start", "hits", "--sql", SQL, *agent)[0] == 0
        code, out, err = run(capsys, "job", *argv, *agent)
        assert code == 2
        assert out == ""
        assert said in err

    def test_no_agent(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = run(capsys, "job", "list", "--agent", str(tmp_path / "none.sock"))
        assert code == 1
        assert err.count("\n") == 1
        assert "elf agent run" in err
