"""`elf validate`: reads the configuration and what it names, compiles its queries, opens its formats, and prints its meaning."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from elf.agent.commands.startable import check_start
from elf.agent.config import config, units
from elf.agent.config.config import Config, JobSection, SourceSection
from elf.agent.config.limits import limits_text
from elf.agent.config.specs import MeshSection
from elf.agent.formats.envelopes.kinds import is_detected
from elf.agent.formats.formats import column_types, resolve
from elf.agent.formats.presets import COLUMN_TYPES
from elf.errors import ConfigError, FormatError, QueryError
from elf.jobmaster.directory.limits import NO_LIMITS
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.values.sql_types import SqlType

BEGAN = {
    "end": "but none that was logged before this agent is started for the first time",
    "beginning": "also those that were logged before this agent existed",
}
Schemas = Mapping[str, Mapping[str, SqlType]]


def validate_command(path: Path) -> None:
    """Print what the configuration means. Raises `ConfigError`."""
    settings = config.load(path, environ=os.environ)
    check_start(settings)
    plans = check(settings)
    config.check_folders(settings)
    for line in described(settings, plans):
        print(line)


def check(settings: Config, in_child: bool = False) -> dict[str, Plan]:
    """The compiled plan of each job, by name. in_child: compile in child processes, since the compiler's memory would stay with
    this one for good. Raises `ConfigError` that names file and line."""
    schemas = check_formats(settings)
    return {job.name: _plan(settings, job, schemas, in_child) for job in settings.jobs}


def check_formats(settings: Config) -> Schemas:
    """The columns of each source, by name. Raises `ConfigError` for a format that cannot be read."""
    return {source.name: _schema(settings, source) for source in settings.sources}


def _schema(settings: Config, source: SourceSection) -> Mapping[str, SqlType]:
    if is_detected(source.format):
        return COLUMN_TYPES
    try:
        return column_types(resolve(source.format))
    except FormatError as error:
        raise ConfigError(f"{settings.path}: source {source.name!r}: {error}") from error


def _plan(settings: Config, job: JobSection, schemas: Schemas, in_child: bool) -> Plan:
    from elf.jobmaster.compile import query

    try:
        plan = (query.compile_in_child if in_child else query.compile)(job.sql, schemas)
    except QueryError as error:
        raise ConfigError(f"{job.where}: job {job.name!r}: {error}") from error
    config.check_sinks(settings, job, has_window=plan.window is not None)
    return plan


def described(settings: Config, plans: Mapping[str, Plan]) -> list[str]:
    """The configuration as text, one fact a line."""
    agent = settings.agent
    lines = [
        f"agent {agent.name}: state in {agent.state_dir}, at most {units.size_text(agent.memory_max)} of memory",
    ]
    for source in settings.sources:
        lines.append(f"source {source.name}: {', '.join(source.paths)}")
        began = f"each job's lines from its start on, {BEGAN[source.start]}"
        lines.append(f"  format {source.format}, time zone {source.timezone}, {began}")
    lines += _of_mesh(settings.mesh, has_jobs=bool(settings.jobs))
    us: Callable[[int], str] = units.duration_text
    for job in settings.jobs:
        plan = plans[job.name]
        lines.append(f"job {job.name}: of {plan.source}, {_windows(plan)}")
        lateness = "by its log's format" if job.lateness_us is None else us(job.lateness_us)
        sinks = f"to {', '.join(job.sinks)}" if job.sinks else "to no sink"
        lines.append(
            f"  lateness {lateness}, open windows every {us(job.emit_us)}, kept for {us(job.keep_us)}; {sinks}"
        )
    return lines


def _of_mesh(mesh: MeshSection, *, has_jobs: bool) -> list[str]:
    seeds = ", ".join(seed.endpoint for seed in mesh.seeds) or "none: the first of its mesh"
    keys = f"keys {mesh.bundle}" if mesh.bundle is not None else "without keys, on loopback only"
    settings = [
        *map(str, mesh.sinks),
        *([f"limits of every job here: {limits_text(mesh.limits)}"] if mesh.limits != NO_LIMITS else []),
    ]
    if mesh.listen is None:
        others = "other jobs" if has_jobs else "jobs"
        return [f"in no mesh, since it has no listen: elf job start at this host starts {others}", *settings]
    flush, suspect = mesh.parameters.flush_us, mesh.parameters.probe_us + mesh.parameters.suspect_us
    return [
        f"mesh: listens at {mesh.listen}, reached at {mesh.advertise}, {keys}",
        f"  seeds {seeds}",
        f"  a delta of each log every {units.duration_text(flush)}; an agent silent for {units.duration_text(suspect)} is dead",
        *settings,
    ]


def _windows(plan: Plan) -> str:
    if plan.window is None:
        return "one window over all"
    size, slide = units.duration_text(plan.window.size_us), units.duration_text(plan.window.slide_us)
    return f"windows of {size}" + ("" if size == slide else f" every {slide}")
