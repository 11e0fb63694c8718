"""Coverage of a simulation: its faults and the paths of the protocol that it took, each with a count.

Over many seeds this shows whether simulations cover the protocol: `soak --stats` prints the table, `soak --choose` the seeds of
the tests, which require each path in a number of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from elf.agent.simulator.mesh import EVERY, Mesh
from elf.agent.simulator.run import Outcome, Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.places import Actor
from elf.jobmaster.directory.job_spec import END
from elf.jobmaster.log import entries as e
from elf.srt.messages import changes as c
from elf.srt.messages import messages as m
from elf.srt.messages import results as r
from elf.srt.messages.effects import Notice
from elf.srt.messages.ids import JobId, NodeId

WAYS = (
    "log: taken over",
    "log: handed over to a closer node",
    "log: started again after it was lost",
    "log: refused by a replica",
    "log: a snapshot for a replica",
    "masters: two at once",
    "bundle: sent again",
    "bundle: split",
    "bundle: resent apart",
    "reducer: a child gets Hold",
    "worker: requests its positions",
    "worker: a file is closed",
    "worker: lines are lost",
    "worker: lines are lost in a lane",
    "roster: added",
    "roster: left",
    "roster: gone, with another log",
    "change: logged",
    "change: the job's end",
    "change: read again in a lane",
    "change: taken",
    "change: refused",
    "window: final, whole",
    "window: final, less than whole",
    "window: revised",
    "window: whole after less than whole",
    "window: open, less than whole",
    "window: late lines counted",
    "window: retired",
    "window: withdrawn",
    "sink: refuses a master",
    "sink: reports its windows to a new master",
    "tree: a parent refuses",
    "twin: waits to be admitted",
    "process: its end is seen",
    "process: a later life answers",
)
"""The paths that `Census` counts. In a hundred seeds each occurs in nine or more, except those in `RARE`."""
RARE = (
    "roster: gone, with another log",
    "worker: lines are lost in a lane",
    "window: late lines counted",
    "twin: waits to be admitted",
)
"""Paths that occur in one to seven of a hundred seeds."""


class Census:
    """An observer of a run. O(1) for a message, O(contributions) for an entry of the log."""

    def __init__(self, mesh: Mesh) -> None:
        self.counts: Counter[str] = Counter(f"fault: {name}" for name in map(name_of, mesh.scenario.faults))
        self._mesh = mesh
        self._logged: set[tuple[JobId, m.Ballot, int]] = set()
        self._begun: set[JobId] = set()
        self._partial: set[tuple[NodeId, JobId, str, int]] = set()

    def observe(self, now_us: int, what: str, who: Actor | None, about: Any) -> None:
        """Count an event of the world."""
        if what == "deliver":
            message = about[1]
            if type(message) in (m.Frame, m.Routed):
                message = message.message
            seen = _SEEN.get(type(message))
            if type(message) in (r.LedgerReport, r.PutReply) and who is not None:
                self._ledger(message, who.id)
            elif seen is not None:
                seen(self, message)
        elif what == "put":
            self._put(about)
        elif what == "crash" and about:
            self.counts["fault: a disk is lost"] += 1
        elif what == "waits":
            self.counts["twin: waits to be admitted"] += 1
        elif what in ("sees end", "sees restart"):
            self.counts[
                f"process: {'its end is seen' if what == 'sees end' else 'a later life answers'}"
            ] += 1
        elif what == "notice" and isinstance(about, Notice):
            self.counts[f"notice: {about.kind}"] += 1
        elif what in ("mend", "heal", "resume"):
            jobs = (spec.id for spec in self._mesh.specs)
            self.counts["masters: two at once"] += sum(
                len(self._mesh.invariants.masters(job)) > 1 for job in jobs
            )

    def _bundle(self, bundle: m.Bundle) -> None:
        self.counts["bundle: sent again"] += bundle.again

    def _verdict(self, report: c.ChangeReport) -> None:
        self.counts["change: taken" if report.taken else "change: refused"] += 1

    def _held(self, held: m.Held) -> None:
        self.counts["log: refused by a replica"] += held.refused

    def _ledger(self, report: r.LedgerReport | r.PutReply, to: NodeId) -> None:
        """Count a ledger's answer, whose fence is the ballot of the master that the sink serves."""
        if isinstance(report, r.LedgerReport) and report.entries:
            self.counts["sink: reports its windows to a new master"] += 1
        self.counts["sink: refuses a master"] += m.node_of(report.fence) != to

    def _log(self, message: m.Append) -> None:
        for index, entry in enumerate(message.entries, message.first):
            place = (message.job, message.ballot, index)
            if place not in self._logged:
                self._logged.add(place)
                self._entry(message.job, entry)

    def _entry(self, job: JobId, entry: e.AnyEntry) -> None:
        name = _ENTRIES.get(type(entry))
        if name is not None:
            self.counts[name] += 1
        if isinstance(entry, e.Begin):
            self.counts["log: started again after it was lost"] += job in self._begun
            self._begun.add(job)
        elif isinstance(entry, e.ControlEntry):
            self.counts["change: the job's end"] += entry.line.version == END
        elif isinstance(entry, e.Accept):
            for slot, (_, _, flags) in entry.contributions.items():
                if slot[2]:
                    self.counts["change: read again in a lane"] += 1
                elif flags & m.CLOSED:
                    self.counts["worker: a file is closed"] += 1
                if flags & m.GAP:
                    self.counts[
                        "worker: lines are lost in a lane" if slot[2] else "worker: lines are lost"
                    ] += 1

    def _put(self, put: r.Put) -> None:
        key = (self._mesh.world.taking, put.job, put.version, put.start)
        whole = put.agents_reporting == put.agents_expected
        self.counts["window: late lines counted"] += put.lines[3] > 0
        if put.status == "open":
            self.counts["window: open, less than whole"] += not whole
            return
        if put.status == "final":
            self.counts["window: final, whole" if whole else "window: final, less than whole"] += 1
        else:
            self.counts[f"window: {put.status}"] += 1
        self.counts["window: whole after less than whole"] += whole and key in self._partial
        (self._partial.discard if whole else self._partial.add)(key)


