"""The versions of a job: how a spec gets another one, and what became of the earlier ones. Pure.

A version is a plan, with the values of its parameters but without the query's text, so that two texts of one meaning are one
version. The text is beside it, for people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import asdict, astuple, replace

from elf.errors import UsageError
from elf.jobmaster.directory.job_spec import (
    BODY_BYTES_MAX,
    CHANGES_MAX,
    VERSIONS_MAX,
    Change,
    JobSpec,
    Lost,
    Mode,
    Version,
)
from elf.jobmaster.directory.known_schedule import KnownLine, KnownSchedule
from elf.jobmaster.directory.settings import Settings, name_of
from elf.jobmaster.directory.shared_plans import WHOLE_BYTES_MAX, shared
from elf.jobmaster.log.schedule import Shape, plan_of
from elf.jobmaster.plan.codec import digest, encode
from elf.jobmaster.plan.parameters import parameters, shown
from elf.jobmaster.plan.plan import Plan
from elf.srt.messages.messages import Micros


def version_of(plan: Plan, text: str) -> Version:
    """The plan as a version of a job."""
    bare = replace(plan, sql="")
    return Version(digest(bare), encode(bare), text)


def meaning_of(version: Version) -> str:
    """Equal for versions of one meaning, also for those whose digest has the text in it, as older agents made them."""
    return digest(replace(plan_of(version.plan), sql=""))


def started(spec: JobSpec, asked_us: Micros = 0) -> JobSpec:
    """A job that starts, with its start as the first entry of its history. asked_us: when that was asked for, if its lines count
    from another time on."""
    start = Change(spec.number, spec.versions[-1].digest, "start", asked_us or spec.since_us)
    return replace(spec, changes=(start,))


def with_shared_plans(versions: Sequence[Version]) -> tuple[Version, ...]:
    """These versions, which have all their plans, as a spec has them."""
    return tuple(Version(*each) for each in shared([astuple(each) for each in versions]))


def changed(
    spec: JobSpec,
    version: Version,
    mode: Mode,
    now_us: Micros,
    known: KnownSchedule | None,
    number: int = 0,
    former: str = "",
    settings: Settings | None = None,
) -> JobSpec:
    """The job's next spec, in which `version` comes into force at `now_us` or, by `mode`, near it.

    number: see `next_spec_number`; former: the version that is changed; by default the next number, and the spec's last version.
    settings: the new ones, by default those that the job has.
    Of two versions with one digest only the last remains. The oldest versions whose windows are past retention are left out, as
    many as it takes. Raises UsageError if that is not enough.
    """
    others = [each for each in spec.whole if each.digest != version.digest]
    needed = _needed(spec, now_us, known)
    number = number or spec.number + 1
    former = former or spec.versions[-1].digest
    settings = settings or spec.settings
    both = (spec.settings, settings) if settings != spec.settings else None
    change = Change(number, version.digest, mode, now_us, former=former, settings=both)
    changes = (*_with_lines(spec, known), change)[-CHANGES_MAX:]
    while True:
        new = replace(
            spec,
            number=number,
            versions=with_shared_plans((*others, version)),
            mode=mode,
            line_us=now_us,
            changes=changes,
            **asdict(settings),
        )
        whole_bytes = sum(len(each.plan) for each in (*others, version))
        fits = len(new.encode()) <= BODY_BYTES_MAX and whole_bytes <= WHOLE_BYTES_MAX
        if fits and len(new.versions) <= VERSIONS_MAX:
            return new
        past = next((each for each in others if each.digest not in needed), None)
        if past is None:
            raise UsageError(
                f"job {spec.name} was changed too often: windows of {len(others)} versions can still take corrections; change it "
                "later, or stop it and start it with a shorter --keep"
            )
        others.remove(past)


def _needed(spec: JobSpec, now_us: Micros, known: KnownSchedule | None) -> set[str]:
    """The versions whose windows may still be published or revised. The log drops lines that were replaced before retention,
    which is up to twice `keep_us` behind; the announced schedule still has them."""
    if known is None:
        return {spec.versions[-1].digest}
    retained_us = now_us - latest_revision_us(spec)
    ends = [line.from_us for line in known.lines[1:]]
    lines = zip(known.lines, [*ends, now_us], strict=True)
    return {line.version for line, end in lines if end > retained_us} | {spec.versions[-1].digest}


def latest_revision_us(spec: JobSpec) -> Micros:
    """How long after its start a window of the job may be revised or withdrawn. O(versions)."""
    longest_us = max(Shape.of(plan_of(version.plan)).size_us for version in spec.whole)
    keep_us = max(each.keep_us for each in spec.remembered)
    return 2 * keep_us + max(each.lateness_us for each in spec.remembered) + longest_us


State = Literal["in force", "replaced", "superseded", "waits", "lost", "revoked"]


StepMode = Literal["start", "split", "restate", "next", "fallback"]
"""As in `Change`. fallback: newer versions count no more, because their signers' certificates were revoked."""


