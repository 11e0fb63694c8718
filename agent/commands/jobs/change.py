"""`elf job update`, `elf job set` and `elf job rollback`: a running job gets another version, without a stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import to_builtins
from msgspec.structs import asdict, replace

from elf.agent.commands.arguments import values_of
from elf.agent.commands.jobs.estimate import estimate_lines, estimate_values
from elf.agent.commands.jobs.job import (
    FLAGS,
    SETTINGS,
    NewJob,
    being_stopped,
    check_names,
    check_settings,
    compiled,
    connect,
    estimates_of,
    held_job,
    setting_texts,
    signed,
)
from elf.agent.commands.jobs.outlook import line_lines, line_values
from elf.agent.commands.mesh_text import as_json, time_text
from elf.agent.commands.process.streams import say
from elf.agent.config.alert_table import compiled_alerts, fitting
from elf.agent.config.names import check_asked, unknown_job
from elf.agent.control import protocol as w
from elf.errors import ElfError, UsageError
from elf.jobmaster.directory.differences import Difference, differences
from elf.jobmaster.directory.job_spec import JobSpec, Mode, Version, decode_job
from elf.jobmaster.directory.settings import Settings
from elf.jobmaster.directory.versions import changed, is_signed_again, meaning_of, parameter_texts, version_of
from elf.jobmaster.log.schedule import AFTER_ALL, Shape, plan_of
from elf.jobmaster.plan.parameters import with_values
from elf.jobmaster.plan.plan import Plan
from elf.sinks.console.cells import escape
from elf.srt.messages.messages import Item

MODES: dict[str, Mode] = {"now": "split", "next": "next", "restate": "restate"}
PREFIX_MIN = 4
"""Digits of a version that an operator must give at least."""
TRIES_MAX = 20
"""How often a command may find that another one came first."""
NAMED_MAX = 5
"""Agents named in a message."""
PATIENCE = 15
GOSSIP_S = 0.1
"""A change that is in the log is in the agent's directory after so many times this, unless all who had its item are gone."""


class Update(msgspec.Struct, frozen=True):
    """The arguments of `elf job update`, `set` and `rollback`. new: of an update; to: the version of a rollback. expect: the
    version that the job must have now. values: NAME=VALUE of parameters, for `set`. as_json: the answer is an
    object, not text. message: where the signed change is written, instead of being sent."""

    name: str
    new: NewJob | None = None
    to: str | None = None
    at: str = "now"
    expect: str | None = None
    dry_run: bool = False
    keys: Path | None = None
    values: tuple[str, ...] = ()
    force: bool = False
    as_json: bool = False
    message: Path | None = None

    @property
    def is_rollback(self) -> bool:
        return self.new is None and not self.values


class _Made(msgspec.Struct, frozen=True):
    """The version and the settings that a command wants, and notices about it."""

    version: Version
    settings: Settings
    notes: Sequence[str] = ()


def update_command(update: Update, agent: Path | None) -> str:
    """Change a running job's query, or its options. Returns the text to print. Raises `ElfError`."""
    return _until_taken(update, agent, _updated)


def set_command(update: Update, agent: Path | None) -> str:
    """Give parameters of a running job's query other values. Returns the text to print. Raises `ElfError`."""
    return _until_taken(update, agent, _set)


def rollback_command(update: Update, agent: Path | None) -> str:
    """Give a running job one of its earlier versions again. Returns the text to print. Raises `ElfError`."""
    return _until_taken(update, agent, _earlier)


def _until_taken(
    update: Update, agent: Path | None, make: Callable[[Update, JobSpec, w.JobHeld], _Made]
) -> str:
    """Make the change again, of the version that is in force then, while other commands come first."""
    refused: w.Refused | None = None
    seen = 0
    for attempt in range(TRIES_MAX):
        former, held = _running(update, agent, refused)
        is_behind = refused is not None and refused.version != former.versions[-1].digest
        if (is_behind or (attempt > 1 and former.number == seen)) and attempt < PATIENCE:
            time.sleep(GOSSIP_S)  # the master's log has a change whose item has yet to arrive
            continue
        seen = former.number
        outcome = _change(update, former, held, make(update, former, held), agent, refused)
        if isinstance(outcome, str):
            return outcome
        refused = outcome
    raise ElfError(
        f"job {update.name} was changed {TRIES_MAX} times by other commands meanwhile; nothing was changed; try again"
    )


