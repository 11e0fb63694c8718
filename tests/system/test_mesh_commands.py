"""`elf job` and `elf mesh` as an operator types them, against agents whose mesh is simulated."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from elf.agent.commands.jobs.watch import windows_of
from elf.agent.commands.process.signals import Stop
from elf.agent.control.client import Control
from elf.agent.control.protocol import JobWatch, Published, Versions
from elf.srt.codec.wire import decode
from elf.srt.messages.ids import job_id
from elf.srt.messages.results import Put
from elf.srt.security.certificates import Authority, Role
from elf.srt.security.files import save_keys
from elf.typer_cli import main
from tests.rigs.hosted import SECOND, Mesh

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
        mesh.wait_served("hits")
        code, out, err = run(capsys, "job", "list", "--output", "json", "--agent", second)
        (job,) = json.loads(out)
        assert job["name"] == "hits"
        assert job["state"] == "running"
        assert job["lateness_us"] == 1_000_000
        assert job["agents"] == 3
        assert job["sql"] == SQL
        assert job["master"].startswith("web")
        code, out, err = run(capsys, "job", "stop", "hits", "--now", "--agent", second)
        assert code == 0
        mesh.wait_stopped("hits")
        code, out, err = run(capsys, "job", "list", "--agent", first, "--output", "table")
        assert "stopped" in out
        code, out, err = run(capsys, "job", "start", "hits", "--sql", SQL, "--agent", first)
        assert (
            (code, out)
            == (
                0,
                "job hits was started; windows are final 1m after their end (--lateness sets it); "  # no agent says its format
                "see its windows with: elf job watch hits\n",
            )
        )
        mesh.wait_served("hits")
        assert run(capsys, "job", "start", "hits", "--sql", SQL, "--agent", second)[0] == 0  # the same

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
            (
                ["start", "", "--sql", SQL],
                "NAME: expected a name of at most 64 letters, digits, _ - and ., found ''",
            ),
            (["start", "a/../b", "--sql", SQL], "found 'a/../b'"),
            (["start", "n" * 300, "--sql", SQL], "n…'"),
            (["start", "grüße\n\x1b[31m", "--sql", SQL], "found 'grüße\\n\\x1b[31m'"),
            (["start", "\udcff", "--sql", SQL], "found '\\udcff'"),
            (["stop", "n" * 300], "no job is called"),
            (["watch", ""], "no job is called ''"),
            (["watch", "\udcff"], "no job is called"),
            (["start", "a", "--sql", SQL, "--keys", "nowhere.keys"], "--keys: nowhere.keys: "),
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

    def test_a_folder_of_jobs(self, mesh: Mesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder, agent = tmp_path / "web", ("--agent", str(mesh.socket()))
        folder.mkdir()
        apply = ("job", "apply", "-f", str(folder), *agent)
        assert run(capsys, *apply) == (
            2,
            "",
            f"elf: -f: {folder}: expected job files (.toml or .sql), found none; nothing was done\n",
        )
        (folder / "hits.sql").write_text(SQL)
        code, out, err = run(capsys, *apply)
        assert (code, out.splitlines()[-1], err) == (0, "1 started", "")
        (folder / "wrong.sql").write_text("SELECT")
        code, out, err = run(capsys, *apply)
        assert (code, out, err.count("\n")) == (2, "", 2)
        assert err.endswith(f"elf: {folder}: 1 file has an error; nothing was done\n")
        mesh.wait_for(lambda: mesh.masters("hits") == 1)

    @pytest.mark.parametrize("role", ["agent", "reader"])
    def test_keys_that_sign_no_jobs_are_refused_here(
        self, mesh: Mesh, tmp_path: Path, capsys: pytest.CaptureFixture[str], role: Role
    ) -> None:
        save_keys(Authority().issue("bob", role, int(time.time())), tmp_path / "bob.keys")
        keys = ("--keys", str(tmp_path / "bob.keys"), "--agent", str(mesh.socket()))
        code, _, err = run(capsys, "job", "start", "hits", "--sql", SQL, *keys)
        assert (code, err.count("\n")) == (2, 1)
        assert f"the keys of bob, whose role is {role}; jobs are signed with an operator's" in err

    def test_a_job_that_was_stopped_has_no_tree(self, mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
        agent = ("--agent", str(mesh.socket()))
        assert run(capsys, "job", "start", "hits", "--sql", SQL, *agent)[0] == 0
        assert run(capsys, "job", "stop", "hits", "--now", *agent)[0] == 0
        assert run(capsys, "mesh", "tree", "hits", *agent) == (
            2,
            "",
            "elf: job hits was stopped, so it has no tree\n",
        )

    def test_no_agent(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = run(capsys, "job", "list", "--agent", str(tmp_path / "none.sock"))
        assert code == 1
        assert err.count("\n") == 1
        assert "elf agent run" in err


class TestMesh:
    def test_status_names_members_and_what_is_wrong(
        self, mesh: Mesh, capsys: pytest.CaptureFixture[str]
    ) -> None:
        mesh.hosts[2].actor.clock_us += 3 * SECOND
        agent = ("--agent", str(mesh.socket()))
        assert run(capsys, "job", "start", "hits", "--sql", SQL, *agent)[0] == 0
        mesh.wait_served("hits")
        code, out, _ = run(capsys, "mesh", "status", "--output", "json", *agent)
        assert code == 0
        status = json.loads(out)
        members = {member["name"]: member for member in status["members"]}
        assert list(members) == ["web0", "web1", "web2"]
        assert {member["state"] for member in members.values()} == {"alive"}
        assert status["me"] == members["web0"]["id"]
        assert sum(member["roles"]["master"] for member in members.values()) == 1
        assert all(member["roles"]["worker"] == 1 for member in members.values())
        assert all(member["version"] == "1.0" for member in members.values())
        # Virtual time runs fast: a busy machine's milliseconds are a tenth of a second there.
        assert abs(members["web2"]["skew_us"] - 3 * SECOND) < SECOND
        assert abs(members["web1"]["skew_us"]) < SECOND
        (problem, *_) = [problem for problem in status["problems"] if problem.startswith("web2: ")]
        assert re.match(r"web2: its clock is [23]\.\d s ahead", problem)
        code, out, _ = run(capsys, "mesh", "status", "--output", "table", *agent)
        assert "web1" in out
        assert re.search(r"^web2 .*\+[23]\d\d\d\.\d ms", out, re.MULTILINE)
        assert "problem: web2" in out

    def test_a_dead_member_is_named(self, mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
        mesh.in_world(lambda: mesh.world.crash(mesh.hosts[1].actor))
        _, out, _ = run(capsys, "mesh", "status", "--output", "json", "--agent", str(mesh.socket()))
        status = json.loads(out)
        states = {member["name"]: member["state"] for member in status["members"]}
        assert states["web1"] in ("suspect", "dead")  # it was asked, and did not answer
        assert any(problem.startswith("web1: does not answer") for problem in status["problems"])

    def test_a_member_whose_process_has_ended_is_named_so(
        self, mesh: Mesh, capsys: pytest.CaptureFixture[str]
    ) -> None:
        mesh.in_world(lambda: mesh.world.crash(mesh.hosts[1].actor, process=True))

        def is_seen() -> bool:
            here = mesh.hosts[0].actor.node
            assert here is not None
            return mesh.hosts[1].actor.id in here.status(1, 0).ended

        mesh.wait_for(is_seen)
        agent = ("--agent", str(mesh.socket()))
        _, out, _ = run(capsys, "mesh", "status", "--output", "json", *agent)
        status = json.loads(out)
        (ended,) = [member for member in status["members"] if member["name"] == "web1"]
        assert ended["state"] == "ended"
        assert ended["ended_s"] > 0
        (problem,) = [problem for problem in status["problems"] if problem.startswith("web1: ")]
        assert re.match(r"web1: its process ended [0-9ms]+ ago; see its log, and start it again", problem)
        _, out, _ = run(capsys, "mesh", "status", "--output", "table", *agent)
        assert re.search(r"^web1 .* ended ", out, re.MULTILINE)

    def test_tree(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with Mesh(tmp_path, nodes=24) as mesh:
            agent = ("--agent", str(mesh.socket(7)))
            assert run(capsys, "job", "start", "hits", "--sql", SQL, *agent)[0] == 0
            mesh.wait_served("hits")
            root: dict[str, Any] = {}

            def is_told_as_it_is() -> bool:
                nonlocal root
                code, out, _ = run(capsys, "mesh", "tree", "hits", "--output", "json", *agent)
                assert code == 0
                root = json.loads(out)
                return edges_of(root) == edges(mesh, "hits")

            # A node that moves to another parent meanwhile may be told where it was.
            mesh.wait_for(lambda: mesh.tree_size("hits") == 24 and is_told_as_it_is())
            assert all(set(node) >= {"name", "id", "children"} for node in nodes_of(root))
            assert sorted(node["name"] for node in nodes_of(root)) == sorted(f"web{i}" for i in range(24))
            master = next(host for host in mesh.hosts if host.node.seats[job_id("hits")].master is not None)
            assert root["id"] == master.node.id.hex()
            _, dot, _ = run(capsys, "mesh", "tree", "hits", "--output", "dot", *agent)
            assert dot.count(" -> ") == 23
            _, text, _ = run(capsys, "mesh", "tree", "hits", *agent)
            assert len(text.splitlines()) == 24
            code, _, err = run(capsys, "mesh", "tree", "hit", *agent)
            assert code == 2
            assert "did you mean hits?" in err


def nodes_of(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [node, *(below for child in node["children"] for below in nodes_of(child))]


def edges_of(root: dict[str, Any]) -> dict[str, str]:
    """Child -> parent, as the command says."""
    return {child["id"]: node["id"] for node in nodes_of(root) for child in node["children"]}


def edges(mesh: Mesh, job: str) -> dict[str, str]:
    """Child -> parent, as the agents themselves know."""
    parents = {host.node.id: host.node.seats[job_id(job)].tree.parent for host in mesh.hosts}
    return {child.hex(): parent.hex() for child, parent in parents.items() if parent is not None}


class TestWatch:
    def test_windows_are_exact_and_say_so(self, mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
        agent = ("--agent", str(mesh.socket(1)))
        assert run(capsys, "job", "start", "hits", "--sql", SQL, "--lateness", "3s", *agent)[0] == 0
        code, out, err = run(capsys, "job", "watch", "hits", "--windows", "3", "--output", "json", *agent)
        assert (code, err) == (0, "")
        rows = [json.loads(line) for line in out.splitlines()]
        finals: dict[str, dict[str, int]] = {}
        last: dict[str, list[Any]] = {}
        for row in rows:
            about = row["_elf"]
            assert about["job"] == "hits"
            start = row["window"]["start"]
            assert last.get(start, []) <= about["revision"]
            last[start] = about["revision"]
            epoch, node, n = about["revision"]
            assert epoch >= 1
            assert len(node) == 48  # and the process
            assert n >= 1
            if about["status"] != "open":
                assert about["agents_reporting"] == about["agents_expected"] == 3
                assert about["lines_read"] == about["lines_parsed"] > 0
                assert about["lines_rejected"] == about["lines_late"] == 0
                finals.setdefault(start, {})[row["path"]] = row["hits"]
        assert len(finals) == 3
        for start, hits in finals.items():
            assert hits == mesh.truth(start, 2 * SECOND)
        code, out, _ = run(capsys, "job", "watch", "hits", "--windows", "1", "--output", "csv", *agent)
        assert (code, out.splitlines()[0][:41]) == (0, "window_start,window_end,path,hits,bytes,e")
        assert any(row["elf_status"] == "final" for row in csv.DictReader(io.StringIO(out)))

    def test_a_signal_is_heard_where_there_is_always_more(self) -> None:
        class Endless:
            has_more = True
            told = 0

            def ask(self, request: JobWatch) -> Iterator[Versions]:
                while self.told < 1_000:
                    self.told += 1
                    if self.told == 3:
                        stop.event.set()
                    yield Versions({})

        stop, control = Stop(), Endless()
        assert list(windows_of(cast(Control, control), "hits", stop)) == []
        assert control.told == 3

    def test_who_hangs_up_is_forgotten(self, mesh: Mesh) -> None:
        agent = str(mesh.socket(2))
        assert main(["job", "start", "hits", "--sql", SQL, "--agent", agent]) == 0
        with Control(Path(agent)) as control:
            answers = control.ask(JobWatch("hits"))
            assert isinstance(next(answers), Versions)
            assert mesh.watched("hits") == 1
        mesh.wait_for(lambda: mesh.watched("hits") == 0)

    def test_a_takeover_is_followed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The master dies: final windows before and after are all there, none twice, revisions in order."""
        with Mesh(tmp_path, nodes=5) as mesh:
            job = job_id("hits")
            assert (
                main(
                    ["job", "start", "hits", "--sql", SQL, "--lateness", "3s", "--agent", str(mesh.socket())]
                )
                == 0
            )
            mesh.wait_served("hits")
            dead = next(host for host in mesh.hosts if host.node.seats[job].master is not None)
            asked = next(number for number, host in enumerate(mesh.hosts) if host is not dead)
            revisions: dict[int, list[Any]] = {}
            epochs: set[int] = set()
            finals: list[int] = []
            told: set[int] = set()
            has_died = False
            with Control(mesh.socket(asked)) as control:
                for answer in control.ask(JobWatch("hits")):
                    if not isinstance(answer, Published):
                        continue
                    put = decode(answer.put)
                    assert isinstance(put, Put)
                    assert list(put.revision) > revisions.get(put.start, [])
                    revisions[put.start] = list(put.revision)
                    epochs.add(put.revision[0])
                    if put.status == "final":
                        finals.append(put.start)
                    if put.status != "open":
                        told.add(put.start)
                    if len(told) == 2 and not has_died:
                        has_died = True
                        mesh.in_world(lambda: mesh.world.crash(dead.actor))
                        mesh.in_world(lambda: mesh.restart(dead))
                    if len(told) >= 9:
                        break
            starts = sorted(told)
            assert starts == list(range(starts[0], starts[-1] + 1, 2 * SECOND))
            assert len(finals) == len(set(finals))
            assert min(epochs) == 1
            assert 2 <= max(epochs) <= 3  # a third where somebody served before the dead one was back
