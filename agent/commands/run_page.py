"""`elf run --report all`: the usual panels of some files, as tables or as one page of HTML."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from threading import Event

from msgspec.structs import replace

from elf.agent.run.engine import Progress, RunOptions, Summary
from elf.agent.run.together import Answer, Answers, run_together
from elf.errors import UsageError
from elf.jobmaster.compile.panels import PANELS, SPAN, Panel, step_for
from elf.sinks.console.cells import iso
from elf.sinks.report.output import target_of, write, write_page, write_parquet
from elf.sinks.report.rows import Section

Say = Callable[[str], None]
SECOND_US = 1_000_000


def run_page(
    options: RunOptions,
    output: str,
    zone: str,
    *,
    on_progress: Callable[[Progress], None] | None,
    on_lost: Say,
    notices: Say,
    stop: Event,
) -> Summary:
    """Read the files twice (for their span of time, and for all panels), and write. Raises UsageError, FormatError."""
    if "-" in options.files:
        raise UsageError("--report all reads its files twice, and standard input only once; name files")
    target = target_of(output)
    about = {"on_progress": on_progress, "on_lost": on_lost, "stop": stop}
    span = run_together(options, {"span": SPAN}, notices=notices, **about)  # type: ignore[arg-type]
    if stop.is_set():
        return span.summary
    if not span.by_name["span"].rows[0][2]:
        notices("no line was read, so nothing was written")
        return span.summary
    ((first, last, requests),) = span.by_name["span"].rows
    step_us, every, words = step_for(first, last)
    queries = {panel.name: panel.sql.replace("{step}", every) for panel in PANELS}
    found = run_together(options, queries, **about)  # type: ignore[arg-type]
    sections = list(_sections(found, first, last, step_us, words))
    notes = _left_out(found)
    if target.form != "html":
        for note in notes:
            notices(note)
        if target.form == "parquet":
            paths = write_parquet(target.path, sections)
            notices(f"{len(paths)} files written to {target.path}")
        else:
            write(sections, target.form, sys.stdout.buffer, single=False)
        return found.summary
    if found.summary.lost:
        notes.insert(0, "Not all of the input could be read: every figure lacks lines.")
    subtitle = f"{', '.join(options.files)}; times of {zone}"
    write_page(
        target.path, "Web traffic", subtitle, _cards(found.summary, first, last, requests), sections, notes
    )
    notices(f"{target.path} was written")
    return found.summary


def _sections(found: Answers, first: int, last: int, step_us: int, words: str) -> Iterator[Section]:
    for panel in PANELS:
        if (answer := found.by_name.get(panel.name)) is not None and answer.rows:
            yield _section(panel, answer, first, last, step_us, words)


def _section(panel: Panel, answer: Answer, first: int, last: int, step_us: int, words: str) -> Section:
    title, rows = panel.title.replace("{step}", words), answer.rows
    section = Section(
        panel.name, title, answer.columns, rows, panel.chart, panel.note, step_us, adds_up=panel.adds_up
    )
    if not panel.is_timed:
        return section
    rows.sort(key=lambda row: row[0])
    ends = [rows[0][0], rows[-1][0]]
    until = last + SECOND_US  # most logs have whole seconds
    partial = tuple(start for start in dict.fromkeys(ends) if first > start or until < start + step_us)
    return replace(section, partial=partial)


def _left_out(found: Answers) -> list[str]:
    titles = {panel.name: panel.title.replace(" by {step}", "") for panel in PANELS}
    return [f"{titles[name]} left out: {_reason(why)}" for name, why in found.left_out.items()]


def _reason(why: str) -> str:
    """Without the place in a query that the user has not written."""
    _, found, rest = why.partition("the log's format has no ")
    return f"the log's format has no {rest.partition(';')[0]}" if found else why


def _cards(summary: Summary, first: int, last: int, requests: int) -> list[tuple[str, str]]:
    span = [(name, iso(at)[:19].replace("T", " ")) for name, at in (("from", first), ("until", last))]
    return [*span, ("requests", f"{requests:,}"), ("lines rejected", f"{summary.rejected:,}")]
