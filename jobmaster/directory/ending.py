"""How a job ends with all its windows final: its last version takes no line, so its control line is where the job ends. Pure.

    the operator signs -> finishing(spec): the next change of the job, which brings the version `END` at a control line,
                          with the signature of -> ended(finishing(spec)): the stopped spec
    the job's master   -> takes the change like any other; when all windows up to the line are final, and every sink has them, it
                          gives the directory the stopped spec: so every node ends the job, as after a stop at once

Nothing else differs from a change: which lines count, what is read again, which window is cut, and who learns of it. The
stopped spec needs an operator's signature and does not exist before the end, so the operator signs both at once; its bytes
follow from the first spec, which so carries 200 bytes for it and not a copy of the plans. An agent that gives it to the
directory too early does what `elf job stop --now` would have done, and no more.
"""

from __future__ import annotations

from msgspec.structs import replace

from elf.jobmaster.directory.job_spec import END, JobSpec, Version
from elf.jobmaster.directory.known_schedule import KnownSchedule
from elf.jobmaster.directory.versions import changed, with_shared_plans
from elf.jobmaster.log.schedule import plan_of
from elf.jobmaster.plan.codec import encode
from elf.jobmaster.plan.plan import Literal
from elf.jobmaster.values.sql_types import BOOLEAN
from elf.srt.messages.messages import Item, Micros

STOP_AHEAD = 1 << 8
"""A stop ranks above changes that a master takes at the same moment."""


def end_of(version: Version) -> Version:
    """The version that takes no line, after that one. It has the same windows, so that no other pane is cut."""
    plan = replace(plan_of(version.plan), sql="", where=Literal(False, BOOLEAN))
    return Version(END, encode(plan), "")


def finishing(
    spec: JobSpec, now_us: Micros, known: KnownSchedule | None, number: int = 0, former: str = ""
) -> JobSpec:
    """The job's next spec, in which it ends at a control line; its `end` is yet to be signed. Arguments, and UsageError, as of
    `elf.jobmaster.directory.versions.changed`."""
    return changed(spec, end_of(spec.versions[-1]), "split", now_us, known, number, former)


def stopped(spec: JobSpec, number: int) -> JobSpec:
    """The spec that stops the job at once. number: of its next change."""
    versions = with_shared_plans(spec.whole[:-1]) if spec.is_finishing else spec.versions
    return replace(spec, number=number + STOP_AHEAD, stopped=True, versions=versions, end=b"")


def is_end(spec: JobSpec) -> bool:
    """Whether the job was stopped because it had come to its end, and not at once."""
    last = spec.changes[-1] if spec.changes else None
    return (
        spec.stopped and last is not None and (last.version, last.number + STOP_AHEAD) == (END, spec.number)
    )


def ended(spec: JobSpec) -> Item:
    """The item that ends a job that is finishing, with the signature that its operator gave it."""
    return stopped(spec, spec.number).item(spec.end)
