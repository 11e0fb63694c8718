"""Which process represents a node: the table of `elf.srt.transport.admission`, row by row."""

from __future__ import annotations

import msgspec
import pytest

from elf.agent.node.rivals import AHEAD_MAX, Rival, Rivals, is_above
from elf.jobmaster.directory.job_spec import AgentAdvert
from elf.srt.messages.ids import NodeId, node_id
from elf.srt.messages.messages import Contact
from elf.srt.transport import admission
from elf.srt.transport.admission import ANSWERED_S, Admission
from elf.srt.transport.handshake import Proof, TwinError

KEY = b"k" * 32
NODE = node_id(KEY)
HERE, THERE = "10.0.0.1:7070/key", "10.0.0.9:7070/key"


def proof(instance: int, address: str = HERE, life: int = 1) -> Proof:
    return Proof(life, instance, address, KEY)


def door(contact: Contact | None = None, *known: Proof) -> Admission:
    made = Admission(lambda node: contact)
    for each in known:
        assert made.ask(NODE, each, "", 0.0) == []
    return made


def test_no_process_is_known() -> None:
    assert door().ask(NODE, proof(1), "", 0.0) == []


def test_the_known_process_connects_again() -> None:
    made = door(None, proof(1))
    assert made.ask(NODE, proof(1), "", 9.0) == []
    assert made.other_process(NODE, proof(1)) is None


def test_a_newcomer_waits_while_the_known_process_is_challenged() -> None:
    made = door(None, proof(1))
    assert made.ask(NODE, proof(2, THERE), "", 9.0) == [HERE]
    assert made.other_process(NODE, proof(1)) is None


def test_the_one_that_is_known_answers() -> None:
    made = door(None, proof(1))
    with pytest.raises(TwinError, match=r"one at 10\.0\.0\.1:7070, and one at 10\.0\.0\.9:7070") as refused:
        made.decide(NODE, proof(2, THERE), [(HERE, proof(1))], 9.0)
    assert (refused.value.at, refused.value.instance) == (HERE, 1)
    with pytest.raises(TwinError):
        made.ask(NODE, proof(2, THERE), "", 9.0 + ANSWERED_S / 2)
    assert made.ask(NODE, proof(2, THERE), "", 9.0 + 2 * ANSWERED_S) == [HERE]


@pytest.mark.parametrize("answers", [[], [(HERE, proof(2))]], ids=["nobody", "the newcomer"])
def test_no_other_process_answers(answers: list[tuple[str, Proof]]) -> None:
    made = door(None, proof(1, life=9))
    made.decide(NODE, proof(2), answers, 9.0)
    assert made.other_process(NODE, proof(2)) is None
    other = made.other_process(NODE, proof(1))
    assert other is not None
    assert other.instance == 2


def test_a_third_one_has_taken_its_place() -> None:
    made = door(None, proof(1))
    with pytest.raises(TwinError) as refused:
        made.decide(NODE, proof(2, THERE), [(HERE, proof(3))], 9.0)
    assert refused.value.instance == 3
    assert made.other_process(NODE, proof(3)) is None


def test_a_process_that_answers_at_the_known_address_has_replaced_the_known_one() -> None:
    made = door(None, proof(1))
    assert made.ask(NODE, proof(2), HERE, 9.0) == []
    assert made.other_process(NODE, proof(1)) is not None


def test_what_the_node_has_heard_is_challenged_too() -> None:
    contact = Contact(NODE, 5, THERE, 0, 7)
    assert door(contact).ask(NODE, proof(2), "", 0.0) == [THERE]
    made = door()
    assert made.ask(NODE, proof(1), "", 0.0) == []
    made._contact_of = lambda node: contact
    assert made.ask(NODE, proof(2), "", 0.0) == [HERE, THERE]
    assert made.ask(NODE, proof(1), "", 0.0) == []
    assert (
        door(Contact(NODE, 5, THERE)).ask(NODE, proof(2), "", 0.0) == []
    )  # a process without a number is none


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "KNOWN_MAX", 3)
    made = door()
    for number in range(9):
        key = bytes([number]) * 32
        assert made.ask(node_id(key), Proof(1, 1, HERE, key), "", 0.0) == []
        made.check()


# What a node hears of others with its key.


def advert(instance: int, life: int, node: NodeId = NODE) -> AgentAdvert:
    return AgentAdvert("web", ("access",), life, 0, 0, (), THERE, (), instance)


def heard(mine: int, last: int, *adverts: AgentAdvert, verified: bool = True) -> Rival | None:
    rivals = Rivals(Contact(NODE, mine, HERE, 0, 1), lambda item: verified)
    rivals.last = last
    rivals.read([each.item(NODE) for each in adverts])
    return rivals.take()


@pytest.mark.parametrize(
    ("mine", "last", "theirs", "is_found"),
    [
        (300, 100, 200, True),  # a folder of life 100, restored: a life 200 has been
        (300, 100, 100, False),  # the folder's own last life
        (300, 0, 200, False),  # an empty folder: nothing is lost, and this life is above
        (300, 0, 300, True),  # not above
        (300, 100, 400, True),  # another one has taken the place meanwhile
    ],
)
def test_an_advert_of_another_process(mine: int, last: int, theirs: int, is_found: bool) -> None:
    found = heard(mine, last, advert(2, theirs))
    assert (found is not None) == is_found
    if found is not None:
        assert found == Rival(Contact(NODE, theirs, THERE, 0, 2), is_lost=True)


@pytest.mark.parametrize(
    ("last", "until_us", "was_here"), [(0, 0, True), (0, 5, False), (100, 0, False), (200, 0, False)]
)
def test_a_disk_that_knows_no_life_of_an_agent_that_the_mesh_knows_was_lost(
    last: int, until_us: int, was_here: bool
) -> None:
    """An agent that left for good begins anew when it returns."""
    rivals = Rivals(Contact(NODE, 300, HERE, 0, 1), lambda item: True)
    rivals.last = last
    rivals.read([msgspec.structs.replace(advert(2, 200), until_us=until_us).item(NODE)])
    assert rivals.was_here == was_here


def test_adverts_without_evidence() -> None:
    assert heard(300, 100, advert(1, 400)) is None  # this process's own
    assert heard(300, 100, advert(0, 400)) is None  # of no process
    assert heard(300, 100, advert(2, 400), verified=False) is None
    rivals = Rivals(Contact(NODE, 300, HERE, 0, 1), lambda item: True)
    rivals.read([advert(2, 400).item(node_id(b"another"))])
    assert rivals.take() is None


def test_signed_evidence_counts_before_claims() -> None:
    rivals = Rivals(Contact(NODE, 300, HERE, 0, 1), lambda item: True)
    rivals.last = 100
    rivals.hear(Contact(NODE, 900))
    rivals.read([advert(2, 400).item(NODE)])
    rivals.hear(Contact(NODE, 950))
    found = rivals.take()
    assert found is not None
    assert (found.contact.incarnation, found.is_lost) == (400, True)


def test_false_claims_do_not_use_up_the_numbers() -> None:
    def claim(life: int) -> Rival:
        return Rival(Contact(NODE, life), is_lost=False)

    assert is_above(claim(1_000), 1_000, 900.0)
    assert not is_above(claim(999), 1_000, 900.0)
    assert is_above(claim(1_000 + AHEAD_MAX - 1), 1_000, 900.0)
    assert not is_above(claim(1_000 + AHEAD_MAX), 1_000, 900.0)
