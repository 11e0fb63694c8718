"""The lines of `elf mesh audit`: which command made a change, and what is derived rather than entered."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from elf.agent.control.audit import AUTHORITY, AuditList, audited_of, lines_of, what_of
from elf.agent.formats.presets import COLUMN_TYPES
from elf.errors import ElfError, UsageError
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import Change, JobSpec, Lost, Trial, Version, is_readable, lost_item
from elf.jobmaster.directory.versions import changed, started, version_of
from elf.jobmaster.plan.parameters import with_values
from elf.srt.messages.messages import Item
from elf.srt.messages.parameters import Parameters
from elf.srt.security.certificates import Authority, TrustError
from elf.srt.security.items import revocation, sign_item, signed_of
from tests.jobmaster.directory.test_versions import A, B

ME = b"m" * 16
NOW = 1_800_000_000
ANN = Authority(b"a" * 32).issue("ann", "operator", NOW)
KEY = ANN.certificate.serial.hex()


class Host:
    def __init__(self) -> None:
        self.directory = Directory(Parameters(), is_readable, Random(0))
        self.now = NOW * 1_000_000

    def clock_us(self) -> int:
        return self.now

    def announce(self, item: Item) -> None:
        assert self.directory.put(item, self.now)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def audit(host: Host) -> AuditList:
    return AuditList(host, lambda: host.directory, ME)


def first() -> JobSpec:
    return started(JobSpec("visits", 1, "access", (A,), since_us=5))


def told(host: Host) -> list[tuple[str, ...]]:
    lines = lines_of(host.directory, {ME: "web0"})
    return [(line.operator, line.agent, line.job, line.what, line.outcome, line.reason) for line in lines]


class TestWhatItIs:
    def test_a_start_a_change_and_a_stop(self, host: Host) -> None:
        spec = first()
        assert what_of(spec, host.directory) == "start"
        second = changed(spec, B, "split", 9, None)
        assert what_of(second, host.directory) == "update"
        assert what_of(changed(second, A, "split", 12, None), host.directory) == "rollback"
        assert what_of(replace(second, stopped=True), host.directory) == "stop"

    def test_a_set_changes_values_only(self, host: Host) -> None:
        text = "SELECT window, count(*) AS n FROM access WHERE status > :least GROUP BY window(time, '10 seconds')"
        low = compile_query(text, {"access": COLUMN_TYPES}, {"least": "1"})
        high = with_values(low, {"least": "2"})
        spec = started(JobSpec("visits", 1, "access", (version_of(low, text),), since_us=5))
        assert what_of(changed(spec, version_of(high, text), "split", 9, None), host.directory) == "set"

    def trial(self, version: Version, stopped: bool = False) -> JobSpec:
        trial = Trial("visits", A.digest, (), 1 << 60)
        spec = JobSpec("visits~try1", 1 + stopped, "access", (version,), stopped=stopped, trial=trial)
        return started(spec)

    def test_a_trial_and_how_it_ends(self, host: Host) -> None:
        host.announce(first().item())
        assert what_of(self.trial(B), host.directory) == "try"
        assert what_of(self.trial(A), host.directory) is None, "the version that runs beside it"
        assert what_of(self.trial(B, stopped=True), host.directory) == "abort"
        host.announce(self.trial(B).item())
        second = changed(first(), B, "split", 9, None)
        assert what_of(second, host.directory) == "promote"
        host.announce(second.item())
        assert what_of(self.trial(B, stopped=True), host.directory) is None, "it is promoted"

    def test_a_trial_is_listed_under_the_job_whose_change_it_tries(self, host: Host) -> None:
        host.announce(first().item())
        audited = audited_of(self.trial(B), signed_of(first().item()), host.directory)
        assert audited is not None
        assert (audited.job, audited.what, audited.version) == ("visits", "try", B.digest)


class TestVerdicts:
    def test_taken_and_refused(self, host: Host, audit: AuditList) -> None:
        item = sign_item(ANN, first().item(), NOW)
        with audit.request(first(), item) as request:
            request.taken()
            request.refused("too late: it has a verdict")
        assert told(host) == [("ann", "web0", "visits", "start", "taken", "")]
        (line,) = lines_of(host.directory, {})
        assert (line.at_us, line.key, line.agent, line.version) == (host.now, KEY, ME.hex(), A.digest)

    @pytest.mark.parametrize(
        ("error", "outcome", "reason"),
        [
            (UsageError("it was stopped"), "refused", "it was stopped"),
            (ElfError("nobody answered"), "unknown", "nobody answered"),
            (ElfError("x" * 999), "unknown", "x" * 200),
            (GeneratorExit(), "unknown", "the command ended before the answer came"),
        ],
    )
    def test_what_ends_it(
        self, host: Host, audit: AuditList, error: BaseException, outcome: str, reason: str
    ) -> None:
        with pytest.raises(type(error)), audit.request(first(), sign_item(ANN, first().item(), NOW)):
            raise error
        assert told(host) == [("ann", "web0", "visits", "start", outcome, reason)]

    def test_what_is_not_signed_is_counted(self, host: Host, audit: AuditList) -> None:
        for _ in range(3):
            audit.unsigned(TrustError("forged", "whatever text a stranger sends"))
        audit.unsigned(None)
        lines = lines_of(host.directory, {})
        assert {(line.what, line.reason, line.times) for line in lines} == {
            ("unsigned", "forged", 3),
            ("unsigned", "garbled", 1),
        }


class TestDerived:
    def test_changes_that_no_agent_entered(self, host: Host, audit: AuditList) -> None:
        """Its agent ended before the verdict: the job's item tells what was changed, and who signed the last change."""
        spec = changed(first(), B, "split", 9, None)
        host.announce(sign_item(ANN, spec.item(), NOW))
        assert told(host) == [
            ("", "", "visits", "start", "taken", ""),
            ("ann", "", "visits", "update", "taken", ""),
        ]
        with audit.request(spec, sign_item(ANN, spec.item(), NOW)) as request:
            request.taken()
        assert told(host)[1:] == [("ann", "web0", "visits", "update", "taken", "")]
        host.announce(sign_item(ANN, replace(spec, number=9, stopped=True).item(), NOW + 7))
        (line,) = [line for line in lines_of(host.directory, {}) if line.what == "stop"]
        assert (line.at_us, line.operator, line.outcome) == ((NOW + 7) * 1_000_000, "ann", "taken")

    def test_a_change_that_was_lost_later(self, host: Host, audit: AuditList) -> None:
        spec = changed(first(), B, "split", 9, None)
        with audit.request(spec, spec.item()) as request:
            request.taken()
        host.announce(first().item())
        assert told(host)[1][3:5] == ("update", "taken")
        change = Change(spec.number, B.digest, "split", 9, former=A.digest)
        host.announce(lost_item(spec.id, 7, Lost((change,))))
        assert told(host)[1][3:] == ("update", "lost", "a master of a later term took another change")

    def test_a_change_whose_verdict_never_came_is_taken_if_the_job_has_it(
        self, host: Host, audit: AuditList
    ) -> None:
        spec = changed(first(), B, "split", 9, None)
        with pytest.raises(ElfError), audit.request(spec, sign_item(ANN, spec.item(), NOW)):
            raise ElfError("nobody answered")
        host.announce(first().item())
        assert told(host)[1] == ("ann", "web0", "visits", "update", "unknown", "nobody answered")
        host.announce(spec.item())
        assert told(host)[1:] == [("ann", "web0", "visits", "update", "taken", "")]

    def test_of_two_starts_at_once_the_list_says_which_one_holds(self, host: Host, audit: AuditList) -> None:
        other = started(JobSpec("visits", 1, "access", (B,), since_us=6))
        for spec in (first(), other):
            with audit.request(spec, spec.item()) as request:
                request.taken()
        host.announce(first().item())
        assert sorted(line[3:] for line in told(host)) == [
            ("start", "lost", "the job was started with another query at the same time"),
            ("start", "taken", ""),
        ]

    def test_revocations(self, host: Host) -> None:
        host.announce(revocation(Authority(b"a" * 32), ANN.certificate, NOW))
        (line,) = lines_of(host.directory, {})
        assert (line.operator, line.what, line.outcome, line.at_us) == (
            AUTHORITY,
            "revoke",
            "taken",
            NOW * 1_000_000,
        )
        assert line.reason == f"all that ann signed with key {KEY} is void"

    def test_one_of_an_older_build_and_one_that_is_garbled_are_shown(self, host: Host) -> None:
        host.announce(Item("revoked", b"s" * 16, (7,), b"\xc1"))
        (line,) = lines_of(host.directory, {})
        assert (line.at_us, line.what) == (7_000_000, "revoke")