class Step(msgspec.Struct, frozen=True):
    """A change in a job's history. asked_us: the time of the command, and from_us: the control line; None if unknown. sql: "" if
    the spec has dropped that version.

    state: "in force"; "replaced" by a later one; "superseded": a later one's control line is not after its own, or came before it
    had any; "waits" to come into force; "lost": taken by a master, but not known to a master of a later term, whose changes hold;
    "revoked": its signer's certificate was. by: who signed it; "" if unknown. values: of the query's parameters, as texts.
    settings: those before it and those that it brought, if it changed any.
    """

    version: str
    mode: StepMode
    asked_us: Micros | None
    from_us: Micros | None
    state: State
    sql: str
    values: dict[str, str] = {}
    by: str = ""
    settings: tuple[Settings, Settings] | None = None


def history(spec: JobSpec, known: KnownSchedule | None, lost: Lost | None = None) -> list[Step]:
    """The job's changes, oldest first. known: the schedule that a master announced last, if any. lost: changes that the spec does
    not have."""
    versions = {version.digest: version for version in spec.whole}
    back = _fallback(spec, known, lost)
    if back is not None and known is not None:
        known = replace(known, lines=known.lines[:-1])
    missing = () if lost is None else _not_of(spec, lost)
    changes = _with_lines(spec, known, missing)
    current = max((at for at, change in enumerate(changes) if change.from_us), default=0)
    steps = list[Step]()
    for at, change in enumerate(changes):
        state = _state(changes, at, current)
        if lost is not None and _has(missing, change):
            is_revoked = change.number in lost.revoked
            state = "revoked" if is_revoked else state if change.from_us else "lost"
        elif back is not None and state == "in force":
            state = "replaced"
        steps.append(_step(change, change.mode, state, versions))
    return steps if back is None else [*steps, _step(back, "fallback", "in force", versions)]


def _not_of(spec: JobSpec, lost: Lost) -> tuple[Change, ...]:
    """The lost changes that came after the spec's first one, and that it does not have."""
    since = spec.changes[0].number if spec.changes else spec.number
    return tuple(each for each in lost.changes if each.number > since and not has_change(spec, each))


def _step(change: Change, mode: StepMode, state: State, versions: Mapping[str, Version]) -> Step:
    about = (change.asked_us or None, change.from_us or None, state, *_told(versions.get(change.version)))
    return Step(change.version, mode, *about, change.by, change.settings)


def _fallback(spec: JobSpec, known: KnownSchedule | None, lost: Lost | None) -> Change | None:
    """The control line back to the spec, which the job has since newer ones count no more; None if it did not fall back, or was
    changed since."""
    if known is None or lost is None or not known.number > max(lost.revoked, default=0) > spec.number:
        return None
    line, by = known.lines[-1], spec.changes[-1].by if spec.changes else ""
    return Change(known.number, line.version, "split", 0, line.from_us, by=by)


def _told(version: Version | None) -> tuple[str, dict[str, str]]:
    """A version's text and the values of its parameters."""
    return ("", {}) if version is None else (version.text, parameter_texts(version))


def parameter_texts(version: Version) -> dict[str, str]:
    """The values of the parameters of a version's query, as texts."""
    return {name: shown(each) for name, each in parameters(plan_of(version.plan)).items()}


def _state(changes: tuple[Change, ...], at: int, current: int) -> State:
    if at == current:
        return "in force"
    if at == len(changes) - 1:
        return "waits"
    from_us = changes[at].from_us
    later = [change.from_us for change in changes[at + 1 :] if change.from_us]
    if from_us and is_signed_again(changes[at + 1]):
        return "replaced"
    return "replaced" if from_us and from_us < min(later, default=0) else "superseded"


