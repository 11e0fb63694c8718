"""`elf mesh audit` at an agent: enters the requests that it takes into the audit list, and makes the list's lines.

The list has what agents entered (`elf.jobmaster.directory.audit`). Derived from other items are: revocations; which changes were
taken or lost after all; and changes that no agent entered, since the agent that took the command ended before it had
the answer, or is modified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec
from msgspec.structs import replace

from elf.agent.control.protocol import AuditLine
from elf.errors import ElfError, PeerError, UsageError
from elf.jobmaster.directory.audit import REASON_MAX, Audited, What, agent_of, audit_item, decode_audited
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.ending import is_end
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import END, JobSpec, decode_job
from elf.jobmaster.directory.shared_plans import parted
from elf.srt.messages.ids import NodeId, job_id
from elf.srt.messages.messages import Item, Micros
from elf.srt.messages.revocation import Revocation
from elf.srt.messages.typed import parse
from elf.srt.security.certificates import TrustError
from elf.srt.security.items import Signed, signed_of

LINES_MAX = 10_000
"""In one answer: 3 MB."""
SECOND_US = 1_000_000
AUTHORITY = "(authority)"


class Host(Protocol):
    """What the list needs of the process around a node."""

    def clock_us(self) -> int: ...

    def announce(self, item: Item) -> None:
        """Sign an item as this agent, and put it into the directory."""


class AuditList:
    """The list as this agent writes it."""

    def __init__(self, host: Host, directory: Callable[[], Directory], me: NodeId) -> None:
        self._host, self._directory, self._me = host, directory, me

    def request(self, spec: JobSpec, item: Item) -> Request:
        """A request to change a job, which has a valid signature. Enter the context while it is handled."""
        audited = audited_of(spec, signed_of(item), self._directory())
        return Request(self, audited)

    def unsigned(self, refusal: TrustError | None) -> None:
        """A request without a valid signature was refused: count it."""
        reason = refusal.reason if refusal is not None else "garbled"
        self.enter(Audited("unsigned", "", 0, "", "refused", reason))

    def enter(self, audited: Audited) -> None:
        directory, now = self._directory(), self._host.clock_us()
        self._host.announce(audit_item(directory, self._me, audited, now))


class Request:
    """A request while it is handled: entered into the list when the context ends. Without a verdict by then, it is refused if a
    UsageError ends the context, else unknown."""

    def __init__(self, audit: AuditList, audited: Audited | None) -> None:
        self._audit, self._audited = audit, audited
        self._is_judged = False

    def __enter__(self) -> Request:
        return self

    def taken(self) -> None:
        self._judge(lambda audited: replace(audited, outcome="taken"))

    def refused(self, reason: str) -> None:
        self._judge(lambda audited: replace(audited, outcome="refused", reason=reason[:REASON_MAX]))

    def _judge(self, verdict: Callable[[Audited], Audited]) -> None:
        if self._audited is not None and not self._is_judged:
            self._is_judged = True
            self._audit.enter(verdict(self._audited))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UsageError):
            self.refused(str(error))
            return
        reason = str(error) if isinstance(error, ElfError) else "the command ended before the answer came"
        self._judge(lambda audited: replace(audited, outcome="unknown", reason=reason[:REASON_MAX]))


# What a request is.


def audited_of(spec: JobSpec, signed: Signed, directory: Directory) -> Audited | None:
    """The request, whose outcome is yet unknown; None for one that only belongs to another: the present version that runs beside
    a trial, and the end of a trial that was promoted. O(versions)."""
    what = what_of(spec, directory)
    if what is None:
        return None
    job = spec.name if spec.trial is None else spec.trial.of
    version = spec.versions[-1].digest
    return Audited(what, job, spec.number, version, "unknown", "", signed.name, signed.serial)


def what_of(spec: JobSpec, directory: Directory) -> What | None:
    """Which command asks for that spec; see `audited_of`."""
    version = spec.versions[-1].digest
    if spec.trial is not None:
        if spec.trial.version == version:
            return None
        job = JobItems(directory, job_id(spec.trial.of)).item()
        is_promoted = job is not None and decode_job(job).versions[-1].digest == version
        return "try" if not spec.stopped else None if is_promoted else "abort"
    if spec.stopped:
        return "stop"
    if spec.changes and spec.changes[-1].mode != "start" and _is_tried(spec, directory):
        return "promote"
    return what_of_change(spec, len(spec.changes) - 1)


def _is_tried(spec: JobSpec, directory: Directory) -> bool:
    """Whether a trial of the job's last version runs."""
    version = spec.versions[-1].digest
    trials = (decode_job(item) for item in directory.items("job"))
    return any(
        each.trial is not None
        and each.trial.of == spec.name
        and each.trial.version != version
        and each.versions[-1].digest == version
        and not each.stopped
        for each in trials
    )


