"""The jobs of the agent's own file: the agent submits them to itself as it begins, as `elf job apply` does with a folder's."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from elf.agent.config.config import Config, JobSection
from elf.errors import ConfigError, InternalError
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import decode_job

MODULE = "elf.agent.commands.jobs.folder.own"
if TYPE_CHECKING:
    from elf.agent.config.job_file import JobFile

LABEL = "elf.toml"
"""Of jobs that stand in their agent's file."""
OPTIONS = ("name", "sql", "lateness", "emit", "keep", "sinks")


def has_own(config: Config, directory: Directory) -> bool:
    """Whether the file has jobs, or the agent runs some that the file had; not in a mesh of others, where they go on. O(jobs)."""
    if config.mesh.listen is not None:
        return False
    specs = (decode_job(item) for item in directory.items("job"))
    return bool(config.jobs) or any(spec.label == LABEL and not spec.stopped for spec in specs)


async def submit_own(config: Config, socket: Path, notices: Callable[[str], None]) -> None:
    """Start, change and stop jobs as the file says. Raises ConfigError for what is wrong in the file."""
    shown = [sink.name for sink in config.mesh.sinks if sink.shows_open]
    order = {"socket": str(socket), "config": str(config.path), "jobs": _files(config.jobs), "shown": shown}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", MODULE, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        output, error = await child.communicate(msgspec.msgpack.encode(order, enc_hook=str))
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):  # it has ended by itself
            child.kill()
        raise
    said = [line.removeprefix("elf: ") for line in error.decode(errors="replace").splitlines()]
    if child.returncode == ConfigError.exit_code:
        raise ConfigError("; ".join(said[:-1] or said))  # the last line counts those before it
    if child.returncode:
        raise InternalError(
            f"the jobs of {config.path} could not be submitted: {(said or ['no message'])[-1]}"
        )
    for line in [*said, *output.decode(errors="replace").splitlines()]:
        notices(line)


def _files(jobs: Sequence[JobSection]) -> list[JobFile]:
    """They name all options: what the file does not say has its default, also after it was said before."""
    from elf.agent.config.job_file import JobFile

    made = []
    for job in jobs:
        path, _, line = job.where.rpartition(":") if job.where[-1:].isdigit() else (job.where, "", "1")
        about = job.lateness_us, job.emit_us, job.keep_us, job.sinks
        lines = dict.fromkeys(OPTIONS, int(line))
        made.append(JobFile(Path(path), job.sql, job.name, None, *about, lines=lines, sql_line=int(line)))
    return made
