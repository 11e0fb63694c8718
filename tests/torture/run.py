"""One run: a mesh starts, scheduled faults hit it, it recovers, and all publications are compared with the oracle."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

from tests.rigs.agents.busy import busy
from tests.torture import changes, faults, page
from tests.torture.agents import RefusedError
from tests.torture.changes import Change
from tests.torture.jobs import CHANGING, JOBS, Job
from tests.torture.log_lines import judge_log_lines
from tests.torture.options import Options
from tests.torture.oracle import Oracle
from tests.torture.readers import receivers
from tests.torture.readers.lakes import Lake
from tests.torture.readers.receivers import Outage, latest
from tests.torture.readers.watchers import Watcher
from tests.torture.recorder import beyond_cap
from tests.torture.schedule import EVERYWHERE, Fault, Schedule
from tests.torture.verdict import WRONG, Excuse, Judge, Verdict, newest
from tests.torture.world import CLOCKED, HUB, World

STEP_S = 0.1
UNWELL_MAX = 3
ASK_AGAIN_S = 2.0
FAULT_S_MAX = 240.0
AHEAD_S = 30.0
"""After a clock was ahead, its promises count for a while."""
REVOKED_S = 30.0
"""After so long no master expects a revoked agent any more."""


class Run:
    """One run, in its folder."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.verdict = Verdict(allowed=options.allowed)
        self._threads: list[threading.Thread] = []
        self._excuses: list[Excuse] = []
        self._settled_s = 0.0
        self._versions: list[Job] = []

    def go(self, say: Callable[[str], None] = print) -> Verdict:
        """Run all of it. Every failure is a finding."""
        self._say = say
        folder = self.options.folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.world = world = World(self.options, folder)
        self.schedule = Schedule(
            self.options,
            world.names,
            world.guests,
            [world.names[number] for number in CLOCKED if number < len(world.names)],
        )
        for agent in world.agents.values():
            agent.has_bug = any(fault.kind == "bug" for fault in self.schedule.faults)
        try:
            self._guarded(self._torture)
        finally:
            world.close()
        self._guarded(self._judge)
        self._write()
        return self.verdict

    def _guarded(self, step: Callable[[], None]) -> None:
        """An exception is a finding, so that all that was found, and what a bad run keeps, is still written."""
        try:
            step()
        except Exception:
            text = traceback.format_exc()
            print(text, file=sys.stderr, flush=True)
            self.verdict.add("run", text)

    def _torture(self) -> None:
        world = self.world
        world.begin()
        self._say(
            f"seed {self.options.seed}: {len(world.names)} agents at work, {len(self.schedule.faults)} faults to come"
        )
        with self._watched(), busy(self.options.load):
            world.welcome()
            self._befall()
            world.dismiss()
            self._say("no more visitors; waiting until all is well")
            self._settle()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        with ExitStack() as stack:
            self._watchers = []
            for number, name in enumerate(self.world.names[:3]):
                for job in (JOBS[0], JOBS[(number % 2) + 1]):
                    watcher = Watcher(
                        job, name, self.world.agents[name].socket, self.options.folder / "watchers"
                    )
                    self._watchers.append(watcher)
                    stack.callback(watcher.close)
            yield

    # Faults.

    def _befall(self) -> None:
        """Perform the schedule: each fault in a thread of its own, so that they overlap."""
        began = time.monotonic()
        due: list[tuple[float, Callable[[], None]]] = [
            *((fault.at_s, self._starter(fault)) for fault in self.schedule.faults),
            *((at_s, self._rotator(host)) for at_s, host in self.schedule.rotations),
            *((each.at_s, self._changer(each)) for each in changes.drawn(self.options, self.world.names)),
            *((each.at_s, self._failer(each)) for each in receivers.drawn(self.options)),
        ]
        due.sort(key=lambda each: each[0])
        while (now := time.monotonic() - began) < self.options.seconds:
            while due and due[0][0] <= now:
                due.pop(0)[1]()
            self.world.revive()
            time.sleep(STEP_S)
        self._finish()

    def _finish(self) -> None:
        """End the active faults now."""
        self.world.is_over.set()
        for thread in self._threads:
            thread.join(FAULT_S_MAX)
            if thread.is_alive():
                raise OSError(f"{thread.name} does not end")
        self.world.is_over.clear()

    def _starter(self, fault: Fault) -> Callable[[], None]:
        return lambda: self._thread(f"{fault}", lambda: self._one(fault))

    def _rotator(self, host: str) -> Callable[[], None]:
        def rotate() -> None:
            if self.world.servers[host].log.exists():
                self.world.rotate(host)
                self.world.recorder.event("rotate", host, self.world.rotations[host].mode.name)

        return lambda: self._thread(f"rotate {host}", rotate)

    def _changer(self, change: Change) -> Callable[[], None]:
        return lambda: self._thread(
            f"{change.kind} {CHANGING.name}", lambda: changes.make(self.world, change)
        )

    def _failer(self, outage: Outage) -> Callable[[], None]:
        def fail() -> None:
            event = self.world.recorder.event("outage", HUB, f"{outage.kind} {outage.seconds:.0f} s")
            self.world.receivers.fail(outage, self.world.pause)
            event["until"] = time.time()

        return lambda: self._thread(f"{outage}", fail)

    def _thread(self, name: str, what: Callable[[], None]) -> None:
        def run() -> None:
            try:
                what()
            except (OSError, RefusedError, subprocess.SubprocessError) as error:
                self.world.recorder.event("trouble", "", f"{name}: {error}")
                self._say(f"trouble: {name}: {error}")

        thread = threading.Thread(target=run, name=name)
        self._threads.append(thread)
        thread.start()

    def _one(self, fault: Fault) -> None:
        event = self.world.recorder.event(fault.kind, fault.host, str(fault))
        if fault.kind in EVERYWHERE:
            faults.befall(self.world, fault)
        else:
            with self.world.agents[fault.host].lock:
                event["at"] = time.time()
                faults.befall(self.world, fault)
        event["until"] = time.time()
        if fault.kind == "clock" and float(fault.variant) > 0:
            ahead_s = float(fault.variant) + AHEAD_S
            self._excuses.append(Excuse(event["at"] - AHEAD_S, event["until"] + ahead_s))
        if fault.kind == "twin" and fault.variant == "instead":
            # The process that holds its key has other logs: what the host's server logs meanwhile, nobody can know of.
            self._excuses.append(Excuse(event["at"] - AHEAD_S, event["until"]))
            low_ms, high_ms = event["at"] * 1_000 - faults.DOUBTFUL_MS, event["until"] * 1_000
            self.world.twins_ms.append((fault.host, low_ms, high_ms))

    # Recovery.

    def _settle(self) -> None:
        """Wait until both lakes hold every window, whole."""
        began = time.monotonic()
        self.oracle = Oracle(self.world.logs())
        judge = Judge(self.oracle, Verdict(), gone=self._gone())
        lakes = [Lake(name, folder) for name, folder in self.world.lakes.items()]
        while unwell := self._unwell(judge, lakes):
            self.world.revive()
            took_s = time.monotonic() - began
            self.world.recorder.event("unwell", "", f"after {took_s:.0f} s: {unwell}")
            if took_s > self.options.settle_s_max:
                text = f"not well {self.options.settle_s_max:.0f} s after the last fault: {unwell}"
                self.verdict.add("unsettled", text)
                self._ask_all()
                break
            time.sleep(ASK_AGAIN_S)
        self._settled_s = time.monotonic() - began
        time.sleep(ASK_AGAIN_S)

    def _ask_all(self) -> None:
        """Write every agent's report of its state beside its log."""
        for agent in self.world.living:
            (agent.folder / "state.txt").write_text(agent.describe([job.name for job in JOBS]))

    def _unwell(self, judge: Judge, lakes: list[Lake]) -> str:
        """What the lakes lack, the first few; "" if nothing."""
        with suppress(RefusedError):
            steps = changes.history(self.world.well())
            (self.options.folder / "history.json").write_text(json.dumps(steps, indent=1) + "\n")
            gone = self.world.left_ms | self.world.doubtful_ms
            self._versions = changes.versions(steps, gone, self.world.twins_ms)
        found = [
            f"{lake.name}, {job.name} {job.version}: {lacks}"
            for lake in lakes
            for look, jobs in ((judge.lacking, JOBS), (judge.lacking_lines, self._versions))
            for job in jobs
            if lake.name in job.sinks and (lacks := look(lake.latest(job), job))
        ]
        found += [
            f"sink {sink}, {job.name}: {lacks}" for sink, job, lacks in self._undelivered(judge) if lacks
        ]
        return " | ".join(found[:UNWELL_MAX])

    def _undelivered(self, judge: Judge) -> Iterator[tuple[str, Job, str]]:
        """(sink, job, what that sink lacks; or "")."""
        for job in JOBS:
            for sink in job.receivers:
                heard = self.world.receivers.publications(sink, job)
                yield sink, job, judge.undelivered(latest(heard), job)

    def _gone(self) -> list[Excuse]:
        """The last time of agents whose keys were taken back."""
        spans = [at_ms / 1_000 for at_ms in self.world.doubtful_ms.values()]
        return [Excuse(from_s, from_s + (faults.DOUBTFUL_MS / 1_000) + REVOKED_S) for from_s in spans]

    # The verdict.

    def _judge(self) -> None:
        if not hasattr(self, "oracle"):
            return
        judge = Judge(self.oracle, self.verdict, self._excuses, self._gone())
        for job in JOBS:
            sessions = [
                heard for watcher in self._watchers if watcher.job == job for heard in watcher.sessions()
            ]
            for heard in sessions:
                judge.session(heard, job)
            judge.last_revisions(newest(sessions), job, "watchers")
            for name in job.sinks:
                lake = Lake(name, self.world.lakes[name])
                for said in lake.read(job):
                    judge.publication(said, job, as_pane=True)
                judge.last_revisions(lake.latest(job), job, f"lake {name}", as_panes=True)
        self._judge_receivers(judge)
        for name in CHANGING.sinks:
            self._judge_changes(judge, Lake(name, self.world.lakes[name]))
        for end in self.world.ends:
            self.verdict.add("ended", f"{end.name} with {end.code}: {end.said.strip().splitlines()[-1:]}")
        bare = self.world.bare
        for name, peak in beyond_cap(self.world.recorder.samples, bare).items():
            self.verdict.add("memory", f"{name}: {peak / 2**20:.0f} MiB at most, bare {bare / 2**20:.0f}")
        judge_log_lines(self.world, self.schedule.faults, self.verdict)

    def _judge_receivers(self, judge: Judge) -> None:
        """Each window came to each sink of its job, at least once, and its last revision is the count."""
        for job in JOBS:
            for sink in job.receivers:
                heard = self.world.receivers.publications(sink, job)
                self.verdict.counts["delivered"] += len(heard)
                judge.delivered(heard, job)
                judge.last_revisions(latest(heard), job, f"sink {sink}")
        for sink, job, lacks in self._undelivered(judge):
            if lacks:
                self.verdict.add("missing", f"sink {sink}, {job.name}: {lacks}")

    def _judge_changes(self, judge: Judge, lake: Lake) -> None:
        """Each version of the job that changes holds the lines of the times at which it was in force, and no others."""
        known = {job.version for job in self._versions}
        lost = [
            replace(CHANGING, version=each, stretches=changes.NO_TIME)
            for each in lake.versions(CHANGING) - known
        ]
        self.verdict.counts["versions"] += len(known)
        for job in (*self._versions, *lost):
            judge.last_revisions(lake.latest(job), job, f"lake {lake.name}", as_panes=True)
            judge.nothing_else(lake.latest(job), job)

    def result(self) -> dict[str, Any]:
        """The result of the run, as it is written."""
        kinds: dict[str, int] = {}
        for event in self.world.recorder.events:
            kinds[event["event"]] = kinds.get(event["event"], 0) + 1
        return {
            "seed": self.options.seed,
            "is_good": not self.verdict.wrong,
            "seconds": self.options.seconds,
            "load": self.options.load,
            "lines": len(self.oracle.most) if hasattr(self, "oracle") else 0,
            "lost_by_copytruncate": self.oracle.lost if hasattr(self, "oracle") else {},
            "settled_s": round(self._settled_s, 1),
            "compared": dict(self.verdict.counts),
            "findings": self.verdict.by_kind(),
            "faults": kinds,
            "options": self.options.as_json(),
        }

    def _write(self) -> None:
        folder = self.options.folder
        (folder / "findings.jsonl").write_text(
            "".join(json.dumps(asdict(each)) + "\n" for each in self.verdict.findings)
        )
        (folder / "page.html").write_text(page.page(self.result(), self.world.recorder, self.verdict))
        if self.verdict.wrong or self.options.keeps:
            self._keep()
        (folder / "result.json").write_text(json.dumps(self.result(), indent=1) + "\n")

    def _keep(self) -> None:
        """Copy the disks to a permanent place: they are lost with the run's namespace."""
        for name in self.world.agents:
            for disk in ("disk", "lake"):
                if (self.options.folder / name / disk).exists():
                    shutil.copytree(
                        self.options.folder / name / disk,
                        self.options.folder / name / f"{disk}-kept",
                        ignore=lambda _, names: [each for each in names if each.endswith(".sock")],
                        dirs_exist_ok=True,
                    )


def finished(options: Options) -> dict[str, Any] | None:
    """The result of an earlier run of that seed with the same options."""
    path = options.folder / "result.json"
    if not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_text())
    same = json.loads(json.dumps(options.as_json()))
    return result if result.get("options") == same else None


def result_text(result: dict[str, Any], verdict: Verdict | None = None) -> str:
    """A run's result as text."""
    compared = result["compared"]
    head = (
        f"seed {result['seed']}: {'good' if result['is_good'] else 'WRONG'}: {result['lines']:,} lines, "
        f"{compared.get('publications', 0):,} publications and {compared.get('windows', 0):,} windows compared, "
        f"{sum(result['faults'].values())} events, well {result['settled_s']} s after the last fault"
    )
    kinds = [f"  {count} {kind}: {WRONG.get(kind, 'noted')}" for kind, count in result["findings"].items()]
    seen: dict[str, int] = {}
    examples = []
    for finding in verdict.findings if verdict else []:
        seen[finding.kind] = seen.get(finding.kind, 0) + 1
        if seen[finding.kind] <= 3:
            examples.append(f"    {finding.kind}: {finding.text[:600]}")
    return "\n".join([head, *kinds, *examples])
