"""`elf job try`, `promote` and `abort`: a query runs beside a job, as a hidden job of its own, before it replaces the job's.

A trial of the job NAME is the job NAME~try1; with `--on`, the job's present version runs on the same agents, as NAME~now1. Users
cannot give such names. The next trial has the next number, up to `SLOTS`, then that of the oldest one: so what is left of a trial
at an agent that was down when it ended does not meet the next one, which may be of other agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from msgspec.structs import replace

from elf.agent.commands.jobs.change import Update, adopt, changed_values, running_job
from elf.agent.commands.jobs.job import NewJob, being_stopped, compiled, connect, held_job, put_job, signed
from elf.agent.commands.mesh_text import time_text
from elf.agent.commands.process.streams import say
from elf.agent.config import units
from elf.agent.config.names import check_asked, is_name, unknown_job
from elf.agent.control import protocol as w
from elf.errors import UsageError
from elf.jobmaster.directory.ending import stopped
from elf.jobmaster.directory.job_spec import HIDDEN, NAME_MAX, JobSpec, Trial, Version, decode_job
from elf.jobmaster.directory.versions import meaning_of, parameter_texts, started, version_of
from elf.jobmaster.log.schedule import plan_of
from elf.jobmaster.plan.plan import Plan
from elf.srt.messages.patterns import PATTERNS_MAX

TRY, NOW = f"{HIDDEN}try", f"{HIDDEN}now"
SLOTS = 4
RUMOR_S, LOOK_S = 1.5, 0.1
"""How long, and how often, a command looks for a trial that may have been started at another agent."""
SPAN_US_MAX = 86_400_000_000
NO_WINDOWS = "a trial compares final windows; without one there is nothing to compare; add GROUP BY window(time, '1 minute')"


class NewTrial(NamedTuple):
    """The arguments of `elf job try`. sql, values (NAME=VALUE of parameters): what to try; neither: to see the trial that runs.
    on: patterns of agents' names. span: how long."""

    name: str
    sql: str | None = None
    values: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    span: str = "10m"
    keys: Path | None = None


class Running(NamedTuple):
    """A trial that runs. present: the version that it is compared with, and base: the job that has its results."""

    spec: JobSpec
    trial: Trial
    present: Version
    base: str


def start_trial(new: NewTrial, agent: Path | None) -> Running:
    """Start a trial. Raises `ElfError`, also if one runs."""
    former, held = _job(new, agent)
    version, notes = _version(new, former, held)
    trials = _trials(new.name, agent)
    for tried in trials.values():
        if not tried.has_ended(held.now_us):
            raise _runs_already(new.name, tried)
    slot = _free_slot(trials)
    before = {TRY: trials.get(slot), NOW: _held(f"{new.name}{NOW}{slot}", agent)}
    since_us = max([held.now_us, *(each.since_us for each in before.values() if each is not None)])
    trial = Trial(new.name, former.versions[-1].digest, new.on, since_us + _span_us(new.span))
    versions = {NOW: former.versions[-1], TRY: version} if new.on else {TRY: version}
    for suffix, each in versions.items():  # the one that other agents look for comes last
        spec = _spec(former, f"{new.name}{suffix}{slot}", each, before[suffix], trial, since_us)
        put_job(agent, signed(spec, new.keys, held.signed, "try a change of"))
    for note in notes:
        say(note)
    return _running(spec, former)


def _version(new: NewTrial, former: JobSpec, held: w.JobHeld) -> tuple[Version, Sequence[str]]:
    """The version to try, and notices. Raises UsageError, QueryError."""
    present, what, text = former.versions[-1], "--sql", new.sql
    notes: Sequence[str] = ()
    if text is None:
        what, text, plan = "--set", present.text, changed_values(former, new.values, "--set")
    else:
        plan, notes = compiled(NewJob(new.name, text, params=new.values), held, parameter_texts(present))
    version = version_of(plan, text)
    if plan.source != former.source:
        raise UsageError(
            f"--sql: job {new.name} reads the source {former.source}, this query reads {plan.source}: that is another job; start "
            "it under another name"
        )
    for whose, each in ((what, plan), (f"job {new.name}", plan_of(present.plan))):
        _check_time(new.span, whose, each, former.lateness_us)
    if meaning_of(version) == meaning_of(present):
        raise UsageError(
            f"{what}: job {new.name} has this query already, as version {present.digest}; nothing to try"
        )
    return version, notes


