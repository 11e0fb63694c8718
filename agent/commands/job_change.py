"""`elf job update` and `elf job rollback`: a running job gets another version, without a stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from elf.agent.commands.job import NEVER_FINAL, NewJob, compiled, connect, held_job, signed
from elf.agent.commands.mesh_text import time_text
from elf.agent.commands.process.streams import say
from elf.agent.config.names import check_asked, unknown_job
from elf.agent.control import protocol as w
from elf.errors import UsageError
from elf.jobmaster.compile.explain import described
from elf.jobmaster.directory.changes import next_boundary
from elf.jobmaster.directory.job_spec import JobSpec, Mode, Version, decode_job
from elf.jobmaster.directory.versions import changed, meaning_of, version_of
from elf.jobmaster.log.schedule import plan_of

MODES: dict[str, Mode] = {"now": "split", "next": "next", "restate": "restate"}
PREFIX_MIN = 4
"""Digits of a version that an operator must give at least."""


class Update(msgspec.Struct, frozen=True):
    """The arguments of `elf job update` and `elf job rollback`. sql: None for a rollback; to: its version. expect: the version
    that the job must have now."""

    name: str
    sql: str | None = None
    to: str | None = None
    at: str = "now"
    expect: str | None = None
    dry_run: bool = False
    keys: Path | None = None


def update_command(update: Update, agent: Path | None) -> str:
    """Change a running job's query. Returns the text to print. Raises `ElfError`."""
    former, held = _running(update, agent, "update")
    plan, notes = compiled(NewJob(update.name, update.sql or ""), held)
    if plan.source != former.source:
        raise UsageError(
            f"--sql: job {update.name} reads the source {former.source}, this query reads {plan.source}: that is another job; "
            "start it under another name"
        )
    if plan.window is None and former.sinks:
        raise UsageError(f"--sql: {NEVER_FINAL}")
    return _change(update, former, held, version_of(plan, update.sql or ""), notes, agent)


def rollback_command(update: Update, agent: Path | None) -> str:
    """Give a running job one of its earlier versions again. Returns the text to print. Raises `ElfError`."""
    former, held = _running(update, agent, "rollback")
    return _change(update, former, held, _earlier(update, former), [], agent)


def adopt(update: Update, version: Version, agent: Path | None) -> str:
    """Make that version, of a trial, a running job's. Returns the text to print. Raises `ElfError`."""
    former, held = _running(update, agent, "update")
    return _change(update, former, held, version, [], agent)


def running_job(name: str, agent: Path | None, *, columns: bool = False) -> tuple[JobSpec, w.JobHeld]:
    """A job, and what its agent knows of it. Raises UsageError if there is none."""
    check_asked(name)
    with connect(agent) as control:
        held = held_job(control, name, exists=True, columns=columns)
    if held.item is None:
        raise unknown_job(name, held.names)
    return decode_job(held.item), held


def _running(update: Update, agent: Path | None, command: str) -> tuple[JobSpec, w.JobHeld]:
    """The job, if it runs and has the expected version. Raises UsageError."""
    name = update.name
    former, held = running_job(name, agent, columns=True)
    if former.trial is not None:
        raise UsageError(
            f"job {name} is a trial of job {former.trial.of}; end it with elf job abort {former.trial.of}, and start another one"
        )
    if former.stopped:
        raise UsageError(
            f"job {name} was stopped, so there is nothing to {'change' if command == 'update' else 'roll back'}; start it with: "
            f"elf job start {name} --sql SQL"
        )
    present = former.versions[-1].digest
    if update.expect is not None and not _names(update.expect, present):
        raise UsageError(
            f"--expect-version: job {name} has version {present}, not {update.expect}; nothing was changed; see elf job "
            f"history {name}"
        )
    return former, held


def _names(text: str, digest: str) -> bool:
    return len(text) >= PREFIX_MIN and digest.startswith(text.lower())


def _earlier(update: Update, former: JobSpec) -> Version:
    """The version to return to: the named one, or the one before the present one. Raises UsageError."""
    name, earlier = former.name, former.versions[:-1]
    if not earlier:
        raise UsageError(f"job {name} has no earlier version; see elf job history {name}")
    if update.to is None:
        digests = [change.version for change in former.changes]
        before = [digest for digest in digests if digest != former.versions[-1].digest]
        found = [each for each in earlier if not before or each.digest == before[-1]]
        if found:
            return found[-1]
        raise UsageError(
            f"the version before the present one of job {name} is no longer kept; name one with --to V"
        )
    found = [each for each in former.versions if _names(update.to, each.digest)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(each.digest for each in earlier)
    what = "more than one version begins so" if found else "no version of the job is called so"
    raise UsageError(f"--to {update.to}: {what}; there are {known}")


def _change(
    update: Update,
    former: JobSpec,
    held: w.JobHeld,
    version: Version,
    notes: Sequence[str],
    agent: Path | None,
) -> str:
    present = former.versions[-1]
    if meaning_of(version) == meaning_of(present):
        return f"job {former.name} has this query already, as version {present.digest}; nothing changes"
    spec = changed(former, version, MODES[update.at], held.now_us, held.schedule)
    for note in notes:
        say(note)
    if update.dry_run:
        return "\n".join(_outlook(former, spec))
    item = signed(spec, update.keys, held.signed, "roll back" if update.sql is None else "update")
    with connect(agent) as control:
        answer = control.one(w.JobChange(item))
    assert isinstance(answer, w.Changed)
    return (
        f"job {former.name}: version {version.digest} is in force from {time_text(answer.from_us)} UTC on; "
        f"that took {answer.took_us / 1000:.0f} ms"
    )


def _outlook(former: JobSpec, spec: JobSpec) -> Iterator[str]:
    """What a change would do, as lines of text."""
    old, new = former.versions[-1], spec.versions[-1]
    yield f"job {spec.name} would change from version {old.digest} to {new.digest}"
    yield _line_text(former, spec)
    before, after = described(plan_of(old.plan)), described(plan_of(new.plan))
    for part in ("where", "window", "keys", "select", "having", "order", "limit"):
        if before[part] != after[part]:
            yield f"{part}: {_shown(before[part])}  ->  {_shown(after[part])}"
    yield "nothing was changed"


def _line_text(former: JobSpec, spec: JobSpec) -> str:
    if spec.mode == "restate":
        return "from the start of the oldest window that is not final on; agents read the lines of these windows again"
    if spec.mode == "next":
        at_us = next_boundary((former.versions[-1].plan, spec.versions[-1].plan), spec.line_us)
        return f"from about {time_text(at_us)} UTC on, where windows of both versions begin; no window is cut"
    return (
        f"from about {time_text(spec.line_us)} UTC on; the window at that time gives two results, one of each version, "
        "each for the lines on its side"
    )


def _shown(part: Any) -> str:
    """A part of a plan as `described` gives it, in a line."""
    if part is None or part == []:
        return "none"
    if isinstance(part, list):
        return ", ".join(each.get("name") or _ordered(each) for each in part)
    if isinstance(part, dict):
        size, slide = part["size_us"] / 1e6, part["slide_us"] / 1e6
        return f"{size:g} s" if size == slide else f"{size:g} s every {slide:g} s"
    return str(part)


def _ordered(order: dict[str, Any]) -> str:
    return f"{order['expression']} {'DESC' if order['descending'] else 'ASC'}"
