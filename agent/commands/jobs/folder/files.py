"""The job files of a folder, or what is wrong with them."""

from __future__ import annotations

from pathlib import Path

from elf.agent.commands.jobs.job import NewJob, job_of_file
from elf.agent.config.job_file import read_job_file
from elf.agent.config.names import NAME_EXPECTED, is_name, shortened
from elf.errors import UsageError

SUFFIXES = (".toml", ".sql")


def label_of(folder: Path, given: str | None) -> str:
    """The label of the folder's jobs. Raises UsageError."""
    label = given if given is not None else folder.resolve().name
    if not is_name(label):
        way = "" if given is not None else ", or give one with --label"
        raise UsageError(f"--label: expected {NAME_EXPECTED}, found {shortened(label)}{way}")
    return label


def jobs_of(folder: Path, label: str) -> tuple[list[NewJob], list[str]]:
    """The jobs of a folder's files, by name, and the errors, at most one of each file. A job is called as its file says, else
    as its file is called. Raises UsageError for a folder without job files."""
    try:
        paths = sorted(path for path in folder.iterdir() if _is_job_file(path))
    except OSError as error:
        raise UsageError(f"-f: {folder}: {error.strerror}") from error
    if not paths:
        raise UsageError(f"-f: {folder}: expected job files (.toml or .sql), found none; nothing was done")
    jobs: dict[str, NewJob] = {}
    errors = []
    for path in paths:
        try:
            job = _job(path, label)
        except UsageError as error:
            errors.append(str(error))
            continue
        former = jobs.setdefault(job.name, job)
        if former is not job and former.file is not None:
            errors.append(f"{path}: job {job.name} is also in {former.file.path}; a job has one file")
    return [jobs[name] for name in sorted(jobs)], errors


def _is_job_file(path: Path) -> bool:
    return path.suffix in SUFFIXES and not path.name.startswith(".")


def _job(path: Path, label: str) -> NewJob:
    if not path.is_file():
        raise UsageError(f"{path}: expected a job file, found a folder or a device")
    file = read_job_file(path)
    name = path.stem if file.name is None else file.name
    if not is_name(name):
        raise UsageError(
            f"{path}: expected {NAME_EXPECTED}, found {shortened(name)}; rename the file, or give the job a name in it"
        )
    return job_of_file(file, name, label)