def _updated(update: Update, former: JobSpec, held: w.JobHeld) -> _Made:
    """Raises QueryError, UsageError."""
    assert update.new is not None
    new, notes = update.new, list[str]()
    if new.sql:
        plan, notes = compiled(new, held, parameter_texts(former.versions[-1]))
        version = version_of(plan, new.sql)
    else:
        check_names(new, held)
        if new.params:
            raise UsageError(
                f"--param: without a query; for values alone: elf job set {new.name} {new.params[0]}"
            )
        if update.at == "restate":
            raise UsageError(
                "--at restate: only a query restates windows; other options hold for windows that begin from now on; leave it out"
            )
        version = former.versions[-1]
        plan = plan_of(version.plan)
    return _Made(version, settings_for(former, new, plan, new.given), notes)


def settings_for(former: JobSpec, new: NewJob, plan: Plan, given: Collection[str] = FLAGS) -> Settings:
    """The settings that a running job gets by the `given` options. Raises UsageError if it cannot become that one."""
    name = former.name
    if plan.source != former.source:
        raise UsageError(
            f"{new.place('sql')}: job {name} reads the source {former.source}, this query reads {plan.source}: that is another "
            "job; start it under another name"
        )
    fields = {option: field for option, field in SETTINGS.items() if option in given}
    asked = {field: getattr(new, field) for field in fields.values()}
    settings = replace(
        former.settings, **{field: value for field, value in asked.items() if value is not None}
    )
    if "alert" in given:
        settings = replace(settings, alerts=compiled_alerts(new.alerts, plan))
    if sorted(settings.sinks) == sorted(former.sinks):
        settings = replace(settings, sinks=former.sinks)
    check_settings(settings, plan, new.place("sinks" if "sinks" in given else "sql"), new.place("limits"))
    return settings


def _set(update: Update, former: JobSpec, held: w.JobHeld) -> _Made:
    """Raises UsageError."""
    plan = changed_values(former, update.values, "NAME=VALUE")
    return _Made(version_of(plan, former.versions[-1].text), former.settings)


def changed_values(former: JobSpec, texts: Sequence[str], flag: str) -> Plan:
    """The plan of a job's last version, with other values of parameters, as NAME=VALUE. Raises UsageError."""
    values = values_of(texts, flag)
    try:
        return with_values(plan_of(former.versions[-1].plan), values)
    except ValueError as error:
        raise UsageError(f"job {former.name}: {error}; nothing was changed") from error


def adopt(update: Update, version: Version, agent: Path | None) -> str:
    """Make that version, of a trial, a running job's. Returns the text to print. Raises `ElfError`."""
    return _until_taken(update, agent, lambda update, former, held: _Made(version, former.settings))


def running_job(name: str, agent: Path | None, *, columns: bool = False) -> tuple[JobSpec, w.JobHeld]:
    """A job, and what its agent knows of it. Raises UsageError if there is none."""
    check_asked(name)
    with connect(agent) as control:
        held = held_job(control, name, exists=True, columns=columns)
    if held.item is None:
        raise unknown_job(name, held.names)
    return decode_job(held.item), held


def _running(update: Update, agent: Path | None, refused: w.Refused | None) -> tuple[JobSpec, w.JobHeld]:
    """The job, if it runs and has the expected version. refused: its master's answer. Raises UsageError."""
    name = update.name
    former, held = running_job(name, agent, columns=update.new is not None)
    if former.trial is not None:
        raise UsageError(
            f"job {name} is a trial of job {former.trial.of}; end it with elf job abort {former.trial.of}, and start another one"
        )
    if former.stopped:
        raise UsageError(
            f"job {name} was stopped, so there is nothing to {'roll back' if update.is_rollback else 'change'}; start it with: "
            f"elf job start {name} --sql SQL"
        )
    if former.is_finishing:
        raise being_stopped(name)
    present = refused.version if refused is not None else former.versions[-1].digest
    if update.expect is not None and not _names(update.expect, present):
        raise UsageError(
            f"--expect-version: job {name} has version {present}, not {update.expect}; nothing was changed; see elf job "
            f"history {name}"
        )
    return former, held


def _names(text: str, digest: str) -> bool:
    return len(text) >= PREFIX_MIN and digest.startswith(text.lower())


