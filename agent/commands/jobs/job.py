"""`elf job …`: jobs of the mesh, through the agent on this host."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from elf.agent.commands.arguments import values_of
from elf.agent.commands.jobs.estimate import estimate_lines, estimate_values
from elf.agent.commands.process.streams import say
from elf.agent.config import units
from elf.agent.config.alert_table import AlertTable, alerts_text, compiled_alerts
from elf.agent.config.job_file import EMIT_US, KEEP_US, JobFile, read_job_file
from elf.agent.config.limits import limits_text
from elf.agent.config.names import check_new, meant
from elf.agent.config.toml_values import read_duration, read_emit
from elf.agent.control import protocol as w
from elf.agent.control.client import Control, socket_path
from elf.agent.formats.fields import LATENESS_MAX_US
from elf.errors import ConfigError, QueryError, UsageError
from elf.jobmaster.directory.job_spec import JobSpec, decode_job, jobs_of
from elf.jobmaster.directory.limits import NO_LIMITS, Limits
from elf.jobmaster.directory.settings import Settings
from elf.srt.messages.messages import Item

if TYPE_CHECKING:
    from elf.agent.control.columns import Schema
    from elf.jobmaster.plan.plan import Plan
    from elf.srt.security.certificates import Keys

CONFIG = Path("/etc/elf/elf.toml")
NEVER_FINAL = "without a window nothing is ever final, so a sink would stay empty; add GROUP BY window(time, '1 minute')"

FLAGS = {
    "sql": "--sql",
    "source": "--source",
    "lateness": "--lateness",
    "emit": "--emit",
    "keep": "--keep",
    "sinks": "--sink",
    "limits": "[limits]",
    "alert": "[[alert]]",
}
"""An option of a job, as job files call it -> as commands call it."""


SETTINGS = {
    "lateness": "lateness_us",
    "emit": "emit_us",
    "keep": "keep_us",
    "sinks": "sinks",
    "limits": "limits",
}
"""Those that a running job may change -> their fields, in `NewJob` as in a job's settings."""


class NewJob(msgspec.Struct, frozen=True):
    """A job as a command or a job file asks for it. lateness_us: None for that of the agents' formats. label: of the folder that
    has its file. params: NAME=VALUE of the query's parameters; the file may have more. sql: "" in an update that leaves the
    query. given: the options that the command, or its file, names. since_us: of a job that never ran; None: now. shown: those of
    its sinks that show open windows too, and so need not be the job's where nothing is ever final."""

    name: str
    sql: str
    source: str | None = None
    lateness_us: int | None = None
    emit_us: int = EMIT_US
    keep_us: int = KEEP_US
    sinks: tuple[str, ...] = ()
    file: JobFile | None = None
    label: str = ""
    params: tuple[str, ...] = ()
    strict: bool = False
    limits: Limits = NO_LIMITS
    alerts: tuple[AlertTable, ...] = ()
    given: tuple[str, ...] = ()
    since_us: int | None = None
    shown: tuple[str, ...] = ()

    def sinks_for(self, plan: Plan) -> tuple[str, ...]:
        """The sinks that take final windows of that query."""
        return tuple(sink for sink in self.sinks if plan.window is not None or sink not in self.shown)

    def place(self, option: str) -> str:
        """Where that option was given, for a message."""
        return self.file.place(option) if self.file is not None else FLAGS[option]


def new_job(
    name: str,
    path: Path | None,
    flags: Mapping[str, Any],
    params: Sequence[str] | None,
    *,
    strict: bool = False,
    exists: bool = False,
) -> NewJob:
    """The job of a command's arguments. flags: option -> its text, None if it was not given. strict: see `compiled`. exists: the
    job has a query already. Raises UsageError."""
    given = {option: text for option, text in flags.items() if text is not None}
    if path is not None:
        if given:
            option = next(iter(given))
            raise UsageError(
                f"{FLAGS[option]}: with -f the file says this; leave {FLAGS[option]} out, and write {option} in {path}"
            )
        job = job_of_file(read_job_file(path), name)
        return msgspec.structs.replace(job, params=tuple(params or ()), strict=strict)
    if "sql" not in given and not (exists and given):
        options = ", options (--lateness, --emit, --keep, --sink)" if exists else ""
        raise UsageError(f"expected a query (--sql SQL){options}, or a job file (-f FILE)")
    readers = {"lateness": read_duration, "emit": read_emit, "keep": read_duration}
    spans = {f"{key}_us": _span(key, read, given[key]) for key, read in readers.items() if key in given}
    sinks = tuple(filter(None, given.get("sinks", ())))
    about = given.get("sql", ""), given.get("source")
    job = NewJob(name, *about, sinks=sinks, params=tuple(params or ()), strict=strict, given=tuple(given))
    return msgspec.structs.replace(job, **spans)


