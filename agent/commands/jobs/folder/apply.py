"""`elf job apply`: makes the mesh's jobs equal to a folder of job files.

All files are read and compiled first, and compared with the jobs that the mesh has; an error in any of them, and nothing is done.
Then jobs are started, then updated; jobs without a file are stopped last, and only if all else was done, since a job that was
renamed is started and stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from elf.agent.commands.jobs.change import TRIES_MAX, WAITS, confirmed, send_change, unconfirmed
from elf.agent.commands.jobs.estimate import estimate_lines, estimate_values
from elf.agent.commands.jobs.folder.files import jobs_of, label_of
from elf.agent.commands.jobs.folder.steps import Action, Step, step_of, stops, too_many
from elf.agent.commands.jobs.job import (
    NewJob,
    check_rights,
    compiled,
    connect,
    estimates_of,
    held_job,
    operator_keys,
    put_job,
    signed,
)
from elf.agent.commands.jobs.outlook import line_lines, line_values
from elf.agent.commands.jobs.stop import finish
from elf.agent.commands.mesh_text import as_json, time_text
from elf.agent.commands.process.streams import say
from elf.agent.control import protocol as w
from elf.errors import ElfError, UsageError
from elf.jobmaster.directory.job_spec import JobSpec, decode_job
from elf.sinks.console.cells import escape

ORDER: tuple[Action, ...] = ("start", "update", "stop", "unchanged")
MEANWHILE = "another command changed the job meanwhile"
DONE = {"start": "started", "update": "updated", "stop": "stopping", "unchanged": "unchanged"}


class Apply(msgspec.Struct, frozen=True):
    """The arguments of `elf job apply`."""

    folder: Path
    label: str | None = None
    prune: bool = False
    dry_run: bool = False
    yes: bool = False
    json: bool = False
    keys: Path | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What became of a step. change: the answer to an update, or to the change that ends a job. error: why it failed; "": it did
    not. estimates: of a dry run."""

    step: Step
    change: w.Changed | None = None
    error: str = ""
    estimates: w.Estimates | None = None

    @property
    def from_us(self) -> int | None:
        """Where an update is in force, or a job ends."""
        return self.change.from_us if self.change is not None else None


class Todo(msgspec.Struct, frozen=True):
    """steps: in order. refusal: why they need --yes; "": they do not. must_sign: whether jobs must be signed."""

    steps: list[Step]
    refusal: str
    must_sign: bool


def apply_command(apply: Apply, agent: Path | None) -> Iterator[str]:
    """Make the mesh's jobs equal to a folder's. Yields the text to print, as things are done. Raises `ElfError`."""
    label = label_of(apply.folder, apply.label)
    todo = _todo(apply, label, agent)
    if not apply.dry_run:
        _check(apply, todo)
    outcomes = []
    width = max((len(step.name) for step in todo.steps), default=0)
    for outcome in outcomes_of(apply, todo.steps, agent):
        outcomes.append(outcome)
        if not apply.json:
            yield from _lines(outcome, apply.dry_run, width)
    yield _as_json(apply, label, outcomes) if apply.json else _summary(apply, todo, outcomes)
    failed = [outcome.step.name for outcome in outcomes if outcome.error]
    if failed:
        raise ElfError(f"{len(failed)} of {len(outcomes)} jobs are not as the folder says; apply it again")


def _todo(apply: Apply, label: str, agent: Path | None) -> Todo:
    """Raises UsageError if any file has an error, after a message about each."""
    return steps_of(apply, label, *jobs_of(apply.folder, label), agent)


def steps_of(
    apply: Apply,
    label: str,
    jobs: Sequence[NewJob],
    errors: list[str],
    agent: Path | None,
    kept: Collection[str] = (),
) -> Todo:
    """What makes the mesh's jobs these. errors: in files of others. kept: jobs that `prune` does not stop either. Raises
    UsageError."""
    steps: list[Step] = []
    facts: w.JobHeld | None = None
    for job in jobs:
        with connect(agent) as control:
            held = held_job(control, job.name, columns=facts is None)
        facts = facts or held
        try:
            plan, notes = compiled(job, replace(held, schemas=facts.schemas))
            steps.append(step_of(job, plan, held))
        except ElfError as error:
            errors.append(str(error))
            continue
        for note in notes:
            say(note)
    for error_text in errors:
        say(error_text)
    if errors:
        raise UsageError(
            f"{apply.folder}: {len(errors)} file{'s have errors' if len(errors) > 1 else ' has an error'}; nothing was done"
        )
    refusal = ""
    if apply.prune:
        running = [line for line in all_jobs(agent) if line.state != "stopped"]
        stopping = stops(running, {*kept, *(job.name for job in jobs)}, label)
        steps, refusal = steps + stopping, too_many(stopping, running)
    steps.sort(key=lambda step: (ORDER.index(step.action), step.name))
    return Todo(steps, refusal, facts is not None and facts.signed)


def all_jobs(agent: Path | None) -> tuple[w.JobLine, ...]:
    """Also those that were stopped."""
    with connect(agent) as control:
        answer = control.one(w.JobList())
    assert isinstance(answer, w.Jobs)
    return answer.jobs


def _check(apply: Apply, todo: Todo) -> None:
    """Raises UsageError for what would be refused later, when some of it was done."""
    if todo.refusal and not apply.yes:
        raise UsageError(f"{todo.refusal}; nothing was done")
    changed = [step.name for step in todo.steps if step.action != "unchanged"]
    if changed:
        keys = operator_keys(apply.keys, must=todo.must_sign, what="change")
        if keys is not None:
            check_rights(keys, changed)


