"""Readers that watch jobs in a simulation, and the rules for what they receive: a window is final once.

A reader watches one job at a host; when that host's agent is gone, or at times of its own, it connects to another host, and
starts there like a new reader. For each window (job, version, start), over all readers and sinks, and all their connections:

1. one revision has one status, and one content;
2. at most one revision is final.

For one reader, until it reconnects:

3. open revisions come before all others, unless the window was withdrawn in between;
4. revisions rise, among the open ones and among the others; the first final one may be lower than an open one that a master
   without the log had published;
5. a revised window differs from the revision before.
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
"""How often a reader takes the windows that arrived and lets its watch send."""

Key = tuple[JobId, str, Micros]
Content = tuple[int, tuple[Micros, Micros], int, int]


def content_of(put: Put) -> Content:
    """The content of a window, apart from its status and revision."""
    return put.digest, put.covers, put.agents_reporting, put.agents_expected


class Revisions:
    """All revisions of windows that were ever published, to any reader or sink."""

    def __init__(self) -> None:
        self._published: dict[tuple[Key, Revision], tuple[str, Content]] = {}
        self._finals: dict[Key, Revision] = {}
        self._orphaned: set[Key] = set()

    def orphan(self, job: JobId) -> None:
        """All holders of that job's log end at once, which a log on three hosts cannot survive: a master may continue an older
        copy that lacks the newest finals. Rule 2 is not checked for these windows, but each reader still gets final once."""
        self._orphaned |= {key for key in self._finals if key[0] == job}

    def take(self, put: Put, who: str) -> None:
        """Raises Violation."""
        key = (put.job, put.version, put.start)
        if put.status == "open" or key in self._orphaned:
            return
        about = f"{who}: window {put.start} revision {name(put.revision)}"
        known = self._published.setdefault((key, put.revision), (put.status, content_of(put)))
        if known != (put.status, content_of(put)):
            raise Violation(f"{about} is {put.status} {content_of(put)}, and was published as {known}")
        if put.status == "final" and self._finals.setdefault(key, put.revision) != put.revision:
            raise Violation(f"{about} is final, and so was revision {name(self._finals[key])}")


def check_next(before: Put | None, put: Put, who: str) -> None:
    """Check that a revision may follow `before` at the same reader, or be the first one if that is None. Raises Violation."""
    if before is None:
        if put.status == WITHDRAWN:
            raise Violation(f"{who}: window {put.start} is withdrawn, and was never published")
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
    """The revision as text."""
    return f"{revision[0]}.{revision[1].hex()[:4]}.{revision[2]}"


class _Watching(msgspec.Struct):
    """A reader and its connection. life: of its host's agent; number: of the watch in it."""

    name: str
    plan: Reader
    watcher: Watcher | None = None
    host: Actor | None = None
    life: int = 0
    number: int = 0
    last: dict[Key, Put] = {}


class Readers:
    """All readers of a simulation. `revisions`: the revisions that they and the sinks received."""

    def __init__(
        self, world: World, hosts: list[Actor], jobs: list[JobId], plans: tuple[Reader, ...]
    ) -> None:
        self.revisions = Revisions()
        self._world, self._hosts, self._jobs = world, hosts, jobs
        self._watching = [_Watching(f"reader{n}", plan) for n, plan in enumerate(plans)]
        self._numbers = 0
        for each in self._watching:
            world.at(each.plan.from_us, partial(self._connect, each))
            for again_us in each.plan.again_us:
                world.at(again_us, partial(self._hang_up, each))

    def wants_open(self, job: JobId) -> bool:
        """Whether a reader watches that job from now on, for all times."""
        return any(self._jobs[each.plan.job] == job and not each.plan.until_us for each in self._watching)

    def observe(self, now_us: int, what: str, who: Actor | None, about: Any) -> None:
        """Compare a window that a sink took with those that readers received. Raises Violation."""
        if what == "put":
            self.revisions.take(about, "sink")

    def _hang_up(self, each: _Watching) -> None:
        each.watcher = None

    def _connect(self, each: _Watching) -> None:
        """Connect to the next host whose agent runs."""
        self._numbers += 1
        count = len(self._hosts)
        for step in range(count):
            host = self._hosts[(each.plan.host + self._numbers + step) % count]
            if host.node is not None and not host.is_paused and not host.node.is_aside:
                job = self._jobs[each.plan.job]
                each.watcher = Watcher(job, host.id, self._numbers, self._world.parameters)
                each.host, each.life, each.number, each.last = host, host.life, self._numbers, {}
                break
        self._look(each)

    def receive(self, host: Actor, source: bytes, message: Any) -> None:
        """A message for a reader at that host."""
        for each in self._watching:
            if each.watcher is not None and each.host is host and each.life == host.life:
                each.watcher.step(source, message, self._world.clock(host))

    def _look(self, each: _Watching) -> None:
        watcher, host, world = each.watcher, each.host, self._world
        if each.plan.until_us and world.now_us >= each.plan.until_us:
            each.watcher = None
            return
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
        self.revisions.take(put, each.name)
        each.last[key] = put