def _job(new: NewTrial, agent: Path | None) -> tuple[JobSpec, w.JobHeld]:
    """The job, which runs. Raises UsageError."""
    check_asked(new.name)
    if len(new.on) > PATTERNS_MAX or any(
        not 0 < len(each) <= NAME_MAX or not each.isprintable() for each in new.on
    ):
        raise UsageError(f"--on: expected at most {PATTERNS_MAX} names or patterns like 'web-1*'")
    _span_us(new.span)
    with connect(agent) as control:
        held = held_job(control, new.name, exists=True, columns=True, agents=new.on)
    if held.item is None:
        raise unknown_job(new.name, held.names)
    former = decode_job(held.item)
    if former.trial is not None:
        raise UsageError(f"job {new.name} is itself a trial, of job {former.trial.of}")
    if former.stopped:
        raise UsageError(f"job {new.name} was stopped, so there is nothing to compare with")
    if former.is_finishing:
        raise being_stopped(new.name)
    if new.on and not held.named.get(former.source):
        raise UsageError(
            f"--on: no agent that follows {former.source} has a name like {' or '.join(new.on)}; elf mesh status has the names"
        )
    return former, held


def _check_time(span: str, what: str, plan: Plan, lateness_us: int) -> None:
    """Raises UsageError for a query without windows, or with windows that cannot be final within the trial."""
    if plan.window is None:
        raise UsageError(f"{what}: {NO_WINDOWS}")
    final_us = plan.window.size_us + lateness_us
    if _span_us(span) < final_us:
        raise UsageError(
            f"--for: {span} is too short: the first window is final after {units.duration_text(final_us)} at most (its "
            "length and the job's lateness)"
        )


def _span_us(text: str) -> int:
    try:
        span_us = units.duration_us(text)
    except ValueError as error:
        raise UsageError(f"--for: expected {error}, found {text!r}") from error
    if not 0 < span_us <= SPAN_US_MAX:
        raise UsageError(f"--for: expected at most a day (24h), found {text!r}")
    return span_us


def _spec(
    former: JobSpec, name: str, version: Version, last: JobSpec | None, trial: Trial, since_us: int
) -> JobSpec:
    """A hidden job with the job's options, and without sinks. last: the former one of that name."""
    spec = JobSpec(
        name,
        last.number + 1 if last is not None else 1,
        former.source,
        (version,),
        lateness_us=former.lateness_us,
        keep_us=former.keep_us,
        line_us=since_us,
        since_us=since_us,
        emit_us=former.emit_us,
        trial=trial,
        limits=former.limits,
    )
    return started(spec)


def _held(name: str, agent: Path | None) -> JobSpec | None:
    with connect(agent) as control:
        held = held_job(control, name)
    spec = decode_job(held.item) if held.item is not None else None
    return replace(spec, stopped=True) if spec is not None and held.over else spec


def _over(name: str, agent: Path | None) -> str:
    """Where and why a trial has passed a limit; "" if it has not."""
    with connect(agent) as control:
        return held_job(control, name).over


def _trials(name: str, agent: Path | None) -> dict[int, JobSpec]:
    """The job's trials that the asked agent knows, by their numbers, whether they run or have ended."""
    held = {slot: _held(f"{name}{TRY}{slot}", agent) for slot in range(1, SLOTS + 1) if is_name(name)}
    return {slot: spec for slot, spec in held.items() if spec is not None and spec.trial is not None}


def _free_slot(trials: dict[int, JobSpec]) -> int:
    unused = [slot for slot in range(1, SLOTS + 1) if slot not in trials]
    return min(unused, default=0) or min(trials, key=lambda slot: trials[slot].since_us)


def _newest(trials: dict[int, JobSpec]) -> JobSpec | None:
    return max(trials.values(), key=lambda spec: spec.since_us, default=None)


