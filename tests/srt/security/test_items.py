"""Signed items of the directory: which role may sign which kind, about which node, when, and until its revocation."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.jobmaster.directory.audit import Audited, audit_item
from elf.jobmaster.directory.directory import REFUSED_MAX, Directory
from elf.jobmaster.directory.job_spec import (
    AgentAdvert,
    Change,
    JobSpec,
    Lost,
    Trial,
    Version,
    ballot_item,
    jobs_of,
    lost_item,
)
from elf.jobmaster.directory.known_schedule import schedule_item
from elf.srt.messages.effects import Notice, Write
from elf.srt.messages.messages import GossipItems, Item, Line
from elf.srt.messages.parameters import Parameters
from elf.srt.security.certificates import DAY_S, SKEW_S, Authority, Keys, Trust, TrustError
from elf.srt.security.items import (
    HEAD_BYTES,
    Notary,
    revocation,
    serial_of,
    sign_item,
    signer_of,
)

NOW = 1_800_000_000
AUTHORITY = Authority(b"a" * 32)
WEB1, WEB2 = (AUTHORITY.issue(name, "agent", NOW) for name in ("web1", "web2"))
ANN, BOB = (AUTHORITY.issue(name, "operator", NOW) for name in ("ann", "bob"))
READER = AUTHORITY.issue("screen", "reader", NOW)


def trust() -> Trust:
    return Trust(AUTHORITY.public)


def job(number: int = 1, name: str = "visits") -> Item:
    return JobSpec(name, number, "access", (Version("d1", b"plan", "SELECT 1"),)).item()


def advert(keys: Keys, life: int = 1) -> Item:
    return AgentAdvert(keys.certificate.name, ("access",), life).item(keys.id)


def schedule(keys: Keys) -> Item:
    return schedule_item(b"j" * 16, (1, keys.id), (1, b""), (Line(1, "v", 5, b""),))


def ballot(keys: Keys, epoch: int = 1) -> Item:
    return ballot_item(b"j" * 16, (epoch, keys.id))


def audit(keys: Keys) -> Item:
    held = Directory(Parameters(), lambda item: True, Random(0))
    return audit_item(held, keys.id, Audited("start", "visits", 1, "d1", "taken"), NOW)


LOST = lost_item(b"j" * 16, 2, Lost((Change(1, "v", "split", 5),)))


def verify_item(believer: Trust, item: Item, now_s: int) -> bool:
    try:
        signer_of(believer, item, now_s, jobs_of)
    except TrustError:
        return False
    return True


def reason(item: Item, now_s: int = NOW, believer: Trust | None = None) -> str:
    with pytest.raises(TrustError) as caught:
        signer_of(believer or trust(), item, now_s, jobs_of)
    assert not verify_item(believer or trust(), item, now_s)
    return caught.value.reason


@pytest.mark.parametrize(
    ("keys", "item"),
    [
        (ANN, job()),
        (WEB1, advert(WEB1)),
        (WEB1, ballot(WEB1)),
        (WEB1, schedule(WEB1)),
        (WEB2, LOST),
        (WEB1, audit(WEB1)),
    ],
    ids=["job", "agent", "ballot", "schedule", "lost", "audit"],
)
def test_an_authorised_signer_is_accepted(keys: Keys, item: Item) -> None:
    signed = sign_item(keys, item, NOW)
    assert msgspec.structs.replace(signed, signature=b"") == item
    assert signer_of(trust(), signed, NOW, jobs_of) == keys.certificate
    assert verify_item(trust(), signed, NOW)
    assert serial_of(signed) == keys.certificate.serial


@pytest.mark.parametrize(
    ("keys", "item", "why"),
    [
        (WEB1, job(), "role"),
        (ANN, advert(WEB1), "role"),
        (ANN, ballot(WEB1), "role"),
        (WEB2, advert(WEB1), "identity"),
        (WEB2, ballot(WEB1), "identity"),
        (ANN, schedule(WEB1), "role"),
        (ANN, LOST, "role"),
        (WEB2, schedule(WEB1), "identity"),
        (ANN, audit(WEB1), "role"),
        (WEB2, audit(WEB1), "identity"),
        (WEB1, Item("agent", WEB1.id + b"x", (1,), b""), "identity"),
        (ANN, Item("secrets", b"x", (1,), b""), "role"),
    ],
)
def test_no_other_process_is_known(keys: Keys, item: Item, why: str) -> None:
    assert reason(sign_item(keys, item, NOW)) == why
    with pytest.raises(TrustError):
        sign_item(READER, item, NOW)


def test_what_is_not_signed_or_by_another_authority_is_not_believed() -> None:
    assert reason(job()) == "forged"
    stranger = Authority().issue("ann", "operator", NOW)
    assert reason(sign_item(stranger, job(), NOW)) == "forged"


@pytest.mark.parametrize(
    "change",
    [{"kind": "agent"}, {"name": b"x" * 16}, {"stamp": (2,)}, {"body": b"\x00"}],
    ids=["kind", "name", "stamp", "body"],
)
def test_a_signature_covers_all(change: dict[str, object]) -> None:
    assert reason(msgspec.structs.replace(sign_item(ANN, job(), NOW), **change)) in ("forged", "role")


def test_a_signature_is_not_another_operators() -> None:
    ann, bob = sign_item(ANN, job(), NOW), sign_item(BOB, job(), NOW)
    mixed = ann.signature[:HEAD_BYTES] + bob.signature[HEAD_BYTES:]
    assert reason(msgspec.structs.replace(ann, signature=mixed)) == "forged"


class TestTime:
    def test_a_job_continues_when_its_operators_certificate_expires(self) -> None:
        signed = sign_item(ANN, job(), NOW + 365 * DAY_S)
        assert verify_item(trust(), signed, NOW + 400 * DAY_S)
        assert verify_item(trust(), signed, NOW + 365 * DAY_S)

    def test_but_nothing_new_is_signed_with_it(self) -> None:
        assert reason(sign_item(ANN, job(), NOW + 365 * DAY_S + 1), NOW + 366 * DAY_S) == "expired"
        assert reason(sign_item(ANN, job(), NOW - SKEW_S - 1)) == "early"

    def test_the_moment_of_signing_cannot_be_changed(self) -> None:
        late = sign_item(ANN, job(), NOW + 366 * DAY_S)
        head = bytearray(late.signature)
        head[1:9] = NOW.to_bytes(8)
        assert reason(msgspec.structs.replace(late, signature=bytes(head)), NOW + 366 * DAY_S) == "forged"

    def test_what_is_of_the_future_waits(self) -> None:
        signed = sign_item(ANN, job(), NOW + SKEW_S + 10)
        assert reason(signed, NOW) == "early"
        assert verify_item(trust(), signed, NOW + 10)


class TestRevocation:
    def test_it_voids_what_was_signed_before_and_after(self) -> None:
        believer = trust()
        before = sign_item(ANN, job(), NOW)
        assert verify_item(believer, before, NOW)
        assert verify_item(believer, revocation(AUTHORITY, ANN.certificate, NOW + 5), NOW)
        assert reason(before, NOW + 5, believer) == "revoked"
        assert reason(sign_item(ANN, job(2), NOW + 9), NOW + 9, believer) == "revoked"
        assert verify_item(believer, sign_item(BOB, job(2), NOW), NOW)

    def test_only_the_authority_revokes(self) -> None:
        made = revocation(AUTHORITY, ANN.certificate, NOW)
        for keys in (ANN, WEB1):
            believer = trust()
            assert (
                reason(sign_item(keys, msgspec.structs.replace(made, signature=b""), NOW), NOW, believer)
                == "garbled"
            )
            forged = made.signature[:9] + keys.sign(b"x" * 32, b"elf item")
            assert reason(msgspec.structs.replace(made, signature=forged), NOW, believer) == "forged"
            assert reason(revocation(Authority(), ANN.certificate, NOW), NOW, believer) == "forged"
            assert not believer.revoked

    def test_a_revocation_of_one_is_not_of_another(self) -> None:
        made = revocation(AUTHORITY, ANN.certificate, NOW)
        assert reason(msgspec.structs.replace(made, name=BOB.certificate.serial)) == "forged"
        assert reason(msgspec.structs.replace(made, name=b"short")) == "garbled"


class TestJobsOfAnOperator:
    """What an operator may change whose certificate names `web-*` and `db`."""

    EVE = AUTHORITY.issue("eve", "operator", NOW, jobs=("web-*", "db"))

    def trial(self, name: str, of: str) -> Item:
        trial = Trial(of, "d1", (), NOW * 1_000_000)
        return JobSpec(name, 1, "access", (Version("d2", b"plan", "SELECT 1"),), trial=trial).item()

    @pytest.mark.parametrize(
        ("item", "is_allowed"),
        [
            (job(1, "web-1"), True),
            (job(7, "db"), True),
            (job(1, "visits"), False),
            (job(1, "dbs"), False),
            (job(1, "db~try1"), True),
            (job(1, "visits~web-1"), False),
        ],
    )
    def test_jobs_by_name(self, item: Item, is_allowed: bool) -> None:
        signed = sign_item(self.EVE, item, NOW)
        if is_allowed:
            assert signer_of(trust(), signed, NOW, jobs_of) == self.EVE.certificate
        else:
            assert reason(signed) == "jobs"

    @pytest.mark.parametrize(
        ("name", "of", "is_allowed"),
        [
            ("db~try1", "db", True),
            ("web-1~now4", "web-1", True),
            ("visits~try1", "visits", False),
            ("visits", "db", False),
            ("visits~try1", "db", False),
            ("web-1~try1", "visits", False),
        ],
    )
    def test_a_trial_is_of_the_job_whose_change_it_tries(self, name: str, of: str, is_allowed: bool) -> None:
        assert verify_item(trust(), sign_item(self.EVE, self.trial(name, of), NOW), NOW) == is_allowed

    def test_who_only_claims_to_be_her_is_a_forger(self) -> None:
        signed = sign_item(self.EVE, job(), NOW)
        assert reason(msgspec.structs.replace(signed, stamp=(9,))) == "forged"

    def test_what_is_no_job_is_garbled(self) -> None:
        assert reason(sign_item(self.EVE, Item("job", b"j" * 16, (1,), b"\xc1"), NOW)) == "garbled"

    def test_a_notary_says_what_to_do(self) -> None:
        one = notary()
        assert one.verify(sign_item(self.EVE, job(1, "db"), NOW))
        assert not one.verify(sign_item(self.EVE, job(), NOW))
        assert one.refused == {"jobs": 1}
        assert "elf keys issue NAME --role operator --jobs PATTERN" in one.last_refusal


SIGNED = (
    sign_item(ANN, job(), NOW),
    sign_item(WEB1, advert(WEB1), NOW),
    revocation(AUTHORITY, BOB.certificate, NOW),
)
KINDS = st.sampled_from(["job", "agent", "ballot", "revoked", "x"])


class TestBytesOfOthers:
    @given(
        st.builds(
            Item,
            KINDS,
            st.binary(max_size=20),
            st.lists(st.integers(0, 2**64)).map(tuple),
            st.binary(),
            st.binary(max_size=700),
        )
    )
    @settings(max_examples=300, derandomize=True, deadline=None)
    def test_any_item_is_refused_in_one_way(self, item: Item) -> None:
        assert not verify_item(trust(), item, NOW)
        assert serial_of(item) == b""

    @given(st.sampled_from(SIGNED), st.integers(min_value=0), st.integers(1, 255))
    @settings(max_examples=300, derandomize=True, deadline=None)
    def test_no_byte_of_a_signature_can_be_changed(self, item: Item, at: int, by: int) -> None:
        changed = bytearray(item.signature)
        changed[at % len(changed)] ^= by
        believer = trust()
        assert not verify_item(believer, msgspec.structs.replace(item, signature=bytes(changed)), NOW)
        assert not believer.revoked

    @given(st.sampled_from(SIGNED), st.integers(0, 400), st.binary(max_size=400))
    @settings(max_examples=200, derandomize=True, deadline=None)
    def test_none_can_be_cut_or_added(self, item: Item, length: int, more: bytes) -> None:
        changed = item.signature[:length] + more
        if changed != item.signature:
            assert not verify_item(trust(), msgspec.structs.replace(item, signature=changed), NOW)


def directory(notary: Notary, seed: int = 0) -> Directory:
    return Directory(Parameters(buckets=4), notary.verify, Random(seed))


def notary(keys: Keys = WEB1) -> Notary:
    return Notary(keys, trust(), lambda: NOW, jobs_of)


class TestDirectory:
    def test_a_notary_signs_what_others_believe_and_counts_what_it_does_not(self) -> None:
        mine, theirs = notary(WEB1), notary(WEB2)
        assert theirs.verify(mine.sign(advert(WEB1)))
        assert not theirs.verify(mine.sign(advert(WEB2)))
        assert not theirs.verify(mine.sign(job()))
        assert theirs.refused == {"identity": 1, "role": 1}
        assert (
            theirs.last_refusal == "'web1' signed a job item as agent; sign it with keys of the role operator"
        )

    def test_all_come_to_hold_the_same_whatever_the_order(self) -> None:
        """Items of two operators and the revocation of one, in any order, at nodes that then drop what is revoked."""
        items = [
            sign_item(ANN, job(2), NOW),
            sign_item(BOB, job(1), NOW),
            sign_item(BOB, job(1, "errors"), NOW),
            sign_item(ANN, job(1, "gone"), NOW),
            revocation(AUTHORITY, ANN.certificate, NOW),
        ]
        held = []
        for seed in range(20):
            order = list(items)
            Random(seed).shuffle(order)
            who = notary()
            one = directory(who)
            for item in [*order, *order]:  # what was refused or missed comes again, by anti-entropy
                one.put(item, 0)
                if any(change.kind == "revoked" for change in one.take_changes()):
                    one.drop(who.is_revoked)
                one.check()
            held.append((one.digest, sorted((item.kind, item.name) for item in one.items("job"))))
        assert held == [held[0]] * len(held)
        assert held[0][1] == sorted(
            ("job", JobSpec(name, 1, "access", ()).id) for name in ("visits", "errors")
        )

    def test_what_was_dropped_is_gone_from_the_disk_too(self) -> None:
        who = notary()
        one = directory(who)
        one.put(sign_item(ANN, job(), NOW), 0)
        one.put(sign_item(BOB, job(1, "errors"), NOW), 0)
        (written,) = [effect for effect in one.tick(0, ()) if isinstance(effect, Write)]
        one.put(revocation(AUTHORITY, ANN.certificate, NOW), 0)
        assert [item.kind for item in one.drop(who.is_revoked)] == ["job"]
        (again,) = [effect for effect in one.tick(1, ()) if isinstance(effect, Write)]
        assert again.replace
        assert sorted(item.kind for item in again.record) == ["job", "revoked"]
        assert not [effect for effect in one.tick(2, ()) if isinstance(effect, Write)]
        late = notary()
        restored = directory(late)
        restored.restore([written.record, (revocation(AUTHORITY, ANN.certificate, NOW),)])
        restored.drop(late.is_revoked)
        assert restored.digest == one.digest
        restored.check()

    def test_a_neighbours_forgeries_are_reported_and_cost_little(self) -> None:
        asked: list[Item] = []
        one = Directory(Parameters(buckets=1), lambda item: asked.append(item) is not None, Random(0))  # type: ignore[func-returns-value]
        forged = tuple(Item("agent", number.to_bytes(16), (1,), b"") for number in range(1_000))
        effects = one.step(b"n" * 16, GossipItems(0, forged), 0)
        (notice,) = [effect for effect in effects if isinstance(effect, Notice)]
        assert notice.peer == b"n" * 16
        assert len(asked) == REFUSED_MAX + 1
        assert len(one) == 0


PROOF = (
    "454c4643017ec73240f9459bc00a10a8383b2c74d37ad1c425800d84a6774c3fef24c32d4b5e6db8e5e61842e926d5a13cac"
    "c2425bc9ef1873d7e0054c2060c0a3d392dc0397a477656231a56167656e74c4204e9bca27c01643e935f52de31a8d72f5ca"
    "18767f377a289e6ab4752afdd44f5ac420671b3835cc52e2d8ef05e6a260d827b5c3bf2333ff430540d5e37b61f09b668cc4"
    "102695140c8d2399f1c1815b7574e4ee16ce6b49c3f0ce6d2b0580"
)
SIGNATURE = (
    "01000000006b49d2648bfd399ea0c7bc33f7d251da556b22d18011622e688640fccf236bd776f8ef78bb024fbe3226d0f803"
    "d370f3ee72baa37982deb95c36b51d92db2adceb8e6b00"
)
REVOCATION = (
    "01000000006b49d2c8f29bcf971fd31067b448e59e9c8196d87b527f33ffdbd57199cb813d1cd620ad76adb24d1075dac450"
    "b2597f3d699732b203639a9ed282a28a587a2ae1c3d80b"
)


NARROWED = (
    "454c464302be01627f9f2b2049c3e563f385078d104766a279050275d6f5c506aa22a145bfce0891259c6ce98fe39230234d"
    "a3aaeea91ceabaa4df27cd874ed00f749f240998a3616e6ea86f70657261746f72c420636363636363636363636363636363"
    "6363636363636363636363636363636363c420c86d01ad8b2fb694b22ff60e3c9d9e7ed90db5604772b74450d40913b9a9cb"
    "afc41073737373737373737373737373737373ce6b49c3f0ce6d2b058092a57765622d2aa26462"
)


def test_a_narrowed_certificate_of_long_ago_is_still_believed() -> None:
    """Golden bytes of the second version."""
    held = trust().check(bytes.fromhex(NARROWED), NOW)
    assert (held.name, held.role, held.jobs) == ("ann", "operator", ("web-*", "db"))
    assert held.serial == b"s" * 16


def test_what_was_signed_long_ago_is_still_believed() -> None:
    """Golden bytes of the first version: a certificate, an item that its holder signed, and its revocation."""
    believer = trust()
    held = believer.check(bytes.fromhex(PROOF), NOW)
    assert (held.name, held.role, held.not_before_s, held.not_after_s) == (
        "web1",
        "agent",
        NOW - SKEW_S,
        NOW + 365 * DAY_S,
    )
    assert held.id.hex() == "faa8ea8f21a617a30ad0b8ebc45daf58"
    assert held.serial.hex() == "2695140c8d2399f1c1815b7574e4ee16"
    item = Item("agent", held.id, (1, 2), b"body", bytes.fromhex(SIGNATURE + PROOF))
    assert signer_of(believer, item, NOW + 100, jobs_of) == held
    body = bytes.fromhex("92a477656231ce6b49d2c8")
    revoked = Item("revoked", held.serial, (NOW + 200,), body, bytes.fromhex(REVOCATION))
    assert signer_of(believer, revoked, NOW, jobs_of) is None
    assert believer.revoked == {held.serial}