def counted(
    scenario: s.Scenario, every: int = EVERY, prepare: Callable[[Run], None] = lambda run: None
) -> tuple[Outcome, Counter[str]]:
    """Run a scenario. Returns its outcome and the counts of its `Census`. prepare: see `simulate`."""
    counts: list[Counter[str]] = []

    def observe(run: Run) -> None:
        census = Census(run)
        counts.append(census.counts)
        run.world.observers.append(census.observe)
        prepare(run)

    outcome = simulate(scenario, every=every, prepare=observe)
    return outcome, counts[0]


def _counts(name: str) -> Any:
    def seen(self: Census, message: m.Message) -> None:
        self.counts[name] += 1

    return seen


_ENTRIES: dict[type[e.Entry], str] = {
    e.Add: "roster: added",
    e.Left: "roster: left",
    e.Gone: "roster: gone, with another log",
    e.Forget: "roster: forgotten",
    e.ControlEntry: "change: logged",
    e.Proven: "log: more than half have reported",
    e.Retire: "window: retired",
    e.Judged: "window: alerts judged",
}
_SEEN: dict[type[m.Message], Any] = {
    c.ChangeReport: Census._verdict,
    m.Append: Census._log,
    m.Bundle: Census._bundle,
    m.Fetch: _counts("log: taken over"),
    m.Handover: _counts("log: handed over to a closer node"),
    m.Held: Census._held,
    m.Hold: _counts("reducer: a child gets Hold"),
    m.Hello: _counts("worker: requests its positions"),
    m.Install: _counts("log: a snapshot for a replica"),
    m.Refuse: _counts("tree: a parent refuses"),
    m.Resend: _counts("bundle: resent apart"),
    m.Split: _counts("bundle: split"),
}


def name_of(fault: s.AnyFault) -> str:
    """A fault's kind, with its variant."""
    match fault:
        case s.Cut():
            ways = "both ways" if fault.outward and fault.inward else "one way"
            return f"cut, {ways}{', of a sink' if min(fault.hosts) < 0 else ''}"
        case s.Step():
            return f"clock {'forward' if fault.by_us > 0 else 'back'}{', its log too' if fault.logs else ''}"
        case s.Crash():
            what = "kill" if fault.process else "crash"
            return f"{what} of {fault.target}{', disks lost' if fault.wipe else ''}"
        case s.Change():
            kind = ", back" * fault.back + ", of an expected version" * fault.expects
            return f"change{kind or f', {fault.mode}'}"
        case s.Tune():
            return "other settings"
        case s.Stop():
            return f"stop{', at once' if fault.at_once else ''}"
        case s.Start():
            return "start after a stop"
        case s.Lose():
            return f"logs deleted, {fault.loss}"
        case s.SinkCrash():
            return f"sink dies, keeps {fault.keeps}"
        case s.Bug():
            return f"bug at {fault.on}"
        case s.Reject():
            return f"lines rejected, {'all' if fault.share == 1 else 'some'}"
        case s.Twin():
            return f"twin, {fault.keeps} kept{', beside' if fault.beside else ''}"
    return type(fault).__name__.lower()


def table(runs: Iterable[Mapping[str, int]]) -> str:
    """For each kind of fault and path: in how many of the runs it occurred, and how often in all runs."""
    seeds, times = Counter[str](), Counter[str]()
    for counts in runs:
        for name, count in counts.items():
            seeds[name] += count > 0
            times[name] += count
    width = max(map(len, times), default=0)
    return "\n".join(f"{name:{width}}  {seeds[name]:6}  {times[name]:8}" for name in sorted(times))