def _runs_already(name: str, spec: JobSpec) -> UsageError:
    return UsageError(
        f"job {name} has a trial already, of version {spec.versions[-1].digest}{_until(spec)}; see it with elf job try {name}, "
        f"make it the job's version with elf job promote {name}, or end it with elf job abort {name}"
    )


def _until(spec: JobSpec) -> str:
    return f", until {time_text(spec.trial.until_us)} UTC" if spec.trial is not None else ""


def _running(spec: JobSpec, job: JobSpec) -> Running:
    """Raises UsageError if the job no longer has the version that it is compared with."""
    assert spec.trial is not None
    present = next((each for each in job.whole if each.digest == spec.trial.version), None)
    if present is None:
        raise UsageError(
            f"job {job.name} no longer has version {spec.trial.version}, with which its trial is compared; end that with elf job "
            f"abort {job.name}"
        )
    return Running(spec, spec.trial, present, _now_name(spec.name) if spec.trial.agents else job.name)


def _now_name(name: str) -> str:
    """Of the job that runs beside that trial."""
    return name.replace(TRY, NOW)


def running_trial(name: str, agent: Path | None) -> Running:
    """The job's trial. Raises UsageError if none runs."""
    job, held = running_job(name, agent)
    until_s, spec = monotonic() + RUMOR_S, _newest(_trials(name, agent))
    while (spec is None or spec.has_ended(held.now_us)) and monotonic() < until_s:
        sleep(LOOK_S)
        spec = _newest(_trials(name, agent))
    if spec is not None and (why := _over(spec.name, agent)):
        raise UsageError(
            f"the trial of job {name} has ended: {why}; start another one with: elf job try {name} --sql SQL"
        )
    if spec is None or spec.stopped:
        raise UsageError(f"job {name} has no trial; start one with: elf job try {name} --sql SQL")
    if spec.has_ended(held.now_us):
        raise UsageError(
            f"the trial of job {name} ran{_until(spec)}, and has ended; start another one with: elf job try {name} --sql SQL"
        )
    return _running(spec, job)


def running_line(job: JobSpec, now_us: int, agent: Path | None) -> w.TrialLine | None:
    """The job's trial, if one runs as far as the asked agent knows. Raises ElfError."""
    spec = _newest(_trials(job.name, agent))
    if spec is None or spec.trial is None or spec.has_ended(now_us):
        return None
    trial = spec.trial
    return w.TrialLine(trial.of, spec.versions[-1].digest, trial.version, trial.agents, trial.until_us)


def promote_command(update: Update, agent: Path | None) -> str:
    """Make the trial's version the job's, if the job still has the version that it was compared with; end the trial. Returns the
    text to print. Raises `ElfError`."""
    running = running_trial(update.name, agent)
    version = running.spec.versions[-1]
    update = replace(update, expect=running.trial.version, new=NewJob(update.name, version.text))
    text = adopt(update, version, agent)
    if update.dry_run:
        return text
    end_trial(update.name, update.keys, agent)
    return text if update.as_json else f"{text}\nthe trial has ended"


def abort_command(name: str, keys: Path | None, agent: Path | None) -> str:
    """End the trial; the job stays as it is. Returns the line to print. Raises `ElfError`."""
    running_trial(name, agent)
    end_trial(name, keys, agent)
    return f"the trial of job {name} has ended; the job is as it was"


def end_trial(name: str, keys: Path | None, agent: Path | None) -> None:
    """Stop the hidden jobs of that job's trial, if they run. Raises `ElfError`."""
    trials = [spec.name for spec in _trials(name, agent).values()]
    for each in (*trials, *map(_now_name, trials)):
        with connect(agent) as control:
            held = held_job(control, each)
        spec = decode_job(held.item) if held.item is not None else None
        if spec is not None and not spec.has_ended(held.now_us):
            put_job(agent, signed(stopped(spec, held.next), keys, held.signed, "end the trial of"))


def described(running: Running) -> Sequence[str]:
    """What runs and what can be done, as lines for people."""
    name = running.trial.of
    version, on = running.spec.versions[-1].digest, ", ".join(running.trial.agents) or "all its agents"
    return (
        f"trial of job {name}: version {version} beside {running.present.digest}, on {on}{_until(running.spec)}",
        f"make it the job's version with elf job promote {name}, or end it with elf job abort {name}",
    )
