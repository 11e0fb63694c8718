"""When a master's log is proven: more than half of the agents have reported to it."""

from __future__ import annotations

from elf.jobmaster.directory.job_spec import AgentAdvert
from elf.jobmaster.log.entries import AnyEntry, Proven
from elf.srt.messages.messages import FIRST
from tests.rigs.master_rig import BALLOT, T0, Rig, file
from tests.rigs.mesh_lines import SECOND

WORKERS = [bytes([65 + number]) * 16 for number in range(9)]


def proven(rig: Rig) -> list[AnyEntry]:
    return [entry for _, entry in rig.log if isinstance(entry, Proven)]


def test_only_bundles_cut_under_its_ballot_count() -> None:
    """A successor with few of nine agents, whose reducer still keeps a bundle of five that was cut under the earlier ballot."""
    first = Rig()
    first.do(first.master.adverts([(w, AgentAdvert("x", ("access",), 1, T0)) for w in WORKERS], first.now))
    first.bundle({file(worker): (0, 100, FIRST) for worker in WORKERS})
    assert proven(first) == [Proven(BALLOT)] * 2
    successor = Rig(spec=first.spec, state=first.state, ballot=(7, b"N" * 16))
    successor.bundle({file(worker): (100, 150, 0) for worker in WORKERS[:5]}, ballot=BALLOT)
    assert not successor.master.roster.has_majority()
    assert not proven(successor)
    successor.bundle({file(worker): (150, 160, 0) for worker in WORKERS[:5]})
    assert proven(successor) == [Proven((7, b"N" * 16))] * 2


def test_a_departure_can_complete_the_majority() -> None:
    rig = Rig()
    rig.do(rig.master.adverts([(w, AgentAdvert("x", ("access",), 1, T0)) for w in WORKERS[:4]], rig.now))
    rig.bundle({file(worker): (0, 100, FIRST) for worker in WORKERS[:2]})
    assert not proven(rig)
    rig.do(rig.master.forget(WORKERS[2:4], rig.now))
    rig.bundle({file(worker): (100, 110, 0) for worker in WORKERS[:2]}, [(T0, 1, 1)])
    rig.run(SECOND)
    rig.bundle({file(worker): (110, 120, 0) for worker in WORKERS[:2]})
    assert proven(rig) == [Proven(BALLOT)] * 2


def test_a_majority_is_recorded_anew_when_a_replica_has_left() -> None:
    """It consists of those that have reported since."""
    rig = Rig()
    rig.do(rig.master.adverts([(w, AgentAdvert("x", ("access",), 1, T0)) for w in WORKERS[:3]], rig.now))
    rig.bundle({file(worker): (0, 100, FIRST) for worker in WORKERS[:3]})
    assert proven(rig) == [Proven(BALLOT)] * 2
    rig.left = 2
    rig.bundle({file(WORKERS[0]): (100, 110, 0)})
    rig.bundle({file(WORKERS[0]): (110, 120, 0)})
    assert proven(rig) == [Proven(BALLOT)] * 2
    rig.bundle({file(WORKERS[1]): (100, 110, 0)})
    assert proven(rig)[2:] == [Proven(BALLOT, 2)] * 2
    assert rig.state.proven == ((BALLOT, 2), (BALLOT, 2))
    assert rig.state.snapshot().left == (2, 2)
