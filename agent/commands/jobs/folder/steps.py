"""What has to be done so that the mesh's jobs are those of a folder. No IO."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from elf.agent.commands.jobs.change import all_differences, settings_for
from elf.agent.commands.jobs.job import NewJob, being_stopped, spec_of
from elf.agent.control.protocol import JobHeld, JobLine
from elf.errors import UsageError
from elf.jobmaster.directory.differences import Difference
from elf.jobmaster.directory.job_spec import JobSpec, decode_job
from elf.jobmaster.directory.versions import changed, meaning_of
from elf.jobmaster.plan.plan import Plan

STOPPED_SHARE = 5
"""To stop more than one in so many of the mesh's jobs needs --yes."""
NAMES_SHOWN = 8

Action = Literal["start", "update", "stop", "unchanged"]


class Step(msgspec.Struct, frozen=True):
    """What happens to one job. number: of the spec that the mesh has; 0: it has none. job, plan: of its file. former, spec: what
    the mesh has and will have, as of now. A stop has none of these four."""

    action: Action
    name: str
    number: int
    job: NewJob | None = None
    plan: Plan | None = None
    former: JobSpec | None = None
    spec: JobSpec | None = None

    @property
    def differences(self) -> list[Difference]:
        """What an update changes."""
        if self.action != "update" or self.former is None or self.spec is None:
            return []
        return all_differences(self.former, self.spec)


def step_of(job: NewJob, plan: Plan, held: JobHeld) -> Step:
    """What has to happen to the job of a file. held: what the mesh has of it. Raises UsageError if that cannot be done while it
    runs, or if the job belongs to another folder."""
    former = decode_job(held.item) if held.item is not None else None
    spec = spec_of(job, plan, held, former)
    number = former.number if former is not None else 0
    if former is None or former.stopped:
        return Step("start", job.name, number, job, plan, former, spec)
    if former.is_finishing:
        raise being_stopped(job.name)
    if former.label not in ("", job.label):
        raise UsageError(
            f"{job.place('name')}: job {job.name} belongs to the folder labelled {former.label}, and this one is labelled "
            f"{job.label}; a job has one folder: keep its file there, or stop the job first"
        )
    asked = replace(job, lateness_us=spec.lateness_us, sinks=spec.sinks)
    settings, version = settings_for(former, asked, plan), spec.versions[-1]
    if meaning_of(version) == meaning_of(former.versions[-1]):
        version = former.versions[-1]
        if settings == former.settings:
            return Step("unchanged", job.name, number, job, plan, former, former)
    spec = changed(former, version, "split", held.now_us, held.schedule, held.next, settings=settings)
    return Step("update", job.name, number, job, plan, former, spec)


def stops(running: Sequence[JobLine], names: Collection[str], label: str) -> list[Step]:
    """The jobs that were started from the folder and have no file in it now, and were not asked to stop before."""
    return [
        Step("stop", job.name, job.number)
        for job in running
        if job.label == label and job.name not in names and job.state != "finishing"
    ]


def too_many(stopping: Sequence[Step], running: Sequence[JobLine]) -> str:
    """Why --yes is needed to stop these; "" if it is not."""
    if len(stopping) * STOPPED_SHARE <= len(running):
        return ""
    names = ", ".join(step.name for step in stopping[:NAMES_SHOWN]) + ", …" * (len(stopping) > NAMES_SHOWN)
    return (
        f"--prune would stop {len(stopping)} of the {len(running)} jobs that run ({names}), more than a fifth; if that is meant, "
        "add --yes"
    )
