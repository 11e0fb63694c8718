"""Follows a trial: the windows of both sides, compared as they become final."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from typing import NamedTuple

from elf.agent.commands.jobs.job import connect
from elf.agent.commands.jobs.trial.comparison import Compared, Comparison
from elf.agent.commands.jobs.trial.text import NO_COSTS, Costs, as_json, as_table
from elf.agent.commands.jobs.trial.trial import NewTrial, Running, described, running_trial, start_trial
from elf.agent.commands.jobs.watch import WAKE_S, windows_of
from elf.agent.commands.mesh_text import is_table
from elf.agent.commands.process.signals import Stop, stop_on_signals
from elf.agent.commands.process.streams import say
from elf.agent.control import protocol as w
from elf.agent.control.client import Control
from elf.errors import ElfError
from elf.jobmaster.log.schedule import plan_of
from elf.jobmaster.windows.result import Window

COSTS_S = 5.0
QUEUED_MAX = 16
"""Windows that have come and are not compared yet; the agent waits for their reader."""


class _News(NamedTuple):
    """of: 0 of the present version, 1 of the trial. what: a window, a text, an error, or None at the end."""

    of: int
    what: Window | str | Exception | None


def try_command(new: NewTrial, windows: int | None, output: str | None, agent: Path | None) -> int:
    """Start a trial, or find the one that runs, and print both results until `windows` are compared, the trial has ended, or a
    signal comes. Returns the exit code. Raises `ElfError`."""
    is_new = new.sql is not None or new.values
    running = start_trial(new, agent) if is_new else running_trial(new.name, agent)
    for line in described(running):
        say(line)
    return 0 if windows == 0 else _watch(running, windows, is_table(output), agent)


def _watch(running: Running, windows: int | None, is_text: bool, agent: Path | None) -> int:
    shown: set[int | None] = set()
    costs = _Costs(running, agent)
    with stop_on_signals() as stop:
        for compared in _compared(running, agent, stop):
            print((as_table if is_text else as_json)(running.trial.of, compared, costs.look()), flush=True)
            shown.add(compared.windows.now.start)
            if len(shown) == windows:
                break
    if stop.exit_code:
        say(f"the trial goes on without this display; see it again with elf job try {running.trial.of}")
    return stop.exit_code


class _Costs:
    """What both sides cost, asked of all agents, but not more often than every `COSTS_S`."""

    def __init__(self, running: Running, agent: Path | None) -> None:
        self._names, self._agent = (running.base, running.spec.name), agent
        self._costs, self._due_s = NO_COSTS, 0.0

    def look(self) -> Costs:
        """The newest figures; none while the agent does not answer."""
        if monotonic() >= self._due_s:
            found: dict[str, w.Cost] = {}
            with suppress(ElfError), connect(self._agent) as control:
                status = control.one(w.MeshStatus())
                found = {cost.job: cost for cost in status.costs} if isinstance(status, w.Status) else {}
            self._costs = found.get(self._names[0]), found.get(self._names[1])
            self._due_s = monotonic() + COSTS_S
        return self._costs


def _compared(running: Running, agent: Path | None, stop: Stop) -> Iterator[Compared]:
    """Windows of both sides, until a signal comes or one side ends. Raises `ElfError`."""
    tried = running.spec.versions[-1]
    comparison = Comparison(plan_of(running.present.plan), plan_of(tried.plan))
    versions, names = (running.present.digest, tried.digest), (running.base, running.spec.name)
    news: Queue[_News] = Queue(QUEUED_MAX)
    with ExitStack() as stack:
        for of, name in enumerate(names):
            control = stack.enter_context(connect(agent))
            Thread(target=_listen, args=(of, control, name, stop, news), daemon=True).start()
        while not stop.event.is_set():
            try:
                of, what = news.get(timeout=WAKE_S)
            except Empty:
                continue
            if isinstance(what, Exception):
                raise what
            if what is None:
                return
            if isinstance(what, str):
                say(what)
            elif what.version == versions[of] and (compared := comparison.take(of, what)) is not None:
                yield compared


def _listen(of: int, control: Control, name: str, stop: Stop, news: Queue[_News]) -> None:
    """In a thread of its own, which ends when the connection is closed."""
    try:
        for each in windows_of(control, name, stop):
            if each is not None:
                news.put(_News(of, each))
        news.put(_News(of, None))
    except Exception as error:
        news.put(_News(of, error))
