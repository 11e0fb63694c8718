"""How a job begins and changes, as its spec says: the first entry of a log, and where the next version's line is. All pure."""

from __future__ import annotations

from math import lcm

from elf.jobmaster.directory import body_digest
from elf.jobmaster.entries import Begin, SpecRank
from elf.jobmaster.job_spec import JobSpec
from elf.jobmaster.schedule import Shape, next_number, plan_of
from elf.srt.messages import Ballot, Line, Micros, Schedule

DAY_US = 24 * 3600 * 1_000_000


def rank_of(spec: JobSpec) -> SpecRank:
    """Of two specs of a job the one with the higher rank stays, as in the directory."""
    return spec.number, body_digest(spec.item())


def first_entry(spec: JobSpec, ballot: Ballot, now: Micros) -> Begin:
    """Rule 7, 8: a log that is not found never begins at position zero, but with the oldest pane that is retained (or with the
    job, if that is later)."""
    last = spec.versions[-1]
    since = max(spec.since_us, now - spec.keep_us - spec.lateness_us - Shape.of(plan_of(last.plan)).size_us)
    if len(spec.versions) == 1:
        since = max(since, spec.line_us)
    schedule = _first_schedule(spec, ballot)
    size = Shape.of(plan_of(schedule[0].plan)).size_us or 1
    return Begin(ballot, since - since % size, schedule, rank_of(spec))


def _first_schedule(spec: JobSpec, ballot: Ballot) -> Schedule:
    """Of a job that was changed by `split`, the version before is known too, and where it gave way."""
    number, last = next_number(ballot, ()), spec.versions[-1]
    if len(spec.versions) == 1 or spec.mode != "split" or not spec.line_us:
        return (Line(number, last.digest, 0, last.plan),)
    before = spec.versions[-2]
    return (
        Line(number, before.digest, 0, before.plan),
        Line(number + 1, last.digest, spec.line_us, last.plan),
    )


def next_boundary(plans: tuple[bytes, bytes], after_us: Micros) -> Micros:
    """The first time after `after_us` at which windows of both plans begin; or of the second one, where that is a day away."""
    slides = [Shape.of(plan_of(plan)).slide_us or 1 for plan in plans]
    step = lcm(*slides) if lcm(*slides) <= DAY_US else slides[-1]
    return after_us - after_us % step + step
