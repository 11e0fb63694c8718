"""How a job's sinks take its windows, for `elf job show`: from a mesh's status."""

from __future__ import annotations

from pathlib import Path

import msgspec

from elf.agent.commands.jobs.job import connect
from elf.agent.commands.mesh_text import roughly
from elf.agent.control import protocol as w
from elf.jobmaster.directory.job_spec import JobSpec
from elf.sinks.console.cells import escape
from elf.srt.messages.patterns import is_named

NOBODY = "no agent that answers has this sink"


class Delivery(msgspec.Struct, frozen=True):
    """One sink of the job. agents: those that have it. waiting, oldest_us, lost, delivered: at the job's master, which reports
    them for `LAGS_MAX` sinks of all its jobs, those first for which windows wait. problem: the last one at an agent that has the
    sink; "" if there is none."""

    sink: str
    agents: tuple[str, ...]
    waiting: int = 0
    oldest_us: int = 0
    lost: int = 0
    delivered: int = 0
    problem: str = ""

    @property
    def text(self) -> str:
        if not self.agents:
            return f"{escape(self.sink)}: {NOBODY}; {self._waits}"
        parts = [f"{escape(self.sink)} at {escape(', '.join(self.agents))}: {self._waits}"]
        parts += [f"{_windows(self.delivered)} delivered"] if self.delivered else []
        parts += [f"{_windows(self.lost)} lost"] if self.lost else []
        parts += [escape(self.problem)] if self.problem else []
        return "; ".join(parts)

    @property
    def _waits(self) -> str:
        if not self.waiting:
            return "nothing waits"
        verb = "waits" if self.waiting == 1 else "wait"
        return f"{_windows(self.waiting)} {verb}, the oldest for {roughly(self.oldest_us / 1e6)}"


def _windows(count: int) -> str:
    return f"{count:,} window{'' if count == 1 else 's'}"


def deliveries(spec: JobSpec, status: w.Status) -> list[Delivery]:
    """Of each sink that the job or an alert of it names, that takes the job, or for which windows of it wait."""
    lags = {lag.sink: lag for member in status.members for lag in member.lags if lag.job == spec.name}
    found = []
    alerted = [sink for alert in spec.alerts for sink in alert.sinks]
    takers = [
        sink for member in status.members for sink, patterns in member.takes if is_named(spec.name, patterns)
    ]
    for sink in dict.fromkeys((*spec.sinks, *alerted, *takers, *lags)):
        agents = tuple(member.name for member in status.members if sink in member.sinks)
        lines = (line for member in status.members for line in member.delivering if line.name == sink)
        problem = next((line.problem for line in lines if line.problem), "")
        lag = lags.get(sink)
        about = (lag.waiting, lag.oldest_us, lag.lost, lag.delivered) if lag is not None else (0, 0, 0, 0)
        found.append(Delivery(sink, agents, *about, problem))
    return found


def deliveries_of(spec: JobSpec, agent: Path | None) -> list[Delivery]:
    """Ask the mesh about the sinks of a job that runs; a trial has none. Raises `ElfError`."""
    if spec.stopped or spec.trial is not None:
        return []
    with connect(agent) as control:
        status = control.one(w.MeshStatus())
    assert isinstance(status, w.Status)
    return deliveries(spec, status)