def _earlier(update: Update, former: JobSpec, held: w.JobHeld) -> _Made:
    """The version to return to: the named one, or the one before the present one. Raises UsageError."""
    name, earlier = former.name, former.whole[:-1]
    if not earlier:
        raise UsageError(f"job {name} has no earlier version; see elf job history {name}")
    if update.to is None:
        digests = [change.version for change in former.changes]
        before = [digest for digest in digests if digest != former.versions[-1].digest]
        found = [each for each in earlier if not before or each.digest == before[-1]]
        if found:
            return _Made(found[-1], former.settings)
        raise UsageError(
            f"the version before the present one of job {name} is no longer kept; name one with --to V"
        )
    found = [each for each in former.whole if _names(update.to, each.digest)]
    if len(found) == 1:
        return _Made(found[0], former.settings)
    known = ", ".join(each.digest for each in earlier)
    what = "more than one version begins so" if found else "no version of the job is called so"
    raise UsageError(f"--to {update.to}: {what}; there are {known}")


def _change(
    update: Update,
    former: JobSpec,
    held: w.JobHeld,
    made: _Made,
    agent: Path | None,
    refused: w.Refused | None,
) -> str | w.Refused:
    """What to print; or the verdict, if the job's master has not taken the change."""
    version, present = made.version, former.versions[-1]
    settings = replace(
        made.settings, alerts=fitting(made.settings.alerts, plan_of(version.plan), former.name)
    )
    next_number, digest = held.next, present.digest
    if refused is not None:
        next_number, digest = max(refused.next, held.next), refused.version
    has_query = meaning_of(version) == meaning_of(present) and digest == present.digest
    version = present if has_query else version
    is_same = has_query and settings == former.settings
    if is_same and held.revoked:
        version = former.whole[-1]  # another operator signs it
    elif is_same:
        text = f"job {former.name} has {_these(update)} already, as version {present.digest}; nothing changes"
        return _answer(update, former, former, lambda: [text])
    counts_alike = plan_of(version.plan).counts_as(plan_of(present.plan))
    is_checked = update.at == "restate" and not update.force and not counts_alike
    unreadable = [*held.left, *_gone_logs(former.source, agent)] if is_checked else []
    if is_checked:
        _check_readable(unreadable, _oldest_expected(former, held))
    about = held.now_us, held.schedule, next_number, digest, settings
    unread_us = max((until_us for _, until_us in unreadable), default=0)
    spec = replace(changed(former, version, MODES[update.at], *about), unread_us=unread_us)
    for note in made.notes if refused is None else ():
        say(note)
    if update.dry_run:
        estimates = estimates_of(version.plan, agent) if not has_query else None
        values = {"estimates": estimate_values(estimates), **line_values(former, spec, estimates)}
        return _answer(update, former, spec, lambda: _outlook(former, spec, estimates), values)
    what = "roll back" if update.is_rollback else "update"
    item = signed(spec, update.keys, held.signed, what)
    if update.message is not None:
        from elf.agent.commands.jobs.message import write_message

        write_message(item, update.message, spec.name)
        return ""
    answer = send_change(item, agent)
    if isinstance(answer, w.Refused):
        _check_readable(unreadable, answer.unread_us or AFTER_ALL)
        return answer
    return _answer(update, former, spec, lambda: _done(former, spec, answer), asdict(answer))


def _these(update: Update) -> str:
    if update.values:
        return "this query and these values"
    return "this query" if update.new is None or set(update.new.given) <= {"sql", "name"} else "these options"


def _answer(
    update: Update,
    former: JobSpec,
    spec: JobSpec,
    lines: Callable[[], Iterable[str]],
    about: Mapping[str, Any] | None = None,
) -> str:
    """What to print: those lines, or an object with what a program wants to know. about: more of the object's values."""
    if not update.as_json:
        return "\n".join(lines())
    values = {
        "name": former.name,
        "former": former.versions[-1].digest,
        "version": spec.versions[-1].digest,
        "dry_run": update.dry_run,
        "differences": all_differences(former, spec),
    }
    return as_json(to_builtins({**values, **(about or {})}))


WAITS = "waits until agents have read lines again for the change before; a newer change takes its place"


