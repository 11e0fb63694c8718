"""An operator's certificate is revoked: jobs go on for the grace period, then under the newest version of another signer, by a
control line; they go on as they are if another operator signs them, and end where nobody's signature holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from elf.agent.simulator.run import simulate
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import Change, JobSpec, Version
from elf.jobmaster.log.job_state import JobState
from elf.srt.messages.ids import job_id
from elf.srt.security.certificates import Keys
from elf.srt.security.items import revocation, sign_item
from tests.agent.simulator.test_security_mesh import SECOND, Still
from tests.rigs.canaries import meshes
from tests.rigs.master_rig import spec_of
from tests.rigs.mesh_lines import plan_of
from tests.rigs.signed_mesh import EPOCH_S

pytestmark = pytest.mark.slow

GRACE_S = 4
JOB = job_id("hits")


class Fleet(Still):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 4, GRACE_S * SECOND)
        self.bob, self.carol = (
            self.authority.issue(name, "operator", EPOCH_S, 365, "") for name in ("bob", "carol")
        )

    @property
    def now_s(self) -> int:
        return EPOCH_S + self.world.now_us // SECOND

    def put(self, keys: Keys, spec: JobSpec, at: int = 0) -> None:
        self.hosts[at].submit(sign_item(keys, spec.item(), self.now_s))

    def revoke(self, keys: Keys, at: int = 0) -> None:
        self.hosts[at].submit(revocation(self.authority.authority, keys.certificate, self.now_s))

    def state(self) -> JobState:
        masters = [host.node.seats[JOB].master for host in self.hosts if host.actor.node is not None]
        (state,) = [master.state for master in masters if master is not None]
        return state

    @property
    def in_force(self) -> str:
        return self.state().schedule[-1].version

    def specs(self) -> set[bytes | None]:
        nodes = [host.node for host in self.hosts if host.actor.node is not None]
        return {item.body if (item := JobItems(node.directory, JOB).item()) else None for node in nodes}


def with_version(spec: JobSpec, plan: Version, number: int) -> JobSpec:
    change = Change(number, plan.digest, "split", 0, former=spec.versions[-1].digest)
    others = tuple(each for each in spec.versions if each.digest != plan.digest)
    return replace(spec, number=number, versions=(*others, plan), changes=(*spec.changes, change))


FIRST = spec_of(plan_of("1 second"), number=1)
SECOND_SPEC = with_version(FIRST, spec_of(plan_of("2 seconds")).versions[0], 2)
ONE, TWO = FIRST.versions[-1].digest, SECOND_SPEC.versions[-1].digest


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path)
    fleet.put(fleet.operator, FIRST)
    fleet.run(3)
    fleet.put(fleet.bob, SECOND_SPEC, at=1)
    fleet.run(2)
    assert fleet.in_force == TWO
    return fleet


def check(fleet: Fleet, spec: JobSpec | None) -> None:
    """All nodes hold that spec, and the same items."""
    assert fleet.specs() == {None if spec is None else spec.encode()}
    assert len({host.node.directory.digest for host in fleet.hosts if host.actor.node is not None}) == 1
    for host in fleet.hosts:
        if host.actor.node is not None:
            host.node.check()


def test_the_job_falls_back_to_the_version_of_the_operator_who_holds(fleet: Fleet) -> None:
    fleet.revoke(fleet.bob, at=2)
    fleet.run(GRACE_S - 2)
    assert fleet.in_force == TWO
    check(fleet, SECOND_SPEC)
    fleet.run(4)
    assert fleet.in_force == ONE
    versions = [line.version for line in fleet.state().schedule]
    assert versions == [ONE, TWO, ONE]
    check(fleet, FIRST)


def test_of_two_operators_the_earlier_ones_revocation_changes_nothing(fleet: Fleet) -> None:
    fleet.revoke(fleet.operator)
    fleet.run(GRACE_S + 3)
    assert [line.version for line in fleet.state().schedule] == [ONE, TWO]
    check(fleet, SECOND_SPEC)


@pytest.mark.parametrize("when", ["before", "at the end", "after"])
def test_it_does_so_too_where_the_master_dies(when: str, fleet: Fleet) -> None:
    (master,) = [host for host in fleet.hosts if host.node.seats[JOB].master is not None]
    other = next(number for number, host in enumerate(fleet.hosts) if host is not master)
    if when == "before":
        fleet.world.crash(master.actor)
    fleet.revoke(fleet.bob, at=other)
    fleet.run(GRACE_S)
    if when == "at the end":
        fleet.world.crash(master.actor)
    fleet.run(2)
    if when == "after":
        fleet.world.crash(master.actor)
    fleet.run(12)
    assert [line.version for line in fleet.state().schedule][-2:] == [TWO, ONE]
    check(fleet, FIRST)


def test_it_goes_on_as_it_is_if_another_operator_signs_it(fleet: Fleet) -> None:
    again = with_version(SECOND_SPEC, SECOND_SPEC.versions[-1], 3)
    fleet.revoke(fleet.bob)
    fleet.run(1)
    fleet.put(fleet.carol, again, at=3)
    fleet.run(GRACE_S + 3)
    assert [line.version for line in fleet.state().schedule] == [ONE, TWO]
    check(fleet, again)


def test_it_ends_where_nobodys_signature_holds(fleet: Fleet) -> None:
    fleet.revoke(fleet.bob)
    fleet.revoke(fleet.operator)
    fleet.run(GRACE_S - 2)
    assert fleet.in_force == TWO
    fleet.run(4)
    assert all(host.node.seats[JOB].is_stopped for host in fleet.hosts)
    check(fleet, None)


def test_a_job_that_was_stopped_stays_so(fleet: Fleet) -> None:
    fleet.put(fleet.carol, replace(SECOND_SPEC, number=9, stopped=True))
    fleet.run(2)
    fleet.revoke(fleet.carol)
    fleet.run(GRACE_S + 3)
    assert all(host.node.seats[JOB].is_stopped for host in fleet.hosts)


def test_who_was_away_comes_to_the_same(fleet: Fleet) -> None:
    away = next(host for host in fleet.hosts if host.node.seats[JOB].master is None)
    at = next(number for number, host in enumerate(fleet.hosts) if host is not away)
    fleet.world.crash(away.actor)
    fleet.revoke(fleet.bob, at=at)
    fleet.run(GRACE_S + 3)
    fleet.restart(away)
    fleet.run(5)
    assert fleet.in_force == ONE
    check(fleet, FIRST)


def test_the_revoked_operator_changes_nothing_more(fleet: Fleet) -> None:
    fleet.revoke(fleet.bob)
    fleet.run(1)
    later = with_version(SECOND_SPEC, spec_of(plan_of("3 seconds")).versions[0], 3)
    fleet.put(fleet.bob, later)
    fleet.run(1)
    check(fleet, SECOND_SPEC)
    fleet.run(GRACE_S + 2)
    check(fleet, FIRST)


def test_after_it_fell_back_operators_change_it_as_ever(fleet: Fleet) -> None:
    fleet.revoke(fleet.bob)
    fleet.run(GRACE_S + 2)
    number = fleet.state().spec[0] + 5
    third = with_version(FIRST, spec_of(plan_of("3 seconds")).versions[0], number)
    fleet.put(fleet.carol, third, at=2)
    fleet.run(3)
    assert fleet.in_force == third.versions[-1].digest
    check(fleet, third)


@pytest.mark.parametrize("seed", [*range(4), 90])
def test_windows_stay_exact_under_revocations_changes_and_crashes(seed: int) -> None:
    """In the last one the two sides of a partition fall back to one version, each at a time of its own."""
    assert simulate(meshes.revoked(seed)).violation == ""
