"""How a job begins and changes according to its spec: the first entry of a log, and the next version's control line. Pure."""

from __future__ import annotations

from math import lcm

from elf.jobmaster.directory.directory import body_digest
from elf.jobmaster.directory.job_spec import ALL_TIME, JobSpec
from elf.jobmaster.directory.known_schedule import KnownSchedule
from elf.jobmaster.directory.settings import carry, every, name_of, retained_from, settings_at
from elf.jobmaster.log.entries import Begin, SpecRank
from elf.jobmaster.log.schedule import AFTER_ALL, Shape, next_number, number_after, plan_of, without_past
from elf.srt.messages.messages import Ballot, Line, Micros, Schedule

DAY_US = 24 * 3600 * 1_000_000
TERM_NUMBERS = 1 << 16
"""Numbers of one term (`number_after`)."""


def rank_of(spec: JobSpec) -> SpecRank:
    """The spec's rank: of two specs of a job the directory, and every master, keeps the higher."""
    return spec.number, body_digest(spec.item())


def next_spec_number(ballot: Ballot, last: int) -> int:
    """The number of the only spec that the master of that ballot may take after the one with number `last`. It contains the
    master's term: a spec that was signed for one term, and for one place in it, is never taken in another."""
    return number_after(ballot, last)


def may_follow(ballot: Ballot, last: int) -> bool:
    """Rule Order*: whether the master of that ballot may take a change after the one with number `last`: it is of no later
    term."""
    return last < number_after(ballot, 0) + TERM_NUMBERS


def first_entry(spec: JobSpec, ballot: Ballot, now: Micros, earlier: KnownSchedule | None = None) -> Begin:
    """Rule 7, 8: a new log never begins at position zero, but with the oldest retained pane (or with the job, if that is later).
    Only the first log of a job that counts lines from before it was started begins where the job does, or with the oldest line
    that an agent has (`ALL_TIME`): nothing was published before.
    earlier: the schedule of an earlier log, according to the directory."""
    known = _known_lines(spec, ballot, earlier) if earlier is not None else ()
    schedule = known or _first_schedule(spec, ballot)
    sizes = [Shape.of(plan_of(line.plan)).size_us for line in schedule]
    late_us = max(each.lateness_us for each in every(schedule, spec.base))
    retained_us = retained_from(schedule, spec.base, now - late_us - max(sizes))
    is_first = ballot[0] <= 1 and earlier is None
    since = spec.since_us if _counts_earlier(spec) and is_first else max(spec.since_us, retained_us)
    if len(spec.versions) == 1 and len(spec.changes) < 2:
        since = max(since, spec.line_us)
    since -= since % (sizes[0] or 1)
    if not known or earlier is None:
        return Begin(ballot, since, schedule, rank_of(spec))
    since = max(since, known[0].from_us)  # the version in force before it is unknown
    is_all = schedule[-1].version == spec.versions[-1].digest
    is_all = is_all and settings_at(schedule, AFTER_ALL, spec.base) == spec.settings
    rank = rank_of(spec) if is_all else min(earlier.rank, rank_of(spec))
    return Begin(ballot, since, without_past(schedule, since), rank)


def _counts_earlier(spec: JobSpec) -> bool:
    """Whether the job counts lines from before it was started."""
    return spec.since_us == ALL_TIME or (bool(spec.changes) and spec.since_us < spec.changes[0].asked_us)


def _known_lines(spec: JobSpec, ballot: Ballot, earlier: KnownSchedule) -> Schedule:
    """The last control lines of an earlier log whose versions the spec has, as lines of a new log. A version newer than the spec
    comes into force when its spec arrives."""
    plans = {version.digest: version.plan for version in spec.whole}
    settings = {name_of(each): each for each in (known.encode() for known in spec.remembered)} | {b"": b""}
    lines = list(earlier.lines)
    while lines and earlier.rank > rank_of(spec):
        if lines[-1].version in plans and lines[-1].settings in settings:
            break
        lines.pop()
    unknown = [at for at, line in enumerate(lines) if line.version not in plans]
    lines = lines[unknown[-1] + 1 :] if unknown else lines
    number = next_number(ballot, ())
    return tuple(
        Line(number + at, line.version, line.from_us, plans[line.version], settings.get(line.settings, b""))
        for at, line in enumerate(lines)
    )


def _first_schedule(spec: JobSpec, ballot: Ballot) -> Schedule:
    """The schedule of a job without a log. If its last change is a `split`, the previous version is in force before its line. If
    the job counts lines from an earlier time on, its first version begins at that time, within a window perhaps."""
    number, last = next_number(ballot, ()), spec.versions[-1]
    from_us = spec.since_us if _counts_earlier(spec) and spec.since_us != ALL_TIME else 0
    first, change = Line(number, last.digest, from_us, last.plan), spec.changes[-1] if spec.changes else None
    both = change.settings if change is not None else None
    if (len(spec.versions) == 1 and both is None) or spec.mode != "split" or not spec.line_us:
        return (carry((), first, spec.settings, spec.base),)
    former = change.former if change is not None else ""
    before = next((each for each in spec.whole if each.digest == former), spec.whole[-2:][0])
    first = carry(
        (), Line(number, before.digest, from_us, before.plan), both[0] if both else spec.settings, spec.base
    )
    line = Line(number + 1, last.digest, spec.line_us, last.plan)
    return first, carry((first,), line, spec.settings, spec.base)


def next_boundary(plans: tuple[bytes, bytes], after_us: Micros) -> Micros:
    """The first time after `after_us` at which windows of both plans begin. If that is over a day away: windows of the second
    plan."""
    slides = [Shape.of(plan_of(plan)).slide_us or 1 for plan in plans]
    step = lcm(*slides) if lcm(*slides) <= DAY_US else slides[-1]
    return after_us - after_us % step + step
