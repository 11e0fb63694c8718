"""One agent: its sources and jobs, wired together, from start to stop. `elf agent run` is this."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from threading import Event

import msgspec

from elf.agent.config.config import Config, JobSection, SourceSection, check_sinks
from elf.agent.disk import state_dir
from elf.agent.disk.journal import Journal
from elf.agent.files.source import Source
from elf.agent.formats.choice import FormatChoice
from elf.agent.host.allocator import resident_bytes
from elf.agent.single.job_record import JobRecord
from elf.agent.single.live import Live, Record, report_stopped
from elf.agent.single.live_job import JobOptions, LiveJob, first_epoch
from elf.agent.single.live_source import LiveSource, SourceRecord, wire
from elf.cbt.budget import Budget
from elf.errors import ConfigError, ElfError, QueryError, StateError, UsageError
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.values.sql_types import SqlType
from elf.jobmaster.windows.result import Sink
from elf.sinks.spec import SinkSpec

Notices = Callable[[str], None]
JOURNAL = "journal"


def serve(config: Config, notices: Notices, stop: Event) -> None:
    """Run one agent by its configuration until `stop` is set.

    Raises ConfigError for what is wrong in the file, StateError when `state_dir` cannot be used or belongs to another agent.
    """
    live = _open_when_there_is_room(config, notices, stop)
    if live is None:
        return
    try:
        # Record this start's epoch and positions first: then no revision is used twice, even after a kill in the first second.
        live.sync(now=True)
        live.run(stop)
        live.finish(publish_open=False)
    finally:
        live.close()


def _open_when_there_is_room(config: Config, notices: Notices, stop: Event) -> Live | None:
    """Open the agent; while its disk is full, wait and try again. Returns None if `stop` is set meanwhile. Raises as `serve`."""
    folder, is_told = config.agent.state_dir, False
    while True:
        try:
            state_dir.make(folder)
            return _open_live(config, notices)
        except StateError as error:
            if not state_dir.is_full(error):
                raise
            if not is_told:
                notices(state_dir.waiting(folder, error))
            is_told = True
        if stop.wait(state_dir.RETRY_S):
            return None


def _open_live(config: Config, notices: Notices) -> Live:
    """Open the agent with the state of its journal. Records of the journal are freed when this returns: they may be large."""
    budget = Budget(config.agent.memory_max, config.agent.state_dir, resident_bytes)
    journal, encoded = Journal.open(config.agent.state_dir / JOURNAL)
    try:
        history = History(encoded)
        sources = _sources(config, history, budget, notices)
        return Live(
            sources,
            budget=budget,
            epoch=history.epoch,
            journal=journal,
            notices=notices,
            lakes=sorted({spec.folder for job in config.jobs for spec in job.sinks if spec.folder}),
            stopped=history.stopped,
        )
    except BaseException:
        journal.close()
        raise


class History:
    """The content of the journal: the newest positions, and each job's records in order. epoch: of this start. present: the jobs
    at the end. apart: positions of those that differ from their source's. left: for every other job, the positions when it was
    present last. stopped: positions of jobs that could not be restored."""

    def __init__(self, encoded: Sequence[bytes]) -> None:
        self.sources: dict[str, SourceRecord] = {}
        self.jobs: dict[str, list[JobRecord]] = {}
        self.present: set[str] = set()
        self.apart: dict[str, SourceRecord] = {}
        self.stopped: dict[str, SourceRecord] = {}
        self.left: dict[str, dict[str, SourceRecord]] = {}
        self.epoch = 0
        for data in encoded:
            try:
                record = msgspec.msgpack.decode(data, type=Record)
            except msgspec.DecodeError as error:
                raise StateError(
                    f"the journal holds a record that this version cannot read ({error}); move the journal away to start anew"
                ) from error
            self.epoch = max(self.epoch, record.epoch + 1)
            present = set(record.jobs) | set(record.apart)
            if record.sources:
                self.left.update({name: dict(self.sources) for name in self.present - present})
                self.apart = record.apart
            self.sources.update(record.sources)
            self.present = present
            for name, job in record.jobs.items():
                self.jobs.setdefault(name, []).append(job)

    def read_without(self, job: str, source: str) -> int | None:
        """The latest event time that the source had read at the end, if it read anything after the job was present last."""
        saved, before = self.sources.get(source), self.left.get(job, {}).get(source)
        if saved is None or (before is not None and before.has_read_as_far_as(saved)):
            return None
        return saved.time_max


def _sources(config: Config, history: History, budget: Budget, notices: Notices) -> list[LiveSource]:
    opened = [_open(section, history.sources.get(section.name), notices) for section in config.sources]
    schemas = {source.name: formats.schema({source.name: source.head()}) for source, formats in opened}
    plans = [(job, _compile(job, schemas)) for job in config.jobs]
    for source, formats in opened:
        asked = {column.name for _, plan in plans if plan.source == source.name for column in plan.columns}
        for note in formats.notes(sorted(asked)):
            notices(f"{source.name}: {note}")
    out = []
    for section, (source, formats) in zip(config.sources, opened, strict=True):
        saved = history.sources.get(section.name)
        together: list[LiveJob] = []
        apart: list[LiveSource] = []
        for job, plan in plans:
            if plan.source != section.name:
                continue
            position = history.apart.get(job.name)
            try:
                live = _job(job, plan, budget, history, notices)
            except (ElfError, OSError):
                raise
            except Exception as error:
                report_stopped(job.name, error, notices)
                if (stands := position or saved) is not None:
                    history.stopped[job.name] = stands
                continue
            position = history.apart.get(job.name)
            if position is None or (saved is not None and position.has_read_as_far_as(saved)):
                together.append(live)
            else:
                own = _open(section, position, notices)
                apart.append(
                    wire(*own, [live], section.timezone, config.agent.name, position, apart=job.name)
                )
        out += [wire(source, formats, together, section.timezone, config.agent.name, saved), *apart]
    return out


def _open(
    section: SourceSection, saved: SourceRecord | None, notices: Notices
) -> tuple[Source, FormatChoice]:
    source = Source(section.name, section.paths, state=saved.position if saved else None, start=section.start)
    source.scan(time.monotonic())
    formats = FormatChoice(section.format, notices, lenient=True, head=lambda block: source.head(block.file))
    return source, formats


def _compile(job: JobSection, schemas: Mapping[str, Mapping[str, SqlType]]) -> Plan:
    # In a child process: the compiler's memory would stay with the agent for good.
    from elf.jobmaster.compile.query import compile_in_child

    try:
        plan = compile_in_child(job.sql, schemas)
    except QueryError as error:
        raise ConfigError(f"{job.where}: job {job.name}: {error}") from error
    check_sinks(job, has_window=plan.window is not None)
    return plan


def _job(job: JobSection, plan: Plan, budget: Budget, history: History, notices: Notices) -> LiveJob:
    options = JobOptions(job.lateness_us, job.emit_us, job.keep_us)
    try:
        sinks = [open_sink(spec) for spec in job.sinks]
    except UsageError as error:
        raise ConfigError(f"{job.where}: job {job.name}: {error}") from error
    lakes = [str(spec.folder) for spec in job.sinks if spec.folder is not None]
    live = LiveJob(job.name, plan, options, sinks, budget, first_epoch(job.name, sinks, history.epoch), lakes)
    records = history.jobs.pop(job.name, [])
    # Only records after the last change of its query, where its windows began again.
    same = list(takewhile(lambda record: record.version == live.publisher.version, reversed(records)))[::-1]
    if records and not same:
        notices(f"job {job.name}: its query changed since the last start; windows begin anew from here")
    elif same and job.name not in history.present:
        notices(
            f"job {job.name}: goes on from where it was left out; it lacks the lines that were read meanwhile"
        )
    try:
        live.restore(same)
    except BaseException:
        live.abandon()
        raise
    if not same:
        history.apart.pop(job.name, None)
    missed = (
        history.read_without(job.name, plan.source) if not same or job.name not in history.present else None
    )
    # Without a window, a job that begins now is whole; one that was interrupted is not.
    if missed is not None and (same or plan.window is not None):
        live.has_missed(missed)
    return live


def open_sink(spec: SinkSpec) -> Sink:
    """The sink of a configuration's `sinks` entry."""
    if spec.kind == "console":
        from elf.sinks.console.terminal import console

        return console(spec.output, meta=True)
    from elf.sinks.lake.parquet import ParquetSink

    assert spec.folder is not None
    return ParquetSink(spec.folder)