def _done(former: JobSpec, spec: JobSpec, answer: w.Changed) -> Iterator[str]:
    """A change that was made, as lines of text."""
    version, changes = spec.versions[-1], setting_differences(former.settings, spec.settings)
    if answer.waits:
        yield f"job {former.name}: version {version.digest} {WAITS}; see elf job history {former.name}"
        return
    if is_signed_again(spec.changes[-1]):
        yield f"job {former.name}: version {version.digest} is signed by other keys now, and goes on"
        return
    has_query = version.digest == former.versions[-1].digest
    what = f"its new {named(changes)}" if has_query else f"version {version.digest}"
    yield (
        f"job {former.name}: {what} {'are' if has_query and len(changes) > 1 else 'is'} in force from "
        f"{time_text(answer.from_us)} UTC on{confirmed(answer)}; that took {answer.took_us / 1000:.0f} ms"
    )
    yield from map(str, changes)
    yield from unconfirmed(answer)


def named(changes: Sequence[Difference]) -> str:
    """The names of changed settings, in a sentence."""
    *some, last = [each.part for each in changes]
    return f"{', '.join(some)} and {last}" if some else last


def setting_differences(former: Settings, new: Settings) -> list[Difference]:
    before, after = setting_texts(former), setting_texts(new)
    return [Difference(part, before[part], after[part]) for part in before if before[part] != after[part]]


def all_differences(former: JobSpec, spec: JobSpec) -> list[Difference]:
    """What a change brings: in the query's meaning, and of the options."""
    changes = setting_differences(former.settings, spec.settings)
    return [*differences(former.versions[-1], spec.versions[-1]), *changes]


def confirmed(answer: w.Changed) -> str:
    """At how many agents a change is in force, as an end of a sentence; "" if that is unknown."""
    return f" at {answer.confirmed} of {answer.agents} agents" if answer.agents else ""


def unconfirmed(answer: w.Changed) -> list[str]:
    """The agents that have not confirmed a change, a line each. Each takes it with the next message that it gets for the job."""
    lines = [f"{escape(name)} has not confirmed it: {escape(reason)}" for name, reason in answer.missing]
    more = answer.agents - answer.confirmed - len(lines)
    return [*lines, f"{more} more have not confirmed it"] if more else lines


def send_change(item: Item, agent: Path | None) -> w.Changed | w.Refused:
    """Have the job's master judge that change. Returns its verdict, once the change is in force if it was taken. Raises
    ElfError."""
    with connect(agent) as control:
        answer = control.one(w.JobChange(item))
    assert isinstance(answer, w.Changed | w.Refused)
    return answer


def _oldest_expected(former: JobSpec, held: w.JobHeld) -> int:
    """About where the oldest window that is not final begins, if none waits longer than its lateness; the job's master knows."""
    longest_us = max(Shape.of(plan_of(version.plan)).size_us for version in former.whole)
    return max(held.now_us - former.lateness_us - longest_us, former.since_us)


def _gone_logs(source: str, agent: Path | None) -> Iterator[tuple[str, int]]:
    """The agents that have lost files of that source which they had read, and the latest time of a line in these."""
    with connect(agent) as control:
        status = control.one(w.MeshStatus())
    assert isinstance(status, w.Status)
    for member in status.members:
        if (until_us := (member.gone or {}).get(source)) is not None:
            yield member.name, until_us


def _check_readable(unreadable: Iterable[tuple[str, int]], since_us: int) -> None:
    """Raises UsageError if lines of windows that are not final cannot be read again at an agent: it has left since then, or was
    revoked, or files with such lines are gone. unreadable: agents, and until when lines may be missing there."""
    names = [name for name, until_us in unreadable if until_us > since_us]
    if names:
        more = len(names) - NAMED_MAX
        some = ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        raise UsageError(
            f"--at restate: lines of windows that are not final cannot be read again at agents that have left, were revoked or "
            f"have lost logs since {time_text(since_us)} UTC: {some}; these windows would count them as missing; nothing was "
            "changed; change the job --at next, or add --force"
        )


def _outlook(former: JobSpec, spec: JobSpec, estimates: w.Estimates | None) -> Iterator[str]:
    """What a change would do, as lines of text."""
    old, new = former.versions[-1], spec.versions[-1]
    if is_signed_again(spec.changes[-1]):
        yield f"version {new.digest} of job {spec.name} would be signed by other keys, and go on"
        yield "nothing was changed"
        return
    if old.digest == new.digest:
        yield f"job {spec.name} would change its {named(setting_differences(former.settings, spec.settings))}"
    else:
        yield f"job {spec.name} would change from version {old.digest} to {new.digest}"
    yield from line_lines(former, spec, estimates)
    for difference in all_differences(former, spec):
        yield escape(str(difference))
    if estimates is not None:
        yield from estimate_lines(new.plan, estimates)
    yield "nothing was changed"