# Done.


def outcomes_of(apply: Apply, steps: Sequence[Step], agent: Path | None) -> Iterator[Outcome]:
    """Each step's, once it is done. A step that fails does not keep others from being done, other than stops."""
    has_failed = False
    for step in steps:
        if step.action == "unchanged" or (apply.dry_run and step.spec is None):
            yield Outcome(step)
        elif apply.dry_run and step.spec is not None:
            is_new = step.former is None or step.former.versions[-1] != step.spec.versions[-1]
            yield Outcome(
                step, estimates=estimates_of(step.spec.versions[-1].plan, agent) if is_new else None
            )
        elif step.action == "stop" and has_failed:
            yield Outcome(step, error="it runs on, since not all else was done")
        else:
            try:
                yield Outcome(step, _do(step, apply.keys, agent))
            except ElfError as error:
                has_failed = True
                yield Outcome(step, error=str(error))


def _do(step: Step, keys: Path | None, agent: Path | None) -> w.Changed | None:
    """The answer to an update, or to a stop, whose end is not waited for. Raises ElfError, also if the job is not the one that
    was compared."""
    if step.action == "stop":
        if (change := finish(step.name, keys, agent, step.number)) is None:
            raise ElfError(MEANWHILE)
        return change
    with connect(agent) as control:
        held = held_job(control, step.name)
    present = decode_job(held.item) if held.item is not None else None
    if (present.number if present is not None else 0) != step.number:
        raise ElfError(MEANWHILE)
    for _ in range(TRIES_MAX):
        item = signed(_next(step, held), keys, held.signed, step.action)
        if step.action != "update":
            put_job(agent, item)
            return None
        answer = send_change(item, agent)
        if isinstance(answer, w.Changed):
            return answer
        if present is None or answer.version != present.versions[-1].digest:
            break
        held = replace(
            held, next=max(held.next, answer.next)
        )  # the asked agent did not know its master's term
    raise ElfError(MEANWHILE)


def _next(step: Step, held: w.JobHeld) -> JobSpec:
    assert step.job is not None, "a file's job goes on"
    assert step.plan is not None, "a file's job goes on"
    spec = step_of(step.job, step.plan, held).spec
    assert spec is not None, "a file's job goes on"
    return spec


# Printed.


def _lines(outcome: Outcome, dry_run: bool, width: int) -> Iterator[str]:
    step = outcome.step
    if outcome.error:
        yield f"{'failed':<11}{escape(step.name)}: {escape(outcome.error)}"
        return
    words = [f"{step.action if dry_run else DONE[step.action]:<11}{escape(step.name):<{width}}"]
    if step.spec is not None:
        words.append(f"version {step.spec.versions[-1].digest}")
    if outcome.change is not None and outcome.change.waits:
        words.append(WAITS)
    elif outcome.from_us and step.action == "stop":
        words.append(
            f"lines from {time_text(outcome.from_us)} UTC on do not count; it ends when its windows are final"
        )
    elif outcome.from_us:
        at = confirmed(outcome.change) if outcome.change is not None else ""
        words.append(f"in force from {time_text(outcome.from_us)} UTC on{at}")
    yield "  ".join(words).rstrip()
    if dry_run and step.action == "update" and step.former is not None and step.spec is not None:
        for line in line_lines(step.former, step.spec, outcome.estimates):
            yield f"{'':<11}{line}"
    missing = unconfirmed(outcome.change) if outcome.change is not None else []
    for text in [*missing, *(escape(str(each)) for each in step.differences)]:
        yield f"{'':<11}{text}"
    if outcome.estimates is not None and step.spec is not None:
        for line in estimate_lines(step.spec.versions[-1].plan, outcome.estimates):
            yield f"{'':<11}{line}"


def _summary(apply: Apply, todo: Todo, outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.step.action for outcome in outcomes if not outcome.error)
    names = {action: f"to {action}" for action in DONE} if apply.dry_run else DONE
    names["unchanged"] = "unchanged"
    text = ", ".join(f"{counts[action]} {names[action]}" for action in ORDER if counts[action])
    if not apply.dry_run:
        return text or "nothing was done"
    refusal = f"; {escape(todo.refusal)}" if todo.refusal and not apply.yes else ""
    return f"{text}; nothing was changed{refusal}"


def _as_json(apply: Apply, label: str, outcomes: Sequence[Outcome]) -> str:
    jobs = [_values(outcome, apply.dry_run) for outcome in outcomes]
    return as_json({"folder": str(apply.folder), "label": label, "dry_run": apply.dry_run, "jobs": jobs})


def _values(outcome: Outcome, dry_run: bool) -> dict[str, Any]:
    step = outcome.step
    outlook: dict[str, Any] = {"from_us": outcome.from_us}
    if dry_run and step.action == "update" and step.former is not None and step.spec is not None:
        outlook = line_values(step.former, step.spec, outcome.estimates)
    file = step.job.file if step.job is not None else None
    return {
        "name": step.name,
        "action": step.action,
        "file": str(file.path) if file is not None else None,
        "former": step.former.versions[-1].digest if step.former is not None else None,
        "version": step.spec.versions[-1].digest if step.spec is not None else None,
        "differences": step.differences,
        **outlook,
        "agents": outcome.change.agents if outcome.change is not None else None,
        "confirmed": outcome.change.confirmed if outcome.change is not None else None,
        "error": outcome.error or None,
        "estimates": estimate_values(outcome.estimates),
    }
