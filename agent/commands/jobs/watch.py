"""`elf job watch`: a job's windows, as its master publishes them."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from elf.agent.commands.jobs.job import connect
from elf.agent.commands.mesh_text import time_text
from elf.agent.commands.process.signals import Stop, stop_on_signals
from elf.agent.commands.process.streams import say
from elf.agent.config.names import check_asked
from elf.agent.control import protocol as w
from elf.agent.control.client import Control
from elf.errors import PeerError
from elf.jobmaster.delivery.shown import window_of
from elf.jobmaster.directory.job_spec import END
from elf.jobmaster.plan.codec import decode
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.windows.result import Sink, Window
from elf.sinks.console.terminal import new_console
from elf.srt.codec import wire
from elf.srt.messages.results import Put

WAKE_S = 0.2
"""Seconds until Ctrl-C takes effect."""


def watch_command(name: str, windows: int | None, output: str | None, agent: Path | None) -> int:
    """Print windows until `windows` of them are final, or a signal comes; also those after the job's next start.

    Raises `ElfError`, `StreamClosed`.
    """
    check_asked(name)
    with stop_on_signals() as stop, connect(agent) as control:
        sink = new_console(output or "auto", meta=True)
        try:
            _follow(windows_of(control, name, stop), sink, windows)
        finally:
            sink.close()
    return stop.exit_code


def _follow(windows: Iterator[Window | str | None], sink: Sink, count: int | None) -> None:
    """Count each window once, when it is final. The window of a query without `window` is never final: it counts each time."""
    finals: set[tuple[str, int | None]] = set()
    unbounded = 0
    for window in windows:
        if window is None:
            sink.flush()
        elif isinstance(window, str):
            sink.flush()
            say(window)
        else:
            sink.put(window)
            if window.start is None:
                unbounded += 1
            elif window.status == "withdrawn":
                finals.discard((window.version, window.start))
            elif window.status != "open":
                finals.add((window.version, window.start))
        if count is not None and unbounded + len(finals) >= count:
            return


def windows_of(control: Control, name: str, stop: Stop) -> Iterator[Window | str | None]:
    """Windows; None when no more has come yet; a text where the job's version changes, and where it is stopped and started."""
    plans: dict[str, Plan] = {}
    first: Put | None = None  # the first part of a window: its fields hold for all parts
    rows: list[tuple[Any, ...]] = []
    answers = control.ask(w.JobWatch(name))
    while True:
        if not control.has_more:
            yield None
            while not (stop.event.is_set() or control.has_more):
                if select.select([control], [], [], WAKE_S)[0]:
                    break
        if stop.event.is_set():  # also where there is always more
            return
        if (answer := next(answers, None)) is None:
            return
        if isinstance(answer, w.Versions):
            plans.update((version, decode(plan)) for version, plan in answer.plans.items())
        elif isinstance(answer, w.Published):
            put = _put(answer)
            first = first or put
            rows += put.rows
            if not answer.more:
                yield window_of(name, replace(first, rows=rows), plans[first.version])
                first, rows = None, []
        elif isinstance(answer, w.NewVersion):
            line = time_text(answer.from_us)
            if answer.version == END:
                yield f"job {name} is being stopped: lines from {line} UTC on do not count"
            else:
                yield f"job {name}: version {answer.version} is in force from {line} UTC on"
        elif isinstance(answer, w.Note):
            yield answer.text
        elif isinstance(answer, w.Done):
            yield answer.text
            return


def _put(answer: w.Published) -> Put:
    put = wire.decode(answer.put)
    if not isinstance(put, Put):
        raise PeerError("the agent sent a message that is not a window")
    return put
