"""Several queries over the same files, which are read and parsed once: what `elf run --report all` does.

files -> Feed -> a worker and panes for each query -> windows
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any

import msgspec
from msgspec.structs import replace

from elf.agent.files import inputs
from elf.agent.formats.choice import FormatChoice
from elf.agent.host.allocator import resident_bytes
from elf.agent.run.engine import (
    INTERRUPTED,
    Lost,
    OneShot,
    Progress,
    RunOptions,
    Summary,
    compile_plan,
    deliver,
    heads,
    summary_of,
)
from elf.agent.work.feed import Feed, columns_for
from elf.cbt.budget import Budget
from elf.errors import QueryError
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.windows.result import ColumnInfo, Window

ALWAYS = ("time", "agent")
"""Columns that every line has."""


class Answer(msgspec.Struct):
    """The rows of all windows of one query, in the order of the windows."""

    columns: tuple[ColumnInfo, ...]
    rows: list[tuple[Any, ...]]


class Answers(msgspec.Struct):
    """by_name: of the queries that could be answered; left_out: why the others could not. summary: of the reading."""

    by_name: dict[str, Answer]
    left_out: dict[str, str]
    summary: Summary


class _Kept:
    """A sink that keeps the rows."""

    wants_open = wants_state = False

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def put(self, window: Window) -> None:
        self._answer.rows += window.rows

    def put_state(self, state: object) -> None:
        raise AssertionError("it wants none")

    def flush(self) -> None: ...

    def close(self) -> None: ...


def run_together(
    options: RunOptions,
    queries: Mapping[str, str],
    *,
    on_progress: Callable[[Progress], None] | None = None,
    notices: Callable[[str], None] = lambda _: None,
    on_lost: Callable[[str], None] = lambda _: None,
    stop: Event | None = None,
) -> Answers:
    """Run the queries, by their names, each with groups; `options.query` is ignored. A query for columns that the log has not is
    left out. Raises UsageError, FormatError before anything is read. O(lines x queries)."""
    began = time.monotonic()
    lost = Lost(on_lost)
    paths = inputs.expand(options.files, lost)
    formats = FormatChoice(options.format, notices)
    blocks = inputs.read(paths, notices=notices, lost=lost)
    first = next(blocks, None)
    plans, left_out = _compiled(options, queries, formats.schema(heads(paths, first)))
    reading = time.monotonic()
    total = inputs.total_bytes(paths)
    shared = _Shared(options, plans, formats)
    try:
        for block in itertools.chain([first] if first is not None else [], blocks):
            shared.feed.take(block, now_us=time.time_ns() // 1_000)
            shared.account()
            if on_progress is not None:
                on_progress(Progress(block.size_done, total, shared.feed.totals.lines))
            if stop is not None and stop.is_set():
                lost(INTERRUPTED)
                break
        answers = shared.answers(lost)
        summary = shared.summary(formats, len(paths), time.monotonic() - began)
    finally:
        shared.close()
    keyed = shared.feed.totals.keyed
    if keyed is not None and shared.feed.totals.parsed:
        for name, plan in plans.items():
            lacking = [each.name for each in plan.columns if each.name not in (*ALWAYS, *keyed)]
            if lacking:
                del answers[name]
                left_out[name] = f"no line has {lacking[0]}"
    summary = replace(summary, lost=tuple(lost.what), reading_s=time.monotonic() - reading)
    return Answers(answers, left_out, summary)


def _compiled(
    options: RunOptions, queries: Mapping[str, str], schema: Mapping[str, Any]
) -> tuple[dict[str, Plan], dict[str, str]]:
    """The plans, and why others have none."""
    plans: dict[str, Plan] = {}
    left_out: dict[str, str] = {}
    for name, query in queries.items():
        try:
            plan = compile_plan(replace(options, query=query), schema)
        except QueryError as error:
            left_out[name] = str(error)
            continue
        assert isinstance(plan, Plan), "queries without groups are for `run`"
        plans[name] = plan
    return plans, left_out


class _Shared:
    """One feed for the workers of all plans, and one budget."""

    def __init__(self, options: RunOptions, plans: Mapping[str, Plan], formats: FormatChoice) -> None:
        self._budget = Budget(options.memory_max, None, resident_bytes)
        self._shots = {name: OneShot(options, plan, formats, self._budget) for name, plan in plans.items()}
        workers = [shot.worker for shot in self._shots.values()]
        self.feed = Feed(
            formats.of,
            workers,
            columns=columns_for(workers),
            settle=self._settle,
            timezone=options.timezone,
            bounds=options.bounds,
            strings_max=max(1 << 18, min(8 << 20, options.memory_max // 16)),
        )
        self._front_max = max(1 << 20, min(32 << 20, options.memory_max // 8))

    def _settle(self) -> None:
        for shot in self._shots.values():
            shot.settle()

    def account(self) -> None:
        """After each block: settle what workers hold, if it is much."""
        if self._held > self._front_max:
            self.feed.empty_dictionaries()
        self._budget.reserve("worker", self._held + self.feed.nbytes)

    @property
    def _held(self) -> int:
        return sum(shot.worker.nbytes for shot in self._shots.values())

    def answers(self, lost: Lost) -> dict[str, Answer]:
        self.feed.empty_dictionaries()
        self._budget.reserve("worker", self._held + self.feed.nbytes)
        found: dict[str, Answer] = {}
        for name, shot in self._shots.items():
            found[name] = Answer(shot.columns, [])
            deliver(shot.publisher, shot.panes, self._budget, [_Kept(found[name])], lost)
        return found

    def summary(self, formats: FormatChoice, files: int, seconds: float) -> Summary:
        shots: Sequence[OneShot] = list(self._shots.values())
        if not shots:
            return Summary(files=files, seconds=seconds)
        shots[0].feed = self.feed
        return summary_of(shots[0], formats, files, seconds)

    def close(self) -> None:
        for shot in self._shots.values():
            shot.close()
