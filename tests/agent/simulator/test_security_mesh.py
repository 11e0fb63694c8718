"""A mesh with keys: jobs of operators run, and end when their operator's certificate is revoked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elf.agent.config.authority_folder import AuthorityFolder
from elf.agent.control.client import Control
from elf.agent.control.protocol import JobPut
from elf.agent.simulator.world.places import Actor
from elf.errors import UsageError
from elf.jobmaster.directory.directory import UNBELIEVED
from elf.jobmaster.directory.job_spec import AgentAdvert
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages import changes as c
from elf.srt.messages.effects import Notice, Route
from elf.srt.messages.ids import job_id
from elf.srt.messages.messages import Item
from elf.srt.security.certificates import Keys
from elf.srt.security.files import save_keys
from elf.srt.security.items import revocation, serial_of, sign_item
from elf.typer_cli import main
from tests.rigs.master_rig import spec_of
from tests.rigs.mesh_lines import plan_of
from tests.rigs.signed_mesh import EPOCH_S, SignedMesh

pytestmark = pytest.mark.slow

SECOND = 1_000_000
SQL = "SELECT window, path, count(*) AS hits FROM access GROUP BY window(time, '2 seconds'), path"


class Still(SignedMesh):
    """One whose time is moved by the test, without sockets."""

    def __init__(self, folder: Path, nodes: int = 4, grace_us: int = 0) -> None:
        super().__init__(folder, AuthorityFolder.make(folder / "authority"), nodes, grace_us)
        self._start()

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.now_us + int(seconds * SECOND))

    def job(self, keys: Keys, number: int = 1) -> Item:
        item = spec_of(plan_of("1 second"), number=number).item()
        return sign_item(keys, item, EPOCH_S + self.world.now_us // SECOND)

    def digests(self) -> set[int]:
        return {host.node.directory.digest for host in self.hosts}


@pytest.fixture
def mesh(tmp_path: Path) -> Still:
    return Still(tmp_path)


def test_agents_believe_each_others_adverts_and_ballots(mesh: Still) -> None:
    mesh.hosts[0].submit(mesh.job(mesh.operator))
    mesh.run(3)
    assert mesh.masters("hits") == 1
    for host in mesh.hosts:
        kinds = [item.kind for kind in ("agent", "ballot", "job") for item in host.node.directory.items(kind)]
        assert kinds == ["agent"] * 4 + ["ballot", "job"]
        host.node.check()
    assert not any(notary.refused for notary in mesh.notaries)


@pytest.mark.parametrize("who", ["nobody", "an agent", "another authority"])
def test_a_job_that_no_operator_signed_runs_nowhere(who: str, mesh: Still, tmp_path: Path) -> None:
    other = AuthorityFolder.make(tmp_path / "other").issue("ann", "operator", EPOCH_S, 365, "")
    keys = {"an agent": mesh.agents[0], "another authority": other}.get(who)
    item = spec_of(plan_of("1 second")).item() if keys is None else mesh.job(keys)
    mesh.hosts[0].submit(item)
    mesh.run(2)
    assert not any(host.node.seats for host in mesh.hosts)
    assert sum(mesh.notaries[0].refused.values()) == 1


def test_an_agent_that_takes_a_job_outside_its_operators_rights_is_alone_with_it(mesh: Still) -> None:
    """It is modified: every other agent refuses the item, and what it sends as a change, and names it."""
    notices: list[tuple[str, bytes]] = []

    def observe(at: int, what: str, actor: Actor | None, about: object) -> None:
        if actor is not None and isinstance(about, Notice) and about.kind == UNBELIEVED:
            notices.append((actor.name, about.peer))

    mesh.world.observers.append(observe)
    eve = mesh.authority.issue("eve", "operator", EPOCH_S, 365, "", ("web-*", "hit"))
    bad = mesh.hosts[1]
    bad.node.directory._verify = lambda item: True
    bad.submit(mesh.job(eve))
    mesh.run(4)
    assert [host.node.directory.get("job", job_id("hits")) is not None for host in mesh.hosts] == [
        host is bad for host in mesh.hosts
    ]
    for host, notary in zip(mesh.hosts, mesh.notaries, strict=True):
        if host is not bad:
            assert notary.refused["jobs"]
            assert notary.last_refusal.startswith(
                "'eve' may not change job 'hits', only jobs named web-*, hit; "
            )
            assert (host.actor.name, bad.node.id) in notices
    mesh.hosts[0].submit(mesh.job(mesh.operator, number=2))
    mesh.run(4)
    assert mesh.masters("hits") == 1
    notices.clear()
    change = c.ChangeRequest(job_id("hits"), 1, mesh.job(eve, number=3))
    (master,) = [host for host in mesh.hosts if host.node.seats[job_id("hits")].master is not None]
    other = next(host for host in mesh.hosts if host not in (master, bad))
    other.perform(other.node.carry([Route(change.job, change)], other.clock_us()))
    mesh.run(1)
    others = [each for each in notices if each[1] != bad.node.id]  # that one spreads what it has
    assert others == [(master.actor.name, other.node.id)] or master is bad
    assert mesh.operator.certificate.serial == serial_of(master.node.directory.get("job", job_id("hits")))  # type: ignore[arg-type]


def test_a_job_ends_everywhere_when_its_operator_is_revoked_and_starts_under_another(mesh: Still) -> None:
    mesh.hosts[0].submit(mesh.job(mesh.operator))
    mesh.run(3)
    assert mesh.masters("hits") == 1
    mesh.hosts[2].submit(revocation(mesh.authority.authority, mesh.operator.certificate, EPOCH_S))
    mesh.run(3)
    for host in mesh.hosts:
        assert host.node.seats[job_id("hits")].is_stopped
        assert host.node.directory.get("job", job_id("hits")) is None
        host.node.check()
    assert len(mesh.digests()) == 1
    mesh.hosts[1].submit(mesh.job(mesh.operator, number=9))
    mesh.run(2)
    assert mesh.masters("hits") == 0
    mesh.hosts[1].submit(mesh.job(mesh.authority.issue("bob", "operator", EPOCH_S, 365, "")))
    mesh.run(3)
    assert mesh.masters("hits") == 1
    assert len(mesh.digests()) == 1


def test_who_was_away_forgets_it_too_and_so_does_a_disk(mesh: Still) -> None:
    away = mesh.hosts[3].actor
    mesh.hosts[0].submit(mesh.job(mesh.operator))
    mesh.run(3)
    mesh.world.crash(away)
    mesh.hosts[0].submit(revocation(mesh.authority.authority, mesh.operator.certificate, EPOCH_S))
    mesh.run(2)
    mesh.restart(mesh.hosts[3])
    mesh.run(5)
    assert len(mesh.digests()) == 1
    assert away.node is not None
    assert all(seat.is_stopped for seat in away.node.seats.values())
    mesh.world.crash(away)
    mesh.restart(mesh.hosts[3])
    assert not away.node.seats, "the disk does not hold the job any more"


def test_a_revoked_agent_is_notified_and_forgotten(mesh: Still) -> None:
    notices: list[tuple[str, str]] = []

    def observe(at: int, what: str, actor: object, about: object) -> None:
        if isinstance(about, Notice) and about.kind == "revoked":
            notices.append((actor.name, about.text))  # type: ignore[attr-defined]

    mesh.world.observers.append(observe)
    mesh.hosts[0].submit(revocation(mesh.authority.authority, mesh.agents[2].certificate, EPOCH_S))
    mesh.run(2)
    assert [name for name, _ in notices] == ["web2"]
    for host in mesh.hosts:
        assert host.node.directory.get("agent", mesh.agents[2].id) is None


def test_no_window_waits_for_an_agent_that_is_revoked(mesh: Still) -> None:
    mesh.hosts[0].submit(mesh.job(mesh.operator))
    mesh.run(3)
    job = job_id("hits")
    (master,) = [host for host in mesh.hosts if host.node.seats[job].master is not None]
    out = next(keys for keys in mesh.agents if keys.id != master.node.id)
    master.submit(revocation(mesh.authority.authority, out.certificate, EPOCH_S))
    mesh.run(3)
    state = master.node.seats[job].master.state  # type: ignore[union-attr]
    expected = {worker for worker, member in state.positions.roster.items() if member.until_us == AFTER_ALL}
    assert expected == {keys.id for keys in mesh.agents} - {out.id}
    mesh.world.crash(master.actor)
    mesh.run(8)
    (heir,) = [host for host in mesh.hosts if host.actor.node and host.node.seats[job].master is not None]
    state = heir.node.seats[job].master.state  # type: ignore[union-attr]
    assert state.positions.roster[out.id].until_us != AFTER_ALL


def test_signed_items_that_cannot_be_decoded_are_harmless(mesh: Still) -> None:
    agent, operator = mesh.agents[1], mesh.operator
    advert = AgentAdvert("web1", ("access",), 5).item(agent.id)
    bad = [
        sign_item(agent, Item("agent", agent.id, (9, 0), b"\xc1"), EPOCH_S),
        sign_item(agent, Item("agent", agent.id, (9, 0), advert.body), EPOCH_S),
        sign_item(operator, Item("job", job_id("hits"), (9,), b"\xc1"), EPOCH_S),
        sign_item(operator, Item("job", job_id("other"), (1,), mesh.job(operator).body), EPOCH_S),
    ]
    before = mesh.digests()
    for item in bad:
        mesh.hosts[0].submit(item)
    mesh.run(2)
    assert mesh.digests() == before


@pytest.mark.long
def test_commands_sign_what_they_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elf.srt.security.items.time", lambda: EPOCH_S)
    with SignedMesh(tmp_path, AuthorityFolder.make(tmp_path / "authority")) as mesh:
        agent = ("--agent", str(mesh.socket(0)))
        start = ("job", "start", "hits", "--sql", SQL, *agent)
        assert main(list(start)) == 2
        assert "--keys" in capsys.readouterr().err
        save_keys(mesh.agents[0], tmp_path / "web0.keys")
        assert main([*start, "--keys", str(tmp_path / "web0.keys")]) != 0
        eve = mesh.authority.issue("eve", "operator", EPOCH_S, 36_500, "", ("web-*",))
        save_keys(eve, tmp_path / "eve.keys")
        signed = ("--keys", str(tmp_path / "eve.keys"))
        capsys.readouterr()
        check_early_refusal(mesh, eve, [*start, *signed], capsys)
        change_within_rights(mesh, [*agent, *signed], tmp_path / "jobs", capsys)
        check_audit(mesh, eve.certificate.serial.hex(), capsys)


def check_early_refusal(
    mesh: SignedMesh, eve: Keys, start: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command refuses a job outside the operator's rights, and so does the agent."""
    assert main(start) == 2
    assert capsys.readouterr().err == (
        "elf: --keys: 'eve' may not change job 'hits', only jobs named web-*; sign it with keys of an operator who may, or "
        "issue some: elf keys issue NAME --role operator --jobs PATTERN; nothing was changed\n"
    )
    with Control(mesh.socket(0)) as control, pytest.raises(UsageError, match="only jobs named web-"):
        control.one(
            JobPut(sign_item(eve, spec_of(plan_of("1 second")).item(), EPOCH_S))
        )  # a command that does not refuse early


