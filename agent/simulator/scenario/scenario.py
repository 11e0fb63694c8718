"""A scenario of a simulated mesh: hosts, jobs, traffic, and faults at their times, as one value made from a seed.

Faults occur until `trouble_us`; then all of them end, the logs continue for `after_us`, and the mesh has to come to rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from elf.agent.simulator.world.network import Weather
from elf.agent.simulator.world.sources import Loss, Traffic
from elf.srt.messages.parameters import Parameters

MS = 1_000
SECOND = 1_000_000
SINK = -1
"""Among the hosts of a `Cut`: the first sink; the second one is -2, and so on."""

CALM_US = 5 * SECOND
"""Faults begin once the mesh has formed and the jobs run."""
KEEP_US = 600 * SECOND

Target = Literal["host", "master", "circle", "mesh"]
"""What crashes: that host; the job's master; the master and all its replicas ("circle"); all hosts."""
Mode = Literal["split", "restate", "next"]


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A fault that begins at `at_us` and, if it lasts, ends at `until_us`, in world time. Hosts are numbers."""

    at_us: int
    until_us: int = 0


class Storm(Fault, frozen=True, kw_only=True, tag=True):
    """Other network conditions."""

    weather: Weather


class Cut(Fault, frozen=True, kw_only=True, tag=True):
    """No datagram passes between `hosts` and all others; or only in one direction."""

    hosts: tuple[int, ...]
    outward: bool = True
    inward: bool = True


class Slow(Fault, frozen=True, kw_only=True, tag=True):
    """Datagrams from and to the host take longer."""

    host: int
    extra_us: int


class Pause(Fault, frozen=True, kw_only=True, tag=True):
    """The process is stopped, and resumes later."""

    host: int


class FullDisk(Fault, frozen=True, kw_only=True, tag=True):
    """The disk is full: writes wait."""

    host: int


class Step(Fault, frozen=True, kw_only=True, tag=True):
    """The host's clock jumps; with `logs` also the times in its web server's lines."""

    host: int
    by_us: int
    logs: bool = False


class Lose(Fault, frozen=True, kw_only=True, tag=True):
    """Log files of the host are lost, whether read or not."""

    host: int
    loss: Loss


Kept = Literal["all", "lake", "nothing"]
KEPT: Sequence[Kept] = ("nothing", "lake", "all")
"""What a sink keeps, the worst first."""


class SinkCrash(Fault, frozen=True, kw_only=True, tag=True):
    """A sink is away, and comes back with all it held; or without its ledger, but with the lake, which contains the highest
    revision; or empty."""

    sink: int
    keeps: Kept = "all"


class Crash(Fault, frozen=True, kw_only=True, tag=True):
    """Agents end, and restart at `until_us`; with `wipe` their disks are empty then (the web servers' logs stay). process: only
    their processes end, and neighbours see their sockets close; else their hosts are gone."""

    target: Target
    host: int = 0
    job: int = 0
    wipe: bool = False
    process: bool = False


class Join(Fault, frozen=True, kw_only=True, tag=True):
    """The host's agent starts for the first time. Its web server has been logging for `backlog_us`."""

    host: int
    backlog_us: int


class Part(Fault, frozen=True, kw_only=True, tag=True):
    """The host's web server is shut down, and its agent leaves the mesh."""

    host: int


class Change(Fault, frozen=True, kw_only=True, tag=True):
    """An operator submits the job's next version at that host; with `back`, the version before the present one comes back; with
    `expects`, only if the job still has the version that the operator saw. rival: the version, and another one with the same
    number at the next host, go into the directories without a master's verdict, as two starts of one job do."""

    host: int
    job: int
    mode: Mode
    rival: bool = False
    back: bool = False
    expects: bool = False


class Tune(Fault, frozen=True, kw_only=True, tag=True):
    """An operator gives the job other settings at that host: lateness and retention (0: as before), and that sink alone (-1:
    all)."""

    host: int
    job: int
    lateness_us: int = 0
    keep_us: int = 0
    sink: int = -1


class Stop(Fault, frozen=True, kw_only=True, tag=True):
    """An operator stops the job at that host: when its open windows are final; or `at_once`."""

    host: int
    job: int
    at_once: bool = False


class Start(Fault, frozen=True, kw_only=True, tag=True):
    """An operator starts the job anew at that host, with another version, as soon as it has ended; until `until_us` at most."""

    host: int
    job: int


FailPoint = Literal["message", "tick", "cut", "settle", "restore", "entry", "encode"]
"""The call of a job's seat that raises. entry: one log entry raises, the same at every node that applies it. encode: a Bundle or
Append raises while it is encoded, if messages are sent as bytes."""


class Bug(Fault, frozen=True, kw_only=True, tag=True):
    """The job fails at that host, or at all (-1); at that `kind` of message, core or entry, or at any ("")."""

    job: int
    on: FailPoint
    kind: str = ""
    host: int = -1
    once: bool = False


class Twin(Fault, frozen=True, kw_only=True, tag=True):
    """Another process runs with the host's key on another machine, until `until_us`: with an empty state folder, or a clone of
    the host's. It has none of the host's logs; with `logs` it has one of its own. The host's agent is down meanwhile, and
    restarts at `back_us` (0: when all faults end); with `beside` it keeps running: then the twin waits wherever the host can be
    reached."""

    host: int
    keeps: Literal["nothing", "clone"] = "nothing"
    logs: bool = False
    beside: bool = False
    back_us: int = 0


class Restore(Fault, frozen=True, kw_only=True, tag=True):
    """The host's agent ends, and restarts at `until_us` with the state folder as it was at `from_us`."""

    host: int
    from_us: int


class Share(Fault, frozen=True, kw_only=True, tag=True):
    """The host's agent reads the logs of another host, from the beginning, so their lines count twice."""

    host: int
    other: int


class Reject(Fault, frozen=True, kw_only=True, tag=True):
    """The host's web server logs a fraction (`share`) of its lines in a format that its agent cannot parse."""

    host: int
    share: float = 1.0


class Revoke(Fault, frozen=True, kw_only=True, tag=True):
    """The certificate of an operator (0 to 2) is revoked, at that host. Their host's number says which operator signs changes."""

    host: int
    operator: int


class Upgrade(Fault, frozen=True, kw_only=True, tag=True):
    """The host's agent, which was older, restarts as one of this version."""

    host: int


AnyFault = (
    Storm
    | Cut
    | Slow
    | Pause
    | FullDisk
    | Step
    | Crash
    | Join
    | Part
    | Change
    | Tune
    | Stop
    | Start
    | Lose
    | SinkCrash
    | Twin
    | Restore
    | Share
    | Reject
    | Bug
    | Upgrade
    | Revoke
)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """windows: of its versions, in turn, as in `window(time, …)`. line_us: its first line, from the virtual epoch. keep_us: its
    retention; by default longer than any simulation. agents: patterns; only hosts whose names match one take part. until_us: then
    it ends by itself, as a trial does; 0: it does not. sample: above 0, the most groups of a window beside the row `other`.
    alert: above 0, the job has an alert for keys with so many lines in a window, for `alert_for_us`."""

    start_us: int
    windows: tuple[str, ...]
    lateness_us: int
    line_us: int = 0
    keep_us: int = KEEP_US
    agents: tuple[str, ...] = ()
    until_us: int = 0
    sample: int = 0
    alert: int = 0
    alert_for_us: int = 0


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A reader that watches a job from `from_us` on, first at that host; it reconnects, to another one, at `again_us`, and goes
    at `until_us`; 0: never."""

    host: int
    job: int
    from_us: int
    again_us: tuple[int, ...] = ()
    until_us: int = 0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """All that a simulation depends on. hosts: initial ones; others join by a fault. skews: of the hosts' clocks, in turn. older:
    hosts whose agents know no parameters of queries, so that they cannot decode any version but the first. finals_only: sinks
    take no open windows, so that only readers want them. beside: one node serves all sinks. carriers: the hosts that have all
    sinks, whose receivers are elsewhere (rule Moving); (): each sink is at a node of its own."""

    seed: int
    hosts: int
    jobs: tuple[Job, ...]
    faults: tuple[AnyFault, ...] = ()
    skews: tuple[int, ...] = (0,)
    traffic: Traffic = Traffic()
    weather: Weather = Weather()
    parameters: Parameters = Parameters()
    trouble_us: int = 20 * SECOND
    after_us: int = 3 * SECOND
    rest_us: int = 60 * SECOND
    sinks: int = 1
    readers: tuple[Reader, ...] = ()
    older: tuple[int, ...] = ()
    finals_only: bool = False
    beside: bool = False
    carriers: tuple[int, ...] = ()

    @property
    def is_coded(self) -> bool:
        """Whether its messages must be sent as bytes."""
        return any(isinstance(fault, Bug) and fault.on == "encode" for fault in self.faults)

    def encode(self) -> bytes:
        """As JSON, to be kept in a file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


def decode(data: bytes) -> Scenario:
    """The inverse of `Scenario.encode`. Raises msgspec.ValidationError."""
    return msgspec.json.decode(data, type=Scenario)