def job_of_file(file: JobFile, name: str, label: str = "") -> NewJob:
    """Raises UsageError if the file is of another job."""
    if file.name not in (None, name):
        raise UsageError(
            f"{file.place('name')}: the file is of job {file.name}, and the command asks for {name}; write one name in both"
        )
    options = (file.source, file.lateness_us, file.emit_us, file.keep_us, file.sinks)
    return NewJob(
        name, file.sql, *options, file, label, limits=file.limits, alerts=file.alerts, given=tuple(file.lines)
    )


def connect(agent: Path | None) -> Control:
    """Connect to the agent on this host. Raises ElfError."""
    config = Path(os.environ.get("ELF_CONFIG") or CONFIG)
    return Control(socket_path(agent, config, os.environ))


def start_command(
    new: NewJob,
    dry_run: bool,
    keys: Path | None,
    agent: Path | None,
    json: bool = False,
    message: Path | None = None,
) -> str:
    """Start a job everywhere; or write the signed message that starts it. Returns what to print. Raises `ElfError`."""
    check_new(new.name)
    with connect(agent) as control:
        held = held_job(control, new.name, columns=True)
    former = decode_job(held.item) if held.item is not None else None
    if former is not None and former.is_finishing:
        raise being_stopped(new.name)
    plan, notes = compiled(new, held)
    spec = spec_of(new, plan, held, former)
    if former is not None and not former.stopped:
        if not differs(former, spec):
            text = f"job {new.name} runs already, with this query; nothing was changed"
            return _values(former, dry_run, None, started=False) if json else text
        raise UsageError(
            f"job {new.name} runs already, with another query or other options; change them with elf job update {new.name}, "
            f"stop it first (elf job stop {new.name}), or choose another name"
        )
    if not dry_run:
        item = signed(spec, keys, held.signed, "start")
        if message is None:
            put_job(agent, item)
    for note in notes:
        say(note)
    if message is not None and not dry_run:
        from elf.agent.commands.jobs.message import write_message

        write_message(item, message, new.name)
        return ""
    estimates = estimates_of(spec.versions[-1].plan, agent) if dry_run else None
    if json:
        return _values(spec, dry_run, estimates, started=not dry_run)
    if estimates is not None:
        return "\n".join(_outlook(spec, held, estimates))
    late = f"windows are final {units.duration_text(spec.lateness_us)} after their end (--lateness sets it); "
    note = late if new.lateness_us is None and plan.window is not None else ""
    return f"job {new.name} was started; {note}see its windows with: elf job watch {new.name}"


def _values(spec: JobSpec, dry_run: bool, estimates: w.Estimates | None, started: bool) -> str:
    """The answer for programs."""
    from elf.agent.commands.mesh_text import as_json
    from elf.jobmaster.directory.differences import parts_of

    last = spec.versions[-1]
    values = {"name": spec.name, "version": last.digest, "dry_run": dry_run, "started": started}
    about = {"from_us": spec.since_us, "options": options_of(spec), "query": parts_of(last)}
    return as_json({**values, **about, "estimates": estimate_values(estimates)})


def _outlook(spec: JobSpec, held: w.JobHeld, estimates: w.Estimates) -> Iterator[str]:
    """What a start would do, as lines of text."""
    from elf.agent.commands.mesh_text import time_text
    from elf.jobmaster.directory.differences import parts_of

    agents = held.schemas[spec.source].followers
    yield f"job {spec.name} would start with version {spec.versions[-1].digest}, at {agents} agent{'s' * (agents != 1)}"
    yield f"from about {time_text(spec.since_us)} UTC on"
    for option, text in options_of(spec).items():
        yield f"{option}: {text}"
    yield from (f"{part}: {text}" for part, text in parts_of(spec.versions[-1]).items() if text != "none")
    yield from estimate_lines(spec.versions[-1].plan, estimates)
    yield "nothing was changed"


def being_stopped(name: str) -> UsageError:
    """A job that is finishing cannot be changed, nor started."""
    return UsageError(
        f"job {name} is being stopped: it ends when its last windows are final; wait for that with elf job stop {name}, or end "
        f"it at once with elf job stop {name} --now"
    )


def list_command(output: str | None, agent: Path | None) -> str:
    """All jobs, as text. Raises `ElfError`."""
    from elf.agent.commands.mesh_text import as_json, is_table, job_table

    with connect(agent) as control:
        answer = control.one(w.JobList())
    assert isinstance(answer, w.Jobs)
    return job_table(answer.jobs) if is_table(output) else as_json(answer.jobs)


