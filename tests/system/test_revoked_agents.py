"""Certificates that are taken back: who is out stays out whatever is started anew, and the agent itself ends and says why."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from elf.agent.control import protocol as w
from elf.agent.node import revoked
from elf.jobmaster.directory.job_spec import jobs_of
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.ids import NodeId, job_id
from elf.srt.messages.messages import Contact, Item
from elf.srt.messages.revocation import revoked_agent
from elf.srt.security.certificates import Authority, Keys, Trust
from elf.srt.security.files import load_keys
from elf.srt.security.items import revocation, signer_of
from tests.agent.simulator.test_security_mesh import Still
from tests.rigs.agents.mesh_rig import Fleet
from tests.rigs.agents.seen import WAIT_S
from tests.rigs.signed_mesh import EPOCH_S

RATE = 40.0


def restarted(folder: Path) -> tuple[set[NodeId], set[NodeId]]:
    """Workers that the master expects, and who was revoked, where all that knew its advert is lost before a master heeded it.

    The master dies for good, an agent is revoked at that moment, and everybody else is killed before one of them serves.
    """
    mesh = Still(folder, 5)
    mesh.hosts[0].submit(mesh.job(mesh.operator))
    mesh.run(3)
    job = job_id("hits")
    (master,) = [host for host in mesh.hosts if host.node.seats[job].master is not None]
    out = next(keys for keys in mesh.agents if keys.id != master.node.id)
    others = [host for host in mesh.hosts if host.node.id not in (master.node.id, out.id)]
    mesh.world.crash(master.actor)
    others[0].submit(revocation(mesh.authority.authority, out.certificate, EPOCH_S))
    mesh.run(1.2)
    assert all(host.node.directory.get("agent", out.id) is None for host in others)
    assert not any(host.node.seats[job].master for host in others)
    for host in mesh.hosts:
        if host is not master:
            mesh.world.crash(host.actor)
    seeds = [Contact(host.actor.id, 0) for host in others]
    for host in others:
        mesh.world.start(host.actor, seeds)
    mesh.run(12)
    (heir,) = [host for host in others if host.node.seats[job].master is not None]
    state = heir.node.seats[job].master.state  # type: ignore[union-attr]
    roster = state.positions.roster
    return {worker for worker, member in roster.items() if member.until_us == AFTER_ALL}, {out.id}


def test_who_was_revoked_is_expected_no_more_though_everybody_was_started_anew(tmp_path: Path) -> None:
    expected, out = restarted(tmp_path)
    assert len(expected) == 4, "the dead master's worker is missed, as it should be"
    assert not expected & out


def test_that_test_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revoked, "revoked_agent", lambda item: b"")
    expected, out = restarted(tmp_path)
    assert expected & out


class TestRevocation:
    NOW_S = 1_800_000_000

    def made(self, role: str) -> tuple[Authority, Keys, Item]:
        authority = Authority()
        keys = authority.issue("web1", role, self.NOW_S)  # type: ignore[arg-type]
        return authority, keys, revocation(authority, keys.certificate, self.NOW_S)

    def test_it_names_an_agent_and_nobody_else(self) -> None:
        _, keys, item = self.made("agent")
        assert revoked_agent(item) == keys.id
        for role in ("operator", "reader"):
            assert revoked_agent(self.made(role)[2]) == b""

    def test_one_of_an_older_build_names_nobody(self) -> None:
        item = Item("revoked", bytes(16), (1,), b"\x92\xa4web1\x01")
        assert revoked_agent(item) == b""
        assert revoked_agent(Item("revoked", bytes(16), (1,), b"\xc1")) == b""

    def test_who_is_refused_for_it_is_shown_it(self) -> None:
        authority, keys, item = self.made("agent")
        trust = Trust(authority.public)
        signer_of(trust, item, self.NOW_S, jobs_of)
        with pytest.raises(Exception, match="revoked") as raised:
            trust.check(keys.proof, self.NOW_S)
        assert b"revoked" in raised.value.evidence  # type: ignore[attr-defined]


def test_an_agent_that_is_revoked_ends_and_says_so_and_does_not_start_again(tmp_path: Path) -> None:
    """Its neighbours refuse it before it may have heard, and show it why."""
    with Fleet(tmp_path / "mesh", 3, security="curve") as fleet:
        fleet.start_job("hits")
        out = fleet.agents[2]
        item = revocation(
            fleet.authority, load_keys(tmp_path / "mesh" / "a2.keys").certificate, int(time.time())
        )
        with fleet.watch("hits") as seen, fleet.traffic(RATE):
            seen.wait_finals()
            fleet.agents[0].ask(w.Revoke((item,)))
            assert out.process is not None
            assert out.process.wait(WAIT_S) == 78
            assert out.said().count("the certificate of this agent was revoked") == 1
            assert "a2.keys" in out.said()
            assert "elf keys issue" in out.said()
            out.start()
            assert out.process.wait(WAIT_S) == 78
            seen.wait(lambda: seen.puts[-1][1].agents_expected == 2 and seen.puts[-1][1].status == "final")
            for agent in fleet.agents[:2]:
                agent.stop()
                agent.start()
            fleet.wait_joined()
            seen.wait_finals(2)
            last = max(
                (put for put in seen.latest.values() if put.status != "open"), key=lambda put: put.start
            )
            assert (last.agents_reporting, last.agents_expected) == (2, 2)
            held = fleet.agents[0].ask(w.JobGet("hits"))
            assert [name for name, _ in held.left] == [out.name], "a restate needs --force"