def what_of_change(spec: JobSpec, at: int) -> What:
    """Which command made a change in the spec's history, as far as that shows."""
    if at < 0 or spec.changes[at].mode == "start":
        return "start"
    if spec.changes[at].version == END:
        return "stop"
    change, versions = spec.changes[at], {version.digest: version for version in spec.whole}
    if change.settings is not None and change.version == change.former:
        return "update"
    if change.version in (each.version for each in spec.changes[:at]):
        return "rollback"
    new, former = versions.get(change.version), versions.get(change.former)
    if new is None or former is None:
        return "update"
    return "set" if parted(new.plan)[0] == parted(former.plan)[0] else "update"


# The list.


def lines_of(directory: Directory, names: Mapping[NodeId, str]) -> list[AuditLine]:
    """The newest `LINES_MAX` lines, oldest first: the same at all nodes that hold the same items. O(items)."""
    entered = [(item, decode_audited(item)) for item in directory.items("audit")]
    jobs = {spec.name: spec for spec in map(decode_job, directory.items("job"))}
    lost = {
        (spec.name, change.number, change.version)
        for spec in jobs.values()
        for held in [JobItems(directory, spec.id).lost()]
        for change in (held.changes if held is not None else ())
    }
    lines = []
    for item, audited in entered:
        is_lost = (audited.job, audited.number, audited.version) in lost
        lines.append(_line(item, audited, names, _verdict(audited, jobs.get(audited.job), is_lost)))
    known = {(each.job, each.number, each.version) for _, each in entered if each.outcome != "refused"}
    for item in directory.items("job"):
        lines += _not_entered(item, known)
    lines += _revocations(directory.items("revoked"))
    return sorted(lines, key=msgspec.structs.astuple)[-LINES_MAX:]


def _verdict(audited: Audited, spec: JobSpec | None, is_lost: bool) -> tuple[str, str]:
    """The outcome of a request and the reason, with what the job's history knows. is_lost: a change that was lost."""
    if audited.outcome == "refused" or spec is None or not spec.changes:
        return audited.outcome, audited.reason
    if is_lost:
        return "lost", "a master of a later term took another change"
    first, changes = spec.changes[0], {(each.number, each.version) for each in spec.changes}
    if audited.what == "start" and first.number == audited.number and first.version != audited.version:
        return "lost", "the job was started with another query at the same time"
    if (audited.number, audited.version) in changes:
        return "taken", ""
    return audited.outcome, audited.reason


def _line(item: Item, audited: Audited, names: Mapping[NodeId, str], verdict: tuple[str, str]) -> AuditLine:
    node = agent_of(item)
    return AuditLine(
        item.stamp[0],
        audited.operator,
        audited.serial.hex(),
        names.get(node) or node.hex(),
        audited.job,
        audited.what,
        audited.version,
        *verdict,
        audited.times,
    )


def _not_entered(item: Item, known: set[tuple[str, int, str]]) -> Iterator[AuditLine]:
    """Changes of a job that no agent entered; known: those that one did. Only the last one has a signature that shows who
    made it."""
    spec, signed = decode_job(item), signed_of(item)
    if spec.trial is not None:
        return
    version = spec.versions[-1].digest
    for at, change in enumerate(spec.changes):
        if (spec.name, change.number, change.version) not in known:
            by = signed if change.number == spec.number else Signed("", b"", 0)
            yield _derived(change.asked_us, by, spec, what_of_change(spec, at), change.version)
    if spec.stopped and not is_end(spec) and (spec.name, spec.number, version) not in known:
        yield _derived(signed.when_s * SECOND_US, signed, spec, "stop", version)


def _derived(at_us: Micros, by: Signed, spec: JobSpec, what: What, version: str) -> AuditLine:
    return AuditLine(at_us, by.name, by.serial.hex(), "", spec.name, what, version, "taken")


def _revocations(items: Iterable[Item]) -> Iterator[AuditLine]:
    for item in items:
        try:
            about = parse(item.body, Revocation)
        except PeerError:  # it has no name
            about = Revocation("", item.stamp[0] if item.stamp else 0)
        reason = f"all that {about.name or 'its holder'} signed with key {item.name.hex()} is void"
        yield AuditLine(about.revoked_s * SECOND_US, AUTHORITY, "", "", "", "revoke", "", "taken", reason)
