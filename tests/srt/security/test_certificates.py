"""Certificates and trust: valid certificates are accepted during their term, and no others, whatever the bytes are."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey, VerifyKey

from elf.srt.messages.ids import node_id
from elf.srt.messages.patterns import PATTERNS_MAX
from elf.srt.security import pairs
from elf.srt.security.certificates import (
    CONTEXTS,
    DAY_S,
    KNOWN_MAX,
    MAGIC,
    MAGIC_2,
    PROOF_BYTES_MAX,
    SKEW_S,
    Authority,
    Certificate,
    Keys,
    Trust,
    TrustError,
    parse_proof,
)
from elf.srt.security.pairs import curve_pair, curve_public, is_sealed, seal, signing_pair

NOW = 1_800_000_000
AUTHORITY = Authority(b"a" * 32)
KEYS = AUTHORITY.issue("web1", "agent", NOW)
OPERATOR = AUTHORITY.issue("ann", "operator", NOW)
READER = AUTHORITY.issue("screen", "reader", NOW)


def reason(trust: Trust, proof: bytes, now_s: int = NOW) -> str:
    with pytest.raises(TrustError) as caught:
        trust.check(proof, now_s)
    assert "\n" not in str(caught.value)
    return caught.value.reason


def test_a_certificate_names_the_holder_of_the_keys() -> None:
    found = Trust(AUTHORITY.public).check(KEYS.proof, NOW)
    assert found == KEYS.certificate
    assert (found.name, found.role, found.curve_public) == ("web1", "agent", KEYS.curve_public)
    assert found.id == KEYS.id == node_id(KEYS.curve_public)
    assert curve_public(KEYS.curve_secret) == KEYS.curve_public
    assert READER.certificate.signing_public == b""


def test_signatures_are_those_of_the_standard() -> None:
    """Against PyNaCl's other interface, and the first vector of RFC 8032."""
    pair = signing_pair(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert pair.public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    VerifyKey(pair.public).verify(b"context\0data", seal(pair.secret, b"context", b"data"))
    theirs = SigningKey(b"s" * 32)
    signature = theirs.sign(b"context\0data").signature
    assert is_sealed(bytes(theirs.verify_key), b"context", b"data", signature)
    assert not is_sealed(bytes(theirs.verify_key), b"other", b"data", signature)
    assert not is_sealed(b"short", b"context", b"data", signature)
    assert not is_sealed(bytes(theirs.verify_key), b"context", b"data", signature[:-1])


def test_a_certificate_holds_within_its_term_and_clocks_may_differ_by_an_hour() -> None:
    trust = Trust(AUTHORITY.public)
    trust.check(KEYS.proof, NOW - SKEW_S)
    trust.check(KEYS.proof, NOW + 365 * DAY_S)
    assert reason(trust, KEYS.proof, NOW - SKEW_S - 1) == "early"
    assert reason(trust, KEYS.proof, NOW + 365 * DAY_S + 1) == "expired"


def test_another_authority_is_not_believed() -> None:
    stranger = Authority().issue("web1", "agent", NOW)
    assert reason(Trust(AUTHORITY.public), stranger.proof) == "forged"
    with pytest.raises(TrustError, match="not signed by this mesh's authority"):
        Keys(AUTHORITY.public, stranger.proof, stranger.curve_secret, stranger.signing_seed)


def test_what_is_revoked_stays_revoked() -> None:
    trust = Trust(AUTHORITY.public)
    trust.check(KEYS.proof, NOW)
    trust.revoke(KEYS.certificate.serial)
    assert reason(trust, KEYS.proof) == "revoked"
    trust.check(OPERATOR.proof, NOW)


def test_renewed_keys_are_those_of_the_same_node_under_another_serial() -> None:
    renewed = AUTHORITY.renew(KEYS, NOW + 300 * DAY_S, days=30)
    assert renewed.id == KEYS.id
    assert renewed.certificate.serial != KEYS.certificate.serial
    assert renewed.sign(b"x") == KEYS.sign(b"x")
    Trust(AUTHORITY.public).check(renewed.proof, NOW + 330 * DAY_S)


def test_secrets_must_be_those_of_the_certificate() -> None:
    with pytest.raises(TrustError, match="not those of web1"):
        Keys(AUTHORITY.public, KEYS.proof, curve_pair().secret, KEYS.signing_seed)
    with pytest.raises(TrustError, match="not those of web1"):
        Keys(AUTHORITY.public, KEYS.proof, KEYS.curve_secret, b"x" * 32)


@pytest.mark.parametrize("name", ["", "a" * 65, "a b", "../x", "-x", "ü", "a\n", "a\x1b[31m"])
def test_names_are_plain(name: str) -> None:
    with pytest.raises(TrustError):
        AUTHORITY.issue(name, "agent", NOW)


def test_a_reader_signs_nothing() -> None:
    with pytest.raises(TrustError, match="operator"):
        READER.sign(b"x")


class TestSecrets:
    SECRETS = (KEYS.curve_secret, KEYS.signing_seed, AUTHORITY.seed)

    def shows(self, text: str) -> bool:
        from base64 import b32encode, b64encode

        forms = [
            form
            for secret in self.SECRETS
            for form in (
                secret.hex(),
                repr(secret)[2:-1],
                b64encode(secret).decode(),
                b32encode(secret).decode(),
            )
        ]
        return any(form.lower() in text.lower() for form in forms)

    def test_nothing_that_can_be_shown_shows_them(self) -> None:
        for each in (KEYS, AUTHORITY, KEYS._signing, AUTHORITY._pair, curve_pair(), Trust(AUTHORITY.public)):
            for text in (repr(each), str(each), f"{each}", f"{[each]}"):
                assert not self.shows(text)
                assert "secret" not in text
        assert self.shows(KEYS.curve_secret.hex()), "the test would see one"

    def test_they_are_not_pickled_or_copied(self) -> None:
        for each in (KEYS, AUTHORITY):
            with pytest.raises(TypeError, match="not pickled"):
                pickle.dumps(each)
            with pytest.raises(TypeError, match="not pickled"):
                copy.deepcopy(each)

    def test_errors_show_none(self) -> None:
        with pytest.raises(TrustError) as caught:
            Keys(AUTHORITY.public, OPERATOR.proof, KEYS.curve_secret, KEYS.signing_seed)
        assert not self.shows(str(caught.value))


class TestBytesOfOthers:
    @given(st.binary(max_size=600))
    @settings(max_examples=300, derandomize=True, deadline=None)
    def test_any_bytes_are_refused_in_one_way(self, data: bytes) -> None:
        assert reason(Trust(AUTHORITY.public), data) == "garbled"
        assert reason(Trust(AUTHORITY.public), MAGIC + data) in ("garbled", "forged")

    @given(st.integers(0, len(KEYS.proof) - 1), st.integers(1, 255))
    @settings(max_examples=300, derandomize=True, deadline=None)
    def test_no_byte_can_be_changed(self, at: int, by: int) -> None:
        changed = bytearray(KEYS.proof)
        changed[at] ^= by
        assert reason(Trust(AUTHORITY.public), bytes(changed)) in ("garbled", "forged")

    @given(st.integers(0, len(KEYS.proof) - 1), st.binary(min_size=1, max_size=20))
    @settings(max_examples=100, derandomize=True, deadline=None)
    def test_none_can_be_cut_or_added(self, length: int, more: bytes) -> None:
        trust = Trust(AUTHORITY.public)
        assert reason(trust, KEYS.proof[:length]) in ("garbled", "forged")
        assert reason(trust, KEYS.proof + more) in ("garbled", "forged")

    def test_a_proof_is_bounded(self) -> None:
        longest = AUTHORITY.issue("n" * 64, "operator", 2**31, days=36_500)
        assert len(longest.proof) <= PROOF_BYTES_MAX // 2
        with pytest.raises(TrustError, match="of a version that this agent reads"):  # not even decoded
            parse_proof(KEYS.proof + bytes(PROOF_BYTES_MAX))

    def test_a_signature_of_the_authority_in_another_context_is_no_certificate(self) -> None:
        body = msgspec.msgpack.encode(KEYS.certificate)
        proof = MAGIC + AUTHORITY.sign(body, b"elf item") + body
        assert reason(Trust(AUTHORITY.public), proof) == "forged"

    def test_a_certificate_of_a_later_year_than_there_are_is_garbled(self) -> None:
        late = msgspec.structs.replace(KEYS.certificate, not_after_s=1 << 39)
        with pytest.raises(TrustError) as caught:
            parse_proof(MAGIC + bytes(64) + msgspec.msgpack.encode(late))
        assert caught.value.reason == "garbled"

    def test_an_agent_without_a_key_to_sign_with_is_garbled(self) -> None:
        for change in ({"signing_public": b""}, {"role": "reader"}, {"signing_public": b"x" * 31}):
            bad: Certificate = msgspec.structs.replace(KEYS.certificate, **change)
            with pytest.raises(TrustError) as caught:
                parse_proof(MAGIC + bytes(64) + msgspec.msgpack.encode(bad))
            assert caught.value.reason == "garbled"


class TestPatternsOfJobs:
    BOB = AUTHORITY.issue("bob", "operator", NOW, jobs=("web-*", "db"))

    def made(self, magic: bytes, **changes: object) -> bytes:
        """A certificate of the authority with these values, as its secret could sign it under that version."""
        body = msgspec.msgpack.encode(msgspec.structs.replace(self.BOB.certificate, **changes))
        return magic + AUTHORITY.sign(body, CONTEXTS[magic]) + body

    def test_a_narrowed_certificate_is_of_version_2_and_others_stay_as_they_were(self) -> None:
        assert (self.BOB.proof[:5], OPERATOR.proof[:5], KEYS.proof[:5]) == (MAGIC_2, MAGIC, MAGIC)
        assert Trust(AUTHORITY.public).check(self.BOB.proof, NOW).jobs == ("web-*", "db")
        assert Trust(AUTHORITY.public).check(OPERATOR.proof, NOW).jobs == ()
        assert len(msgspec.msgpack.decode(OPERATOR.proof[69:])) == 7, "older agents read it"

    @pytest.mark.parametrize(
        ("names", "refused"),
        [
            ((), None),
            (("web-1", "db"), None),
            (("web-",), None),
            (("web",), "web"),
            (("db", "dbs"), "dbs"),
            (("",), ""),
        ],
    )
    def test_each_job_must_match_a_pattern(self, names: tuple[str, ...], refused: str | None) -> None:
        OPERATOR.certificate.check_jobs(names)
        if refused is None:
            self.BOB.certificate.check_jobs(names)
            return
        with pytest.raises(TrustError) as caught:
            self.BOB.certificate.check_jobs(names)
        assert caught.value.reason == "jobs"
        assert str(caught.value) == (
            f"'bob' may not change job {refused!r}, only jobs named web-*, db; sign it with keys of an operator who "
            "may, or issue some: elf keys issue NAME --role operator --jobs PATTERN"
        )

    def test_renewing_keeps_them(self) -> None:
        assert AUTHORITY.renew(self.BOB, NOW).certificate.jobs == ("web-*", "db")

    def test_it_cannot_be_passed_off_as_one_without_patterns(self) -> None:
        trust = Trust(AUTHORITY.public)
        assert reason(trust, MAGIC + self.BOB.proof[5:]) == "garbled"
        body = msgspec.msgpack.encode(msgspec.msgpack.decode(self.BOB.proof[69:])[:7])
        for magic in (MAGIC, MAGIC_2):
            assert reason(trust, magic + self.BOB.proof[5:69] + body) in ("forged", "garbled")
        assert reason(trust, MAGIC_2 + OPERATOR.proof[5:]) == "garbled"

    @pytest.mark.parametrize(
        "jobs",
        [("x",) * (PATTERNS_MAX + 1), ("x" * 65,), ("",), ("a b",), ("ü",), ("a\n",), ("x\x1b[31m",)],
        ids=["too many", "too long", "empty", "space", "not ascii", "newline", "escape"],
    )
    def test_other_patterns_are_garbled_whoever_signed_them(self, jobs: tuple[str, ...]) -> None:
        assert reason(Trust(AUTHORITY.public), self.made(MAGIC_2, jobs=jobs)) == "garbled"
        with pytest.raises(TrustError):
            AUTHORITY.issue("bob", "operator", NOW, jobs=jobs)

    def test_only_operators_have_some(self) -> None:
        assert Trust(AUTHORITY.public).check(self.made(MAGIC_2), NOW) == self.BOB.certificate
        assert reason(Trust(AUTHORITY.public), self.made(MAGIC_2, role="agent")) == "garbled"
        with pytest.raises(TrustError, match="do not fit its role"):
            AUTHORITY.issue("web1", "agent", NOW, jobs=("web-*",))

    def test_the_largest_fits(self) -> None:
        jobs = tuple(f"{number:064}" for number in range(PATTERNS_MAX))
        longest = AUTHORITY.issue("n" * 64, "operator", 2**31, days=36_500, jobs=jobs)
        assert len(longest.proof) <= PROOF_BYTES_MAX
        assert Trust(AUTHORITY.public).check(longest.proof, 2**31).jobs == jobs


def test_what_a_signature_is_worth_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    forged = Authority().issue("web1", "agent", NOW).proof
    asked: list[bytes] = []

    def counting(public: bytes, context: bytes, data: bytes, signature: bytes) -> bool:
        asked.append(signature)
        return pairs.is_sealed(public, context, data, signature)

    monkeypatch.setattr("elf.srt.security.certificates.is_sealed", counting)
    trust = Trust(AUTHORITY.public)
    for _ in range(3):
        trust.check(KEYS.proof, NOW)
        reason(trust, forged)
    assert len(asked) == 2
    monkeypatch.setattr("elf.srt.security.certificates.is_sealed", lambda *_: False)
    for number in range(KNOWN_MAX + 10):
        trust.is_sealed(AUTHORITY.public, b"", number.to_bytes(4), bytes(64))
    assert len(trust._known) == KNOWN_MAX


@pytest.mark.process
def test_an_agent_without_keys_never_loads_the_library() -> None:
    program = (
        "import sys; import elf.srt.security.certificates, elf.srt.security.items, elf.srt.security.files; "
        "import elf.agent.node.mesh_node; "
        "print(sorted({'nacl', 'cffi', 'zmq'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "[]\n"