def held_job(
    control: Control, name: str, *, exists: bool = False, columns: bool = False, agents: tuple[str, ...] = ()
) -> w.JobHeld:
    answer = control.one(w.JobGet(name, exists, columns, agents))
    assert isinstance(answer, w.JobHeld)
    return answer


def put_job(agent: Path | None, item: Item) -> None:
    with connect(agent) as control:
        control.one(w.JobPut(item))


def estimates_of(plan: bytes, agent: Path | None) -> w.Estimates:
    """What an encoded plan would cost some agents, by the last lines of their logs. Raises `ElfError`."""
    with connect(agent) as control:
        answer = control.one(w.JobEstimate(plan))
    assert isinstance(answer, w.Estimates)
    return answer


def compiled(new: NewJob, held: w.JobHeld, kept: Mapping[str, str] | None = None) -> tuple[Plan, list[str]]:
    """The plan, compiled here so that no agent ever reads SQL, and notices about columns that not all agents have and agents that
    cannot run it. kept: values of parameters that have no other.

    Raises QueryError, UsageError; also if there is such a notice and the job is `strict`.
    """
    from elf.agent.control.columns import Schema
    from elf.jobmaster.compile.query import compile as compile_query

    check_names(new, held)
    values = (new.file.params if new.file is not None else {}) | values_of(new.params)
    sources = held.sources if new.source is None else (new.source,)
    reported = {name: held.schemas.get(name, w.HeldSource(0)) for name in sources}
    schemas = {name: Schema(each.columns, each.followers) for name, each in reported.items()}
    try:
        plan = compile_query(new.sql, {name: schema.types for name, schema in schemas.items()}, values, kept)
    except QueryError as error:
        for schema in schemas.values():
            _check_types(schema, re.findall(r"\w+", new.sql))
        if new.file is not None:
            raise new.file.refusal(error) from error
        raise
    schema = schemas[plan.source]
    columns = [column.name for column in plan.columns]
    _check_types(schema, columns)
    notices = [*schema.lacking(columns), *_unable(held, plan)]
    if notices and new.strict:
        raise UsageError(f"--strict: {'; '.join(notices)}; nothing was changed")
    return plan, notices


def _unable(held: w.JobHeld, plan: Plan) -> list[str]:
    """A notice about agents that cannot run the plan, if there are any."""
    from elf.agent.control.fleet import unable
    from elf.jobmaster.plan.codec import encode
    from elf.jobmaster.plan.features import needed

    notice = unable(held.schemas.get(plan.source, w.HeldSource(0)).features, needed(encode(plan)))
    return [notice] if notice else []


def _check_types(schema: Schema, columns: Sequence[str]) -> None:
    if conflict := schema.conflict(columns):
        raise UsageError(conflict)


def spec_of(new: NewJob, plan: Plan, held: w.JobHeld, former: JobSpec | None) -> JobSpec:
    """The spec that starts the job. former: that of its last life, or of the job that runs. Raises UsageError."""
    from elf.jobmaster.directory.versions import started, version_of

    lateness_us = _lateness_us(new, held.schemas.get(plan.source), former)
    sinks, alerts = new.sinks_for(plan), compiled_alerts(new.alerts, plan)
    settings = Settings(lateness_us, new.keep_us, new.emit_us, sinks, new.limits, alerts)
    check_settings(settings, plan, new.place("sinks"), new.place("limits"))
    # Not before the job's last spec, if the clock of its agent was ahead.
    now_us = max(held.now_us, former.since_us if former is not None else 0)
    since_us = new.since_us if former is None and new.since_us is not None else now_us
    spec = JobSpec(
        new.name,
        former.number + 1 if former is not None else 1,
        plan.source,
        (version_of(plan, new.sql),),
        lateness_us=lateness_us,
        keep_us=new.keep_us,
        sinks=sinks,
        line_us=since_us,
        since_us=since_us,
        emit_us=new.emit_us,
        label=new.label,
        limits=new.limits,
        alerts=alerts,
    )
    return started(spec, now_us)


def _lateness_us(new: NewJob, source: w.HeldSource | None, former: JobSpec | None) -> int:
    """What was asked for; else that of the job as it runs, unless a default was asked for, or the longest of the formats of the
    agents that follow its source."""
    if new.lateness_us is not None:
        return new.lateness_us
    if former is not None and not former.stopped and "lateness" not in new.given:
        return former.lateness_us
    return (source.lateness_us if source is not None else 0) or LATENESS_MAX_US


