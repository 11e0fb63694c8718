"""`elf alerts backtest`: when an alert would have fired, by the windows of a lake or of raw logs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from elf.agent.commands.arguments import bounds_of, checked_timezone
from elf.agent.commands.jobs.job import connect, held_job
from elf.agent.commands.mesh_text import as_json, is_table, table_of, time_text
from elf.agent.config.alert_table import compiled_alerts, fitting
from elf.agent.config.job_file import JobFile, read_job_file
from elf.agent.control import protocol as w
from elf.errors import UsageError
from elf.jobmaster.alerts.alert import Alert
from elf.jobmaster.alerts.book import JudgedWindow, Transition
from elf.jobmaster.alerts.replay import Replay
from elf.jobmaster.directory.job_spec import JobSpec, decode_job
from elf.jobmaster.directory.versions import parameter_texts
from elf.jobmaster.plan.plan import Plan, RowPlan
from elf.jobmaster.windows.result import PaneState, Window
from elf.sinks.console.cells import escape

if TYPE_CHECKING:
    from elf.jobmaster.alerts.rows import RowJudge


class Tested(msgspec.Struct, frozen=True):
    """One change that sinks would have heard. since_us: since when the condition held; at_us: the end of the window."""

    job: str
    alert: str
    state: str
    at_us: int
    since_us: int
    keys: dict[str, str]
    text: str


class Backtest(msgspec.Struct, frozen=True):
    """What a backtest found. windows: how many were judged; from_us, to_us: the times they cover, 0 without any. firing:
    instances that fire at the end."""

    changes: list[Tested]
    windows: int
    from_us: int
    to_us: int
    firing: int


class Asked(msgspec.Struct, frozen=True):
    """An alert of a job: from a job file, or as a running job has it."""

    name: str
    job: str
    sql: str
    source: str
    parameters: dict[str, str]
    file: JobFile | None = None
    alerts: tuple[Alert, ...] = ()

    def alert(self, plan: Plan) -> Alert:
        """The alert for that query. Raises UsageError."""
        if self.file is None:
            (found,) = fitting(self.alerts, plan, self.job)
            return found
        (found,) = compiled_alerts([each for each in self.file.alerts if each.name == self.name], plan)
        return found


Judged = tuple[JudgedWindow, int]
"""A window, and its size in microseconds."""


def backtest_command(
    name: str,
    job: str | None,
    file: Path | None,
    lake: Path | None,
    logs: Sequence[str],
    since: str | None,
    until: str | None,
    format: str,
    timezone: str,
    output: str | None,
    agent: Path | None,
) -> str:
    """What to print. Raises `ElfError`."""
    if (lake is None) == (not logs):
        raise UsageError(
            "name what holds the past: --lake FOLDER, or --logs FILE (repeatable)"
            + (", not both" if logs else "")
        )
    zone = checked_timezone(timezone)
    bounds = bounds_of(since, until, time.time_ns() // 1_000, zone)
    asked = _of_file(file, name, job) if file is not None else _of_job(name, job, agent)
    found = _of_lake(asked, lake, bounds) if lake is not None else _of_logs(asked, logs, format, zone, bounds)
    tested = replayed(asked, *found)
    return table(asked, tested) if is_table(output) else as_json(tested)


def _of_file(path: Path, name: str, job: str | None) -> Asked:
    """Raises UsageError."""
    file = read_job_file(path)
    called = job or file.name or path.stem
    _check(name, [(each.name, each.when) for each in file.alerts], str(path))
    names = re.findall(r"(?i)\bFROM\s+(\w+)", file.sql)
    return Asked(name, called, file.sql, file.source or (names or ["access"])[0], file.params, file)


def _of_job(name: str, job: str | None, agent: Path | None) -> Asked:
    """Raises ElfError."""
    with connect(agent) as control:
        listed = control.one(w.AlertList())
    assert isinstance(listed, w.Alerts)
    jobs = sorted({each.job for each in listed.alerts if each.alert == name})
    if job is None and len(jobs) > 1:
        raise UsageError(f"several jobs have an alert {name}: {', '.join(jobs)}; choose one with --job")
    job = job or (jobs[0] if jobs else None)
    if job is None:
        has = ", ".join(sorted({each.alert for each in listed.alerts})) or "none"
        raise UsageError(f"no job has an alert {name}; the alerts are {has}; or give a job file with -f")
    with connect(agent) as control:
        held = held_job(control, job)
    spec = decode_job(held.item) if held.item is not None else None
    if spec is None or spec.stopped:
        raise UsageError(f"no job is called {job}; see elf job list, or give a job file with -f")
    return _of_spec(spec, name)


def _of_spec(spec: JobSpec, name: str) -> Asked:
    _check(name, [(each.name, each.when) for each in spec.alerts], f"job {spec.name}")
    alerts = tuple(each for each in spec.alerts if each.name == name)
    query = spec.query
    return Asked(name, spec.name, query.text, spec.source, parameter_texts(query), None, alerts)


def _check(name: str, alerts: Sequence[tuple[str, str]], where: str) -> None:
    """Raises UsageError for an alert that is not there, or cannot be replayed."""
    found = dict(alerts)
    if name not in found:
        raise UsageError(f"{where} has no alert {name}; it has {', '.join(found) or 'none'}")
    if found[name] == "no data":
        raise UsageError(
            f'alert {name} says "no data" by a clock, which no log and no lake has: it cannot be replayed'
        )


# ---- windows of the past ----


class _Judging:
    """A sink that judges the windows of a run. Rows of a large window are readable only while it is put."""

    wants_open = False
    wants_state = False

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self.judged: list[Judged] = []
        self.alert: Alert | None = None
        self._judge: RowJudge | None = None
        self._size_us = self._slide_us = 0

    def begin(self, plan: Plan | RowPlan) -> None:
        """Raises UsageError."""
        from elf.jobmaster.alerts.rows import RowJudge

        if isinstance(plan, RowPlan) or plan.window is None:
            raise UsageError(
                f"job {self._asked.job}: its query has no window; an alert is judged window by window"
            )
        self.alert = self._asked.alert(plan)
        self._judge = RowJudge(plan)
        self._size_us, self._slide_us = plan.window.size_us, plan.window.slide_us

    def put(self, window: Window) -> None:
        assert self._judge is not None
        assert self.alert is not None
        assert window.end is not None
        rows = window.rows[: len(window.rows) - window.others] if window.others else window.rows
        whole = window.status == "final"
        self.judged.append(
            (judged_by(self._judge, self.alert, rows, window.end, self._slide_us, whole), self._size_us)
        )

    def put_state(self, state: PaneState) -> None:
        raise AssertionError("wants_state is False")

    def flush(self) -> None: ...

    def close(self) -> None: ...


def judged_by(
    judge: RowJudge,
    alert: Alert,
    rows: Sequence[tuple[object, ...]],
    end_us: int,
    slide_us: int,
    is_complete: bool,
) -> JudgedWindow:
    """What the rows of a window say. O(rows)."""
    from elf.jobmaster.alerts.rows import ROWS_MAX

    hits, left_out = judge.hits([alert], rows)
    return JudgedWindow(end_us, slide_us, is_complete and len(rows) <= ROWS_MAX, True, hits, left_out)


def _of_logs(
    asked: Asked, logs: Sequence[str], format: str, zone: str, bounds: tuple[int | None, int | None]
) -> tuple[Alert, list[Judged]]:
    """Raises ElfError."""
    from elf.agent.run.engine import RunOptions, run

    sink = _Judging(asked)
    options = RunOptions(
        asked.sql,
        tuple(logs),
        format,
        *bounds,
        timezone=zone,
        job=asked.job,
        parameters=asked.parameters,
        source=asked.source,
    )
    lost: list[str] = []
    run(options, [sink], on_plan=sink.begin, on_lost=lost.append)
    if lost:
        raise UsageError(f"the logs cannot be read whole: {'; '.join(lost)}")
    assert sink.alert is not None
    return sink.alert, sink.judged


def _of_lake(asked: Asked, lake: Path, bounds: tuple[int | None, int | None]) -> tuple[Alert, list[Judged]]:
    """Of all versions of the job, in the order of the ends. Raises ElfError."""
    from elf.jobmaster.alerts.rows import RowJudge
    from elf.sinks.lake.layout import existing_tables
    from elf.sinks.report import local_read

    existing_tables(lake, asked.job)
    of_job = (each for each in local_read.stored_jobs(lake) if each.job == asked.job)
    versions = [msgspec.structs.replace(each, bounds=bounds) for each in of_job]
    times = {each.version: _Times(local_read.coverage(each)) for each in versions}
    alert: Alert | None = None
    found: list[Judged] = []
    for stored in sorted(versions, key=lambda each: each.newest, reverse=True):
        plan = local_read.plan_of(stored)
        if plan.window is None:
            continue
        try:
            own = asked.alert(plan)
        except UsageError:
            if alert is None:
                raise
            continue  # an earlier query, of which the alert cannot be judged: it holds nowhere, as at a master
        alert = alert or own
        judge, size_us, slide_us = RowJudge(plan), plan.window.size_us, plan.window.slide_us
        others = [each for version, each in times.items() if version != stored.version]
        rows_of = dict[int, JudgedWindow]()
        if (misfit := stored.own_misfit()) is not None:
            raise UsageError(f"job {asked.job}: {misfit}")
        for start, rows in local_read.windows(stored, plan):
            if _is_within(start, size_us, bounds):
                rows_of[start] = judged_by(judge, own, rows, start + size_us, slide_us, True)
        for start in times[stored.version].starts_of(size_us, slide_us):
            if not _is_within(start, size_us, bounds):
                continue
            is_cut = any(each.has_any(start, start + size_us) for each in others)
            is_whole = times[stored.version].is_whole(start, start + size_us) and not is_cut
            seen = rows_of.get(start) or JudgedWindow(start + size_us, slide_us, True, True)
            found.append((msgspec.structs.replace(seen, is_complete=seen.is_complete and is_whole), size_us))
    if alert is None:
        raise UsageError(f"job {asked.job}: its query has no window; an alert is judged window by window")
    return alert, sorted(found, key=lambda each: each[0].until_us)


def _is_within(start: int, size_us: int, bounds: tuple[int | None, int | None]) -> bool:
    since, until = bounds
    return (since is None or start >= since) and (until is None or start + size_us <= until)


class _Times:
    """The panes of one version in a lake: when they begin, and which lack an agent. O(panes)."""

    def __init__(self, panes: Iterable[dict[str, object]]) -> None:
        from elf.sinks.report.local_read import micros

        self._whole: dict[int, bool] = {}
        self._pane_us = 1
        for pane in panes:
            if pane["_pane_start"] is None:
                continue
            start, end = micros(pane["_pane_start"]), micros(pane["_pane_end"])
            self._whole[start] = pane["_agents_reporting"] == pane["_agents_expected"]
            self._pane_us = end - start

    def starts_of(self, size_us: int, slide_us: int) -> Iterator[int]:
        """The starts of the windows that have a pane, in order."""
        found = {
            first - back
            for pane in self._whole
            for first in (pane - pane % slide_us,)
            for back in range(0, size_us, slide_us)
            if first - back + size_us > pane
        }
        return iter(sorted(found))

    def has_any(self, start: int, end: int) -> bool:
        return any(at in self._whole for at in range(start - start % self._pane_us, end, self._pane_us))

    def is_whole(self, start: int, end: int) -> bool:
        """Whether no pane of that time lacks an agent; a pane without lines is in no lake."""
        return all(self._whole.get(at, True) for at in range(start, end, self._pane_us))


# ---- the answer ----


def replayed(asked: Asked, alert: Alert, judged: Sequence[Judged]) -> Backtest:
    """Judge the windows. O(windows + hits)."""
    replay = Replay([alert])
    heard = [change for window, size_us in judged for change in replay.take(window, size_us)]
    changes = [_tested(asked.job, each) for each in heard]
    begin = min((window.until_us - size_us for window, size_us in judged), default=0)
    end = max((window.until_us for window, _ in judged), default=0)
    return Backtest(changes, len(judged), begin, end, len(replay.book.firing()))


def _tested(job: str, change: Transition) -> Tested:
    about = job, change.alert, change.state, change.at_us, change.since_us
    return Tested(*about, dict(change.keys), change.text)


def table(asked: Asked, found: Backtest) -> str:
    """One row for each change, and a line of totals."""
    rows = [
        (
            each.state,
            time_text(each.at_us),
            time_text(each.since_us),
            escape(", ".join(f"{name}={value}" for name, value in each.keys.items())) or "-",
            escape(each.text) or "-",
        )
        for each in found.changes
    ]
    fired = sum(each.state == "firing" for each in found.changes)
    span = f" from {time_text(found.from_us)} to {time_text(found.to_us)} UTC" if found.windows else ""
    windows = f"{found.windows:,} window{'' if found.windows == 1 else 's'}"
    times = "once" if fired == 1 else f"{fired:,} times"
    ends = f", and fires at the end for {found.firing:,} of them" if found.firing else ""
    last = f"alert {asked.name} of job {escape(asked.job)}: {windows}{span}: would have fired {times}{ends}"
    if not rows:
        return last
    return "\n".join([table_of(["state", "at", "since", "keys", "text"], rows), last])
