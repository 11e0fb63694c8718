"""`elf job …`: jobs of the mesh, through the agent on this host."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from elf.agent.commands.process.streams import say
from elf.agent.config import units
from elf.agent.config.names import check_asked, check_new, meant, unknown_job
from elf.agent.control import protocol as w
from elf.agent.control.socket import Control, socket_path
from elf.errors import ConfigError, QueryError, UsageError
from elf.jobmaster.directory.job_spec import JobSpec, decode_job
from elf.srt.messages.messages import Item

if TYPE_CHECKING:
    from elf.agent.control.columns import Schema
    from elf.jobmaster.plan.plan import Plan

CONFIG = Path("/etc/elf/elf.toml")
NEVER_FINAL = "without a window nothing is ever final, so a sink would stay empty; add GROUP BY window(time, '1 minute')"


class NewJob(msgspec.Struct, frozen=True):
    """The arguments of `elf job start`."""

    name: str
    sql: str
    source: str | None = None
    lateness: str = "60s"
    emit: str = "250ms"
    keep: str = "1h"
    sinks: tuple[str, ...] = ()
    keys: Path | None = None


def connect(agent: Path | None) -> Control:
    """Connect to the agent on this host. Raises ElfError."""
    config = Path(os.environ.get("ELF_CONFIG") or CONFIG)
    return Control(socket_path(agent, config, os.environ))


def start_command(new: NewJob, agent: Path | None) -> str:
    """Start a job everywhere. Returns the line to print. Raises `ElfError`."""
    check_new(new.name)
    with connect(agent) as control:
        held = held_job(control, new.name, columns=True)
    former = decode_job(held.item) if held.item is not None else None
    plan, notes = compiled(new, held)
    spec = _spec(new, plan, held, former)
    if former is not None and not former.stopped:
        if _is_same_job(former, spec):
            return f"job {new.name} runs already, with this query; nothing was changed"
        raise UsageError(
            f"job {new.name} runs already, with another query or other options; change its query with elf job update {new.name}, "
            f"stop it first (elf job stop {new.name}), or choose another name"
        )
    put_job(agent, signed(spec, new.keys, held.signed, "start"))
    for note in notes:
        say(note)
    return f"job {new.name} was started; see its windows with: elf job watch {new.name}"


def stop_command(name: str, keys: Path | None, agent: Path | None) -> str:
    """Stop a job everywhere. Returns the line to print. Raises `ElfError`."""
    check_asked(name)
    with connect(agent) as control:
        held = held_job(control, name, exists=True)
    if held.item is None:
        raise unknown_job(name, held.names)
    former = decode_job(held.item)
    if former.stopped:
        return f"job {name} was stopped before; nothing was changed"
    spec = msgspec.structs.replace(former, number=former.number + 1, stopped=True)
    put_job(agent, signed(spec, keys, held.signed, "stop"))
    return f"job {name} was stopped"


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


def compiled(new: NewJob, held: w.JobHeld) -> tuple[Plan, list[str]]:
    """The plan, compiled here so that no agent ever reads SQL, and notices about columns that not all agents have.

    Raises QueryError, UsageError.
    """
    from elf.agent.control.columns import Schema
    from elf.jobmaster.compile.query import compile as compile_query

    _check_names(new, held)
    sources = held.sources if new.source is None else (new.source,)
    reported = {name: held.schemas.get(name, w.HeldSource(0)) for name in sources}
    schemas = {name: Schema(each.columns, each.followers) for name, each in reported.items()}
    try:
        plan = compile_query(new.sql, {name: schema.types for name, schema in schemas.items()})
    except QueryError:
        for schema in schemas.values():
            _check_types(schema, re.findall(r"\w+", new.sql))
        raise
    schema = schemas[plan.source]
    columns = [column.name for column in plan.columns]
    _check_types(schema, columns)
    return plan, schema.lacking(columns)


def _check_types(schema: Schema, columns: Sequence[str]) -> None:
    if conflict := schema.conflict(columns):
        raise UsageError(conflict)


def _spec(new: NewJob, plan: Plan, held: w.JobHeld, former: JobSpec | None) -> JobSpec:
    """Raises UsageError."""
    from elf.jobmaster.directory.versions import started, version_of

    lateness_us = _span("--lateness", new.lateness)
    emit_us, keep_us = _span("--emit", new.emit), _span("--keep", new.keep)
    if emit_us < 10_000:
        raise UsageError(f"--emit: expected a duration of at least 10ms, found {new.emit!r}")
    if plan.window is None and new.sinks:
        raise UsageError(f"{NEVER_FINAL} to the query, or leave --sink out")
    # Not before the job's last spec, if the clock of its agent was ahead.
    now_us = max(held.now_us, former.since_us if former is not None else 0)
    spec = JobSpec(
        new.name,
        former.number + 1 if former is not None else 1,
        plan.source,
        (version_of(plan, new.sql),),
        lateness_us=lateness_us,
        keep_us=keep_us,
        sinks=new.sinks,
        line_us=now_us,
        since_us=now_us,
        emit_us=emit_us,
    )
    return started(spec)


def _span(flag: str, text: str) -> int:
    try:
        return units.duration_us(text)
    except ValueError as error:
        raise UsageError(f"{flag}: expected {error}, found {text!r}") from error


def _is_same_job(former: JobSpec, spec: JobSpec) -> bool:
    from elf.jobmaster.directory.versions import meaning_of

    def asked(one: JobSpec) -> tuple[object, ...]:
        return (
            meaning_of(one.versions[-1]),
            one.source,
            one.lateness_us,
            one.keep_us,
            one.emit_us,
            set(one.sinks),
        )

    return asked(former) == asked(spec)


def _check_names(new: NewJob, held: w.JobHeld) -> None:
    """Raises UsageError for a source or a sink that no agent has."""
    if not held.sources:
        raise UsageError("no agent of the mesh follows any log; add a [[source]] to one")
    if new.source is not None and new.source not in held.sources:
        raise _unknown_name("source", "--source", new.source, held.sources)
    for sink in new.sinks:
        if sink not in held.sinks:
            raise _unknown_name("sink", "--sink", sink, held.sinks)


def _unknown_name(what: str, flag: str, name: str, known: Sequence[str]) -> UsageError:
    way = meant(name, known, f"add a [[{what}]] to one")
    return UsageError(f"{flag}: no agent of the mesh has a {what} {name!r}; {way}")


def signed(spec: JobSpec, keys: Path | None, must: bool, what: str) -> Item:
    """The job's item, signed with the operator's bundle if one is given. Raises UsageError."""
    if keys is None:
        if must:
            raise UsageError(
                f"to {what} a job of this mesh it must be signed; name an operator's key bundle with --keys FILE or ELF_KEYS"
            )
        return spec.item()
    from elf.srt.security.files import load_keys
    from elf.srt.security.items import sign_item

    try:
        bundle = load_keys(keys)
    except ConfigError as error:
        raise UsageError(f"--keys: {error}") from error
    if bundle.certificate.role != "operator":
        held = bundle.certificate
        raise UsageError(
            f"--keys: {keys}: the keys of {held.name}, whose role is {held.role}; jobs are signed with an operator's"
        )
    return sign_item(bundle, spec.item())