def check_settings(settings: Settings, plan: Plan, sinks: str, limits: str) -> None:
    """Raises UsageError for a query that cannot have these settings. sinks, limits: where they were given."""
    if plan.window is None and settings.sinks:
        raise UsageError(f"{sinks}: {NEVER_FINAL} to the query, or name no sink")
    if settings.limits.others and plan.families:
        raise UsageError(
            f'{limits}: over = "other": of count(DISTINCT …), approximate functions and sums of doubles there is no row other; '
            'leave these out, or give the job over = "fail"'
        )
    if settings.limits.others and settings.sinks:
        raise UsageError(f'{limits}: over = "other": a lake has no place for the row other; name no sink')


def _span(option: str, read: Callable[[Any], int], text: str) -> int:
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"{FLAGS[option]}: expected {error}, found {text!r}") from error


def options_of(spec: JobSpec) -> dict[str, str]:
    """What a job file or a command's options say of a job beside its query, as text."""
    return {"source": spec.source, **setting_texts(spec.settings)}


def setting_texts(settings: Settings) -> dict[str, str]:
    return {
        "lateness": units.duration_text(settings.lateness_us),
        "emit": units.duration_text(settings.emit_us),
        "keep": units.duration_text(settings.keep_us),
        "sinks": ", ".join(sorted(settings.sinks)) or "none",
        "limits": limits_text(settings.limits),
        "alerts": alerts_text(settings.alerts),
    }


def differs(one: JobSpec, other: JobSpec) -> bool:
    """Whether two specs of a job differ in their query's meaning, or in their options."""
    from elf.jobmaster.directory.versions import meaning_of

    meanings = [meaning_of(spec.versions[-1]) for spec in (one, other)]
    return meanings[0] != meanings[1] or options_of(one) != options_of(other)


def check_names(new: NewJob, held: w.JobHeld) -> None:
    """Raises UsageError for a source or a sink that no agent has."""
    if not held.sources:
        raise UsageError("no agent of the mesh follows any log; add a [[source]] to one")
    if new.source is not None and new.source not in held.sources:
        raise _unknown_name("source", new.place("source"), new.source, held.sources)
    for sink in new.sinks:
        if sink not in held.sinks:
            raise _unknown_name("sink", new.place("sinks"), sink, held.sinks)
    for alert in new.alerts:
        for sink in alert.sinks:
            if sink not in held.sinks:
                raise _unknown_name("sink", alert.place("sinks"), sink, held.sinks)


def _unknown_name(what: str, place: str, name: str, known: Sequence[str]) -> UsageError:
    way = meant(name, known, f"add a [[{what}]] to one")
    return UsageError(f"{place}: no agent of the mesh has a {what} {name!r}; {way}")


def signed(spec: JobSpec, keys: Path | None, must: bool, what: str) -> Item:
    """The job's item, signed with the operator's bundle if one is given. Raises UsageError."""
    bundle = operator_keys(keys, must, what)
    if bundle is None:
        return spec.item()
    from elf.srt.security.items import sign_item

    item = spec.item()
    check_rights(bundle, jobs_of(item))
    return sign_item(bundle, signed_by(spec, bundle.certificate.name).item())


def check_rights(bundle: Keys, jobs: Sequence[str]) -> None:
    """Raises UsageError if the holder of that bundle may not change jobs of these names, as every agent would refuse it."""
    from elf.srt.security.certificates import TrustError

    try:
        bundle.certificate.check_jobs(jobs)
    except TrustError as error:
        raise UsageError(f"--keys: {error}; nothing was changed") from error


def signed_by(spec: JobSpec, name: str) -> JobSpec:
    """The spec, whose last change says who signed it. A stop is no change."""
    if not spec.changes or spec.changes[-1].number != spec.number:
        return spec
    last = msgspec.structs.replace(spec.changes[-1], by=name)
    return msgspec.structs.replace(spec, changes=(*spec.changes[:-1], last))


def operator_keys(keys: Path | None, must: bool, what: str) -> Keys | None:
    """The operator's bundle; None if none is given and none is needed. Raises UsageError."""
    if keys is None:
        if must:
            raise UsageError(
                f"to {what} a job of this mesh it must be signed; name an operator's key bundle with --keys FILE or ELF_KEYS"
            )
        return None
    from elf.srt.security.files import load_keys

    try:
        bundle = load_keys(keys)
    except ConfigError as error:
        raise UsageError(f"--keys: {error}") from error
    if bundle.certificate.role != "operator":
        held = bundle.certificate
        raise UsageError(
            f"--keys: {keys}: the keys of {held.name}, whose role is {held.role}; jobs are signed with an operator's"
        )
    return bundle
