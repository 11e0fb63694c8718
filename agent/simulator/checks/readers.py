"""People who watch jobs in a simulation, and what each of them may read: a window is final once.

A reader watches one job from some host; when that host's agent is gone, or at times of its own, it watches from another one, and
begins there like somebody new. For each window (job, version, start), over all readers and sinks, and all their connections:

1. one revision has one status, and one content;
2. at most one revision is called final.

For one reader, until it connects anew:

3. open words come before all others, unless the window was withdrawn in between;
4. words rise in their revisions, among those that are open and among those that are not; the first final word may be lower than
   an open one, which a master without the log had told;
5. what is revised differs from the word before.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from elf.agent.control.follow import Watcher
from elf.agent.simulator.checks.oracle import Violation
from elf.srt.messages.ids import JobId
from elf.srt.messages.messages import Micros, Revision
from elf.srt.messages.results import WITHDRAWN, Put

if TYPE_CHECKING:
    from elf.agent.simulator.scenario.scenario import Reader
    from elf.agent.simulator.world.places import Actor
    from elf.agent.simulator.world.world import World

AWAY_US = 300_000
"""A reader whose agent is gone connects to another one after this."""
LOOK_US = 100_000
"""A reader takes what has come, and lets its watch say that it is there, so often."""

Key = tuple[JobId, str, Micros]
Content = tuple[int, tuple[Micros, Micros], int, int]


def content_of(put: Put) -> Content:
    """What a reader sees of a window beyond its status and revision."""
    return put.digest, put.covers, put.agents_reporting, put.agents_expected


class Words:
    """What was ever said of windows, to anybody."""

    def __init__(self) -> None:
        self._said: dict[tuple[Key, Revision], tuple[str, Content]] = {}
        self._finals: dict[Key, Revision] = {}
        self._orphaned: set[Key] = set()

    def orphan(self, job: JobId) -> None:
        """All who hold that job's log end at one moment: an older copy may go on, which knows nothing of the newest finals, and
        nobody is left who could tell. It is more than a log on three hosts promises; one reader hears final once all the same."""
        self._orphaned |= {key for key in self._finals if key[0] == job}

    def take(self, put: Put, who: str) -> None:
        """Raises Violation."""
        key = (put.job, put.version, put.start)
        if put.status == "open" or key in self._orphaned:
            return
        about = f"{who}: window {put.start} revision {name(put.revision)}"
        said = self._said.setdefault((key, put.revision), (put.status, content_of(put)))
        if said != (put.status, content_of(put)):
            raise Violation(f"{about} is {put.status} {content_of(put)}, and was told as {said}")
        if put.status == "final" and self._finals.setdefault(key, put.revision) != put.revision:
            raise Violation(f"{about} is final, and so was revision {name(self._finals[key])}")


def check_next(before: Put | None, put: Put, who: str) -> None:
    """Whether a word may follow that one at the same reader, or be the first. Raises Violation."""
    if before is None:
        if put.status == WITHDRAWN:
            raise Violation(f"{who}: window {put.start} is withdrawn, and was never told")
        return
    about = (
        f"{who}: window {put.start} is {put.status} at revision {name(put.revision)} after {before.status} at "
        f"{name(before.revision)}"
    )
    if put.status == "open" and before.status in ("final", "revised"):
        raise Violation(about)
    if put.status == "final" and before.status not in ("open", WITHDRAWN):
        raise Violation(about)
    is_first = before.status == "open" and put.status != "open" and put.ballot > before.revision[:2]
    if put.revision <= before.revision and not is_first:
        raise Violation(about)
    if put.status == before.status == "revised" and content_of(put) == content_of(before):
        raise Violation(f"{about}, and is the same")


def name(revision: Revision) -> str:
    """As people read it."""
    return f"{revision[0]}.{revision[1].hex()[:4]}.{revision[2]}"


class _Watching(msgspec.Struct):
    """A reader, and its connection. number: of the watch, in which life of its host's agent."""

    name: str
    plan: Reader
    watcher: Watcher | None = None
    host: Actor | None = None
    life: int = 0
    number: int = 0
    last: dict[Key, Put] = {}


class Readers:
    """All readers of a simulation. `words`: what they and the sinks were told."""

    def __init__(
        self, world: World, hosts: list[Actor], jobs: list[JobId], plans: tuple[Reader, ...]
    ) -> None:
        self.words = Words()
        self._world, self._hosts, self._jobs = world, hosts, jobs
        self._watching = [_Watching(f"reader{n}", plan) for n, plan in enumerate(plans)]
        self._numbers = 0
        for each in self._watching:
            world.at(each.plan.from_us, partial(self._connect, each))
            for again_us in each.plan.again_us:
                world.at(again_us, partial(self._hang_up, each))

    def observe(self, now_us: int, what: str, who: Actor | None, about: Any) -> None:
        """What sinks take is held against what readers were told. Raises Violation."""
        if what == "put":
            self.words.take(about, "sink")

    def _hang_up(self, each: _Watching) -> None:
        each.watcher = None

    def _connect(self, each: _Watching) -> None:
        """To the next host whose agent runs."""
        self._numbers += 1
        count = len(self._hosts)
        for step in range(count):
            host = self._hosts[(each.plan.host + self._numbers + step) % count]
            if host.node is not None and not host.is_paused and not host.node.is_aside:
                job = self._jobs[each.plan.job]
                each.watcher = Watcher(job, host.id, self._numbers, self._world.parameters)
                each.host, each.life, each.number, each.last = host, host.life, self._numbers, {}
                host.node.listener = partial(self._hear, host)
                break
        self._look(each)

    def _hear(self, host: Actor, source: bytes, message: Any) -> None:
        for each in self._watching:
            if each.watcher is not None and each.host is host and each.life == host.life:
                each.watcher.step(source, message, self._world.clock(host))

    def _look(self, each: _Watching) -> None:
        watcher, host, world = each.watcher, each.host, self._world
        if watcher is None or host is None or host.node is None or host.life != each.life:
            each.watcher = None
            world.at(world.now_us + AWAY_US, partial(self._connect, each))
            return
        if not host.is_paused:
            for put in watcher.take():
                self._read(each, put)
            watcher.check()
            now = world.clock(host)
            if watcher.deadline <= now:
                world.carry(host, watcher.tick(now))
        world.at(world.now_us + LOOK_US, partial(self._look, each))

    def _read(self, each: _Watching, put: Put) -> None:
        key = (put.job, put.version, put.start)
        check_next(each.last.get(key), put, each.name)
        self.words.take(put, each.name)
        each.last[key] = put
