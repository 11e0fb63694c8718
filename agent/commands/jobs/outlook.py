"""What a change would do to windows, for `--dry-run`: its control line, the windows that it cuts, the lines read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from elf.agent.commands.jobs.estimate import again_lines, again_values
from elf.agent.commands.mesh_text import time_text
from elf.agent.control import protocol as w
from elf.jobmaster.directory.changes import next_boundary
from elf.jobmaster.directory.job_spec import JobSpec, Version
from elf.jobmaster.log.schedule import Shape, plan_of


def line_values(former: JobSpec, spec: JobSpec, found: w.Estimates | None = None) -> dict[str, Any]:
    """About when a change would be in force, the windows of each version that it would cut, whether agents would read lines
    again, and about how many. Of windows that slide: how many are cut, from the start of the first to the end of the last."""
    rereads = _rereads(former, spec)
    from_us, cut = _from_us(former, spec), _cut(former, spec)
    return {
        "from_us": from_us,
        "cuts": bool(cut),
        "windows": cut,
        "rereads": rereads,
        "read_again": again_values(found, spec.line_us - from_us) if rereads else [],
    }


def line_lines(former: JobSpec, spec: JobSpec, found: w.Estimates | None = None) -> Iterator[str]:
    """The same as lines of text."""
    from_us = _from_us(former, spec)
    at, whole = f"about {time_text(from_us)} UTC", "no line is read again, and no window is cut"
    if _has_plan(former, spec):
        yield f"for windows that begin at {at} or later; {whole}"
    elif _restates(former, spec):
        rereads = _rereads(former, spec)
        rest = "agents read the lines of these windows again" if rereads else whole
        yield f"from the start of the oldest window that is not final on, {at}; {rest}"
        if rereads:
            yield from again_lines(found, spec.line_us - from_us)
    elif spec.mode == "next":
        yield f"from {at} on, where windows of both versions begin; no window is cut"
    else:
        yield (
            f"from {at} on; the window at that time gives two results, one of each version, each for the lines on its side"
        )
        for each in _cut(former, spec):
            what = "the window" if each["count"] == 1 else f"{each['count']:,} windows"
            start, end = time_text(each["start_us"]), time_text(each["end_us"])
            yield f"cut: {what} of version {each['version']} from {start} to {end} UTC"


def _has_plan(former: JobSpec, spec: JobSpec) -> bool:
    return former.versions[-1].plan == spec.versions[-1].plan


def _counts_alike(former: JobSpec, spec: JobSpec) -> bool:
    return plan_of(former.versions[-1].plan).counts_as(plan_of(spec.versions[-1].plan))


def _restates(former: JobSpec, spec: JobSpec) -> bool:
    """Whether it takes effect from the oldest window that is not final."""
    if _has_plan(former, spec) or spec.mode == "next":
        return False
    return spec.mode == "restate" or (_counts_alike(former, spec) and former.settings == spec.settings)


def _rereads(former: JobSpec, spec: JobSpec) -> bool:
    return _restates(former, spec) and not _counts_alike(former, spec)


def _from_us(former: JobSpec, spec: JobSpec) -> int:
    if _restates(former, spec):
        return _oldest_us(former, spec.line_us)
    if spec.mode == "next":
        return next_boundary((former.versions[-1].plan, spec.versions[-1].plan), spec.line_us)
    return spec.line_us


def _oldest_us(former: JobSpec, now_us: int) -> int:
    """About where the oldest window that is not final begins, if none waits longer than its lateness."""
    shape = Shape.of(plan_of(former.versions[-1].plan))
    if not shape.slide_us:
        return former.since_us
    ended_us = now_us - former.lateness_us - shape.size_us
    first_us = max(ended_us - ended_us % shape.slide_us + shape.slide_us, 0)
    return max(first_us, former.since_us - former.since_us % shape.slide_us)


def _cut(former: JobSpec, spec: JobSpec) -> list[dict[str, Any]]:
    """The windows of each version that cover the line and do not begin at it."""
    if _has_plan(former, spec) or _restates(former, spec) or spec.mode == "next":
        return []
    return [
        each
        for version in (former.versions[-1], spec.versions[-1])
        for each in _cut_of(version, spec.line_us)
    ]


def _cut_of(version: Version, line_us: int) -> Iterator[dict[str, Any]]:
    shape = Shape.of(plan_of(version.plan))
    if not shape.slide_us:
        return
    slide, size = shape.slide_us, shape.size_us
    first, last = (line_us - size) // slide * slide + slide, (line_us - 1) // slide * slide
    if first <= last:
        count = (last - first) // slide + 1
        yield {"version": version.digest, "start_us": first, "end_us": last + size, "count": count}