def _with_lines(
    spec: JobSpec, known: KnownSchedule | None, lost: tuple[Change, ...] = ()
) -> tuple[Change, ...]:
    """The changes of the spec, and lost ones, with their control lines as far as the schedule has them: both are in the order of
    time. The schedule may have the line of a lost change: of two logs, that with the later majority goes on, and the newer spec
    may be the other side's."""
    changes = list(spec.changes)
    if not changes:  # the spec is of an agent that kept no history
        changes = [Change(spec.number, version.digest, spec.mode, 0) for version in spec.versions]
        changes[0] = replace(changes[0], mode="start")
    if changes[0].mode == "start":
        changes[0] = replace(changes[0], from_us=spec.since_us)
    lines = list(known.lines) if known is not None and known.number >= changes[0].number else []
    recorded = {(change.version, change.from_us) for change in changes}
    after = _settings_after(spec)
    changes = sorted([*changes, *(replace(each, from_us=0) for each in lost)], key=lambda each: each.number)
    for at in range(len(changes) - 1, -1, -1):
        change = changes[at]
        is_again = is_signed_again(change)  # such a change has the line before it
        if known is not None and change.number > known.number and not is_again:
            continue  # its line was not announced yet
        _drop_lines_after(change, lines)
        if (settings := after.get(change.number)) is not None:
            _drop_other_settings(change, name_of(settings.encode()), lines)
        if not lines or lines[-1].version != change.version:
            continue
        if (change.version, lines[-1].from_us) in recorded and _has(lost, change):
            continue
        line = lines[-1] if is_again else lines.pop()
        changes[at] = replace(change, from_us=line.from_us or change.from_us)
    states = [_state(tuple(changes), at, len(changes)) for at in range(len(changes))]
    return tuple(
        replace(change, from_us=0) if state == "replaced" and _has_lost_its_line(change, known) else change
        for change, state in zip(changes, states, strict=True)
    )


def _settings_after(spec: JobSpec) -> dict[int, Settings]:
    """The number of each change of the spec -> the settings that it brought, or left as they were."""
    after, settings = dict[int, Settings](), spec.settings
    for change in reversed(spec.changes):
        after[change.number] = settings
        settings = change.settings[0] if change.settings is not None else settings
    return after


def _drop_other_settings(change: Change, settings: bytes, lines: list[KnownLine]) -> None:
    """Drop the last lines if they bring other settings to the change's version, which went on: they are of changes that are not
    known here, and the change's own line is before them. settings: the name of those that it has."""
    while (
        len(lines) > 1
        and lines[-1].version == lines[-2].version == change.version
        and lines[-1].settings not in (b"", settings)
    ):
        lines.pop()


def _drop_lines_after(change: Change, lines: list[KnownLine]) -> None:
    """Drop the last lines if the change's own line is known to be before them: they are of changes that are not known here."""
    own = change.version, change.from_us
    if (
        is_signed_again(change)
        or not change.from_us
        or own not in {(line.version, line.from_us) for line in lines}
    ):
        return
    while (lines[-1].version, lines[-1].from_us) != own:
        lines.pop()


def _has_lost_its_line(change: Change, known: KnownSchedule | None) -> bool:
    """Whether the change's control line was announced, and a later log does not have it: after a partition, the log that went on
    began before that line, and a newer change took its place."""
    if known is None or change.mode == "start" or is_signed_again(change) or change.number > known.number:
        return False
    lines = {(line.version, line.from_us) for line in known.lines}
    return change.from_us >= known.lines[0].from_us and (change.version, change.from_us) not in lines


def is_signed_again(change: Change) -> bool:
    """Whether a change only brings another signature: neither another version nor other settings."""
    return change.former == change.version and change.settings is None


def has_change(spec: JobSpec, change: Change) -> bool:
    """Whether the job was changed by it on the way to that spec. Two commands may sign the same version for the same number: only
    one of them was taken."""
    return _has(spec.changes, change)


def _has(changes: Sequence[Change], change: Change) -> bool:
    """Whether one of them is that change, with any control line."""
    return any(replace(each, from_us=0) == replace(change, from_us=0) for each in changes)


def lost_changes(former: JobSpec, spec: JobSpec, known: KnownSchedule | None) -> tuple[Change, ...]:
    """The changes of `former` that `spec`, which outranks it, does not have: the masters that took them were of earlier terms."""
    if not spec.changes or spec.changes[0].number >= former.number:
        return ()  # it is of an older agent, or the job was started again
    first = spec.changes[0].number
    later = [each for each in _with_lines(former, known) if each.former and each.number > first]
    return tuple(each for each in later if not has_change(spec, each))


def line_of_change(spec: JobSpec, known: KnownSchedule | None, number: int) -> Micros | None:
    """The control line of an earlier change; None if it is unknown."""
    return next((each.from_us or None for each in _with_lines(spec, known) if each.number == number), None)


def line_of(spec: JobSpec, known: KnownSchedule | None) -> Micros | None:
    """The control line of the spec's last version, once a master has announced it; None before."""
    if known is None or known.number != spec.number or known.lines[-1].version != spec.versions[-1].digest:
        return None
    return known.lines[-1].from_us
