"""A working mesh under attack by hostile clients, one kind after another: how long a watcher waits, what agents use."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from tests.torture.agents import environment
from tests.torture.attack import KINDS
from tests.torture.jobs import JOBS
from tests.torture.options import Options
from tests.torture.readers.watchers import Watcher
from tests.torture.recorder import CAP_BYTES
from tests.torture.verdict import Verdict
from tests.torture.world import SPARE, World

PAUSE_S_MAX = 0.4
QUIET = "nothing"
FILES = 4_096
NICE = 10
"""Priority of attackers: they would run on other machines, so they must not take the processor from the agents."""


@dataclass(frozen=True)
class Figures:
    """Figures of one kind of attack: longest and median pause between two results at the watcher, the peak of any agent's memory
    in bytes, which no later kind lowers."""

    kind: str
    pause_s_max: float
    pause_s_median: float
    peak: float
    files_max: float

    def __str__(self) -> str:
        return (
            f"{self.kind:10} longest pause {self.pause_s_max * 1_000:5.0f} ms, median {self.pause_s_median * 1_000:4.0f} ms, "
            f"{self.peak / 2**20:5.1f} MiB at most, {self.files_max:4.0f} descriptors"
        )


class Hostile:
    """`options.seconds` are divided among the kinds of attacks; every agent is attacked. `figures`: the results."""

    def __init__(self, options: Options) -> None:
        self.options, self.verdict = options, Verdict(allowed=options.allowed)
        self.figures: list[Figures] = []
        self._spans: dict[str, tuple[float, float]] = {}

    def go(self, say: Callable[[str], None] = print) -> Verdict:
        """Run all attacks. A pause or memory beyond its bound is a finding."""
        shutil.rmtree(self.options.folder, ignore_errors=True)
        self.options.folder.mkdir(parents=True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
        self.world = world = World(self.options, self.options.folder)
        try:
            world.begin()
            watcher = Watcher(
                JOBS[0], world.names[1], world.agents[world.names[1]].socket, world.folder / "watchers"
            )
            world.welcome()
            span_s = self.options.seconds / (len(KINDS) + 1)
            for kind in (QUIET, *KINDS):
                self._attack(kind, span_s)
            watcher.close()
        finally:
            world.close()
        self._measure(watcher)
        for figures in self.figures:
            say(str(figures))
        self._judge()
        return self.verdict

    def _attack(self, kind: str, seconds: float) -> None:
        """Run one kind of attack against all agents at once."""
        began = time.time()
        with self._attackers(kind, seconds):
            time.sleep(seconds)
        self._spans[kind] = began, time.time()

    @contextmanager
    def _attackers(self, kind: str, seconds: float) -> Iterator[None]:
        attackers = (
            [] if kind == QUIET else [self._attacker(kind, seconds, name) for name in self.world.names]
        )
        try:
            yield
        finally:
            for attacker in attackers:
                attacker.kill()
                attacker.wait()

    def _attacker(self, kind: str, seconds: float, name: str) -> subprocess.Popen[bytes]:
        agent = self.world.agents[name]
        address, _, key = self.world.seeds[name].partition("/")
        command = [
            sys.executable,
            "-m",
            "tests.torture.attack",
            kind,
            str(seconds),
            address,
            key,
            str(agent.socket),
        ]
        with (self.options.folder / "attackers.said").open("ab") as said:
            return subprocess.Popen(
                [*self.world.hosts.enter(SPARE), "nice", f"-n{NICE}", *command],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def _measure(self, watcher: Watcher) -> None:
        heard = [said.at_s for session in watcher.sessions() for said in session if said.at_s is not None]
        for kind, (from_s, until_s) in self._spans.items():
            times = sorted({at for at in heard if from_s <= at <= until_s} | {from_s, until_s})
            pauses = sorted(after - before for before, after in pairwise(times))
            taken = [
                each
                for sample in self.world.recorder.samples
                if from_s <= sample["at"] <= until_s
                for each in sample["agents"].values()
            ]
            peak = max((each.get("peak", 0.0) for each in taken), default=0.0)
            files = max((each.get("files", 0.0) for each in taken), default=0.0)
            self.figures.append(Figures(kind, pauses[-1], pauses[len(pauses) // 2], peak, files))

    def _judge(self) -> None:
        """Compare with the figures without attack: a machine that is busy anyway has long pauses too."""
        quiet = self.figures[0]
        for figures in self.figures[1:]:
            if figures.pause_s_max > max(PAUSE_S_MAX, 1.5 * quiet.pause_s_max):
                self.verdict.add("paused", str(figures))
            if figures.peak > self.world.bare + CAP_BYTES:
                self.verdict.add("memory", str(figures))