def change_within_rights(
    mesh: SignedMesh, about: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Start, try, promote and stop a job that the operator may change; a folder with another one is refused."""
    assert main(["job", "start", "web-hits", "--sql", SQL, *about]) == 0
    mesh.wait_served("web-hits")
    folder.mkdir()
    for name in ("other", "web-hits"):
        (folder / f"{name}.sql").write_text(SQL.replace("path", "method"))
    capsys.readouterr()
    assert main(["job", "apply", "-f", str(folder), *about]) == 2
    assert "'eve' may not change job 'other'" in capsys.readouterr().err
    assert not any(host.node.directory.get("job", job_id("other")) for host in mesh.hosts)
    trial = ("job", "try", "web-hits", "--sql", SQL.replace("path", "method"), "--windows", "1")
    assert main([*trial, *about]) == 0
    assert main(["job", "promote", "web-hits", *about]) == 0
    assert main(["job", "stop", "web-hits", *about]) == 0
    mesh.wait_stopped("web-hits")
    capsys.readouterr()


def check_audit(mesh: SignedMesh, serial: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All agents list what was asked, taken or refused, and count what nobody signed."""
    mesh.wait_for(lambda: len({frozenset(host.node.directory.items("audit")) for host in mesh.hosts}) == 1)
    lists = []
    for number in range(3):
        assert main(["mesh", "audit", "--output", "json", "--agent", str(mesh.socket(number))]) == 0
        lists.append(json.loads(capsys.readouterr().out))
    assert lists[0] == lists[1] == lists[2]
    assert [(line["operator"], line["key"], line["agent"]) for line in lists[0]] == [
        ("eve", serial, "web0") if line["what"] != "unsigned" else ("", "", "web0") for line in lists[0]
    ]
    assert [(line["job"], line["what"], line["outcome"]) for line in lists[0]] == [
        ("hits", "start", "refused"),
        ("web-hits", "start", "taken"),
        ("web-hits", "try", "taken"),
        ("web-hits", "promote", "taken"),
        ("web-hits", "stop", "taken"),
    ]
    assert "'eve' may not change job 'hits'" in lists[0][0]["reason"]
    unsigned = JobPut(spec_of(plan_of("1 second")).item())
    for _ in range(2):
        with Control(mesh.socket(2)) as control, pytest.raises(UsageError, match="must be signed"):
            control.one(unsigned)
    assert main(["mesh", "audit", "--output", "table", "--agent", str(mesh.socket(2))]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == [
        "when",
        "operator",
        "key",
        "agent",
        "job",
        "change",
        "version",
        "outcome",
        "reason",
    ]
    assert shown[-1].split()[2:] == [
        "-",
        "-",
        "web2",
        "-",
        "unsigned",
        "-",
        "refused,",
        "2",
        "times",
        "forged",
    ]
