"""Scenarios drawn from seeds: hosts, jobs, traffic and faults.

Each kind of trouble draws from a generator of its own, so that adding a kind does not change the others for a seed."""

from __future__ import annotations

from random import Random

import msgspec

from elf.agent.simulator.scenario.scenario import (
    CALM_US,
    KEEP_US,
    MS,
    SECOND,
    SINK,
    AnyFault,
    Change,
    Crash,
    Cut,
    FullDisk,
    Job,
    Join,
    Kept,
    Lose,
    Mode,
    Part,
    Pause,
    Reader,
    Reject,
    Restore,
    Scenario,
    Share,
    SinkCrash,
    Slow,
    Step,
    Stop,
    Storm,
    Target,
    Twin,
)
from elf.agent.simulator.world.network import Weather
from elf.agent.simulator.world.sources import Loss, Traffic
from elf.srt.messages.ids import NodeId, closeness, job_id, node_id
from elf.srt.messages.parameters import Parameters
from tests.rigs.quick import QUICK
from tests.soak.alerted import alerted
from tests.soak.bugs import Bugs, spoilt
from tests.soak.busy import busy, started_anew, tried
from tests.soak.carried import carried
from tests.soak.faults import in_order, with_faults
from tests.soak.tuned import tuned
from tests.soak.visited import visited

KEPT_BELOW = 1_000_000
"""Seeds that tests name are below this. What was added since they were chosen is drawn for others only."""
SELDOM = 1 / 20
WINDOWS = ("1 second", "2 seconds", "3 seconds", "2 seconds/1 second")


def random_scenario(seed: int) -> Scenario:
    """A mixture of faults on a small mesh, the same for the same seed: all of what the classes below draw occurs in some
    seeds."""
    plain = _Read(_Killed(_More(_Maker(seed).scenario()).scenario()).scenario()).scenario()
    plain = _in_pieces(_Doubles(Bugs(plain).scenario()).scenario())
    plain = _Sides(_Rejected(_Beside(plain).scenario()).scenario()).scenario()
    plain = _stopped(_Operators(plain).scenario())
    if seed < KEPT_BELOW:
        return plain
    return carried(alerted(spoilt(tried(started_anew(busy(visited(tuned(plain))))))))


class _Doubles:
    """Adds keys, state folders and logs used twice, for one seed in four, drawn from a generator of their own."""

    def __init__(self, plain: Scenario) -> None:
        self.plain, self.rng = plain, Random(plain.seed ^ 0x5EED_0003)

    def scenario(self) -> Scenario:
        plain, rng = self.plain, self.rng
        if rng.random() < 0.75:
            return plain
        make = rng.choice((self._twin, self._twin, self._restore, self._share))
        return with_faults(plain, make())

    def _times(self, longest_us: int) -> tuple[int, int]:
        at = self.rng.randint(CALM_US, self.plain.trouble_us - 3 * SECOND)
        return at, min(self.plain.trouble_us - SECOND, at + self.rng.randint(300 * MS, longest_us))

    def _twin(self) -> AnyFault:
        rng, (at, until) = self.rng, self._times(8 * SECOND)
        return Twin(
            at_us=at,
            until_us=until,
            host=rng.randrange(self.plain.hosts),
            keeps=rng.choice(("nothing", "nothing", "clone")),
            logs=rng.random() < 0.5,
            back_us=rng.choice((0, until + rng.randint(0, 2 * SECOND))),
        )

    def _restore(self) -> AnyFault:
        at, until = self._times(4 * SECOND)
        from_us = self.rng.randint(2 * SECOND, at)
        return Restore(at_us=at, until_us=until, host=self.rng.randrange(self.plain.hosts), from_us=from_us)

    def _share(self) -> AnyFault:
        """A host that stays reads another host's logs. If the reader left, the other host would write lines after that."""
        host, other = self.rng.sample(range(self.plain.hosts), 2)
        leaving = {fault.host for fault in self.plain.faults if isinstance(fault, Part)}
        if host in leaving:
            host, other = other, host
        staying = sorted(set(range(self.plain.hosts)) - leaving - {other})
        return Share(at_us=0, host=host if host in staying or not staying else staying[0], other=other)


class _Beside:
    """Adds twins of agents that keep running, for one seed in twenty, drawn from a generator of their own."""

    def __init__(self, plain: Scenario) -> None:
        self.plain, self.rng = plain, Random(plain.seed ^ 0x5EED_0017)

    def scenario(self) -> Scenario:
        plain, rng = self.plain, self.rng
        if rng.random() >= SELDOM:
            return plain
        hosts = rng.sample(range(plain.hosts), rng.choice((1, 1, 2)))
        return with_faults(plain, *map(self._twin, hosts))

    def _twin(self, host: int) -> AnyFault:
        rng, trouble_us = self.rng, self.plain.trouble_us
        at = rng.randint(CALM_US, trouble_us - 3 * SECOND)
        return Twin(
            at_us=at,
            until_us=min(trouble_us - SECOND, at + rng.randint(300 * MS, 12 * SECOND)),
            host=host,
            keeps=rng.choice(("nothing", "clone")),
            logs=rng.random() < 0.5,
            beside=True,
        )


class _Rejected:
    """Adds lines in a format that their agent cannot parse, for one seed in twenty, drawn from a generator of their own."""

    def __init__(self, plain: Scenario) -> None:
        self.plain, self.rng = plain, Random(plain.seed ^ 0x5EED_0019)

    def scenario(self) -> Scenario:
        plain, rng = self.plain, self.rng
        if rng.random() >= SELDOM:
            return plain
        return with_faults(plain, *self._rejects())

    def _rejects(self) -> list[AnyFault]:
        rng = self.rng
        found: list[AnyFault] = []
        for host in rng.sample(range(self.plain.hosts), rng.choice((1, 1, 2))):
            begin = rng.choice((0, rng.randint(SECOND, self.plain.trouble_us - SECOND)))
            until = min(begin + rng.randint(500 * MS, 12 * SECOND), self.plain.trouble_us)
            share = rng.choice((1.0, 1.0, 1.0, 0.5, 0.02))
            found.append(Reject(at_us=begin, until_us=until, host=host, share=share))
        return found


class _Sides:
    """Two masters at once, both with readers, for one seed in twenty, drawn from a generator of its own: some hosts are cut off,
    and later others instead of them; or some are paused, and resume."""

    def __init__(self, plain: Scenario) -> None:
        self.plain, self.rng = plain, Random(plain.seed ^ 0x5EED_0013)

    def scenario(self) -> Scenario:
        plain, rng = self.plain, self.rng
        if rng.random() >= SELDOM:
            return plain
        plain = with_faults(plain, *rng.choice((self._moved, self._moved, self._stopped))())
        readers = plain.readers or tuple(
            Reader(host=host, job=0, from_us=4 * SECOND) for host in rng.sample(range(plain.hosts), 3)
        )
        return msgspec.structs.replace(plain, readers=readers)

    def _moved(self) -> list[AnyFault]:
        rng, hosts = self.rng, range(self.plain.hosts)
        at = rng.randint(CALM_US, self.plain.trouble_us - 7 * SECOND)
        middle = at + rng.randint(2 * SECOND, 8 * SECOND)
        until = middle + rng.randint(2 * SECOND, 10 * SECOND)
        faults: list[AnyFault] = []
        sides = [rng.sample(hosts, rng.randint(1, len(hosts) // 2)) for _ in range(2)]
        if (
            rng.random() < 0.5
        ):  # the second closest host first serves a minority; then all but the former master join it
            first, heir, *others = sorted(hosts, key=self._closeness)
            sides = [[heir, *rng.sample(others, (len(hosts) - 1) // 2 - 1)], [first]]
        for side, begin, end in ((sides[0], at, middle), (sides[1], middle, until)):
            end = min(end, self.plain.trouble_us)
            if begin < end:
                outward = rng.random() < 0.8
                inward = not outward or rng.random() < 0.8
                cut = Cut(at_us=begin, until_us=end, hosts=tuple(side), outward=outward, inward=inward)
                faults.append(cut)
        return faults

    @staticmethod
    def _closeness(host: int) -> tuple[int, NodeId]:
        return closeness(job_id("job0"), node_id(f"web{host}".encode()))

    def _stopped(self) -> list[AnyFault]:
        rng = self.rng
        at = rng.randint(CALM_US, self.plain.trouble_us - 5 * SECOND)
        until = min(self.plain.trouble_us, at + rng.randint(2 * SECOND, 9 * SECOND))
        count = rng.randint(1, self.plain.hosts // 2)
        return [
            Pause(at_us=at, until_us=until, host=host) for host in rng.sample(range(self.plain.hosts), count)
        ]


class _Operators:
    """Adds operators who change a job at the same moment or soon after each other, for one seed in three, drawn from a generator
    of its own. Some expect the version that they saw, some go back to the version before."""

    def __init__(self, plain: Scenario) -> None:
        self.plain, self.rng = plain, Random(plain.seed ^ 0x5EED_0031)

    def scenario(self) -> Scenario:
        plain, rng = self.plain, self.rng
        if rng.random() >= 1 / 3:
            return plain
        at, job = rng.randint(CALM_US, plain.trouble_us - 2 * SECOND), rng.randrange(len(plain.jobs))
        changes: list[AnyFault] = []
        for _ in range(rng.choice((2, 2, 3, 4))):
            changes.append(self._change(min(at, plain.trouble_us), job))
            at += rng.choice((0, 0, 20 * MS, 300 * MS, SECOND, 3 * SECOND))
        return with_faults(plain, *changes)

    def _change(self, at_us: int, job: int) -> AnyFault:
        rng = self.rng
        return Change(
            at_us=at_us,
            host=rng.randrange(self.plain.hosts),
            job=job,
            mode=rng.choice(("split", "restate", "next")),
            back=rng.random() < 0.4,
            expects=rng.random() < 0.5,
        )


def _stopped(plain: Scenario) -> Scenario:
    """For one seed in six, stop a job; mostly with all its windows final."""
    rng = Random(plain.seed ^ 0x5EED_0037)
    if rng.random() >= 1 / 6:
        return plain
    at, host = rng.randint(CALM_US, plain.trouble_us), rng.randrange(plain.hosts)
    job = rng.randrange(len(plain.jobs))
    stop = Stop(at_us=at, host=host, job=job, at_once=rng.random() < 0.2)
    return with_faults(plain, stop)


def _in_pieces(plain: Scenario) -> Scenario:
    """For some seeds, send and write states in pieces of a few rows, so that faults occur between two pieces."""
    rng = Random(plain.seed ^ 0x5EED_0023)
    if rng.random() < 0.6:
        return plain
    piece_bytes = rng.choice((1, 2_000, 10_000))
    return msgspec.structs.replace(
        plain, parameters=msgspec.structs.replace(plain.parameters, piece_bytes=piece_bytes)
    )


class _More:
    """Adds lost logs, clock steps, sinks and short retention, drawn from a generator of its own."""

    def __init__(self, plain: Scenario) -> None:
        self.plain, self.rng = plain, Random(plain.seed ^ 0x5EED_0002)

    def scenario(self) -> Scenario:
        plain, rng = self.plain, self.rng
        if rng.random() < 0.4:
            return plain
        faults = [self._stepped(fault) for fault in plain.faults]
        if rng.random() < 0.45:
            faults += [self._lose() for _ in range(rng.choice((1, 1, 2)))]
        if rng.random() < 0.3:
            faults += [self._step() for _ in range(rng.choice((1, 2)))]
        sinks = rng.choice((1, 1, 2, 3))
        if rng.random() < 0.45:
            faults += [self._sink_crash(sinks) for _ in range(rng.choice((1, 2)))]
        keep_us = rng.choice((KEEP_US, KEEP_US, 2 * SECOND, 5 * SECOND))
        hold_us = rng.choice((plain.parameters.hold_us_max, 500 * MS, 1500 * MS))
        return msgspec.structs.replace(
            plain,
            faults=in_order(faults),
            jobs=tuple(msgspec.structs.replace(job, keep_us=keep_us) for job in plain.jobs),
            parameters=msgspec.structs.replace(plain.parameters, hold_us_max=hold_us),
            sinks=sinks,
        )

    def _at(self) -> int:
        return self.rng.randint(CALM_US, self.plain.trouble_us - 2 * SECOND)

    def _stepped(self, fault: AnyFault) -> AnyFault:
        if isinstance(fault, Step) and self.rng.random() < 0.5:
            return msgspec.structs.replace(fault, logs=True)
        if isinstance(fault, Cut) and self.rng.random() < 0.1:
            return msgspec.structs.replace(fault, hosts=(SINK - 1, *fault.hosts))
        return fault

    def _lose(self) -> AnyFault:
        """Half of the losses occur while the agent that would have read the files is down."""
        rng = self.rng
        loss: Loss = rng.choice(("all", "all", "rotated", "cut"))
        away = [fault for fault in self.plain.faults if isinstance(fault, Pause | Crash | FullDisk)]
        if away and rng.random() < 0.5:
            fault = rng.choice(away)
            at = min(
                self.plain.trouble_us - SECOND, rng.randint(fault.at_us, max(fault.at_us, fault.until_us))
            )
            return Lose(at_us=at, host=fault.host, loss=loss)
        return Lose(at_us=self._at(), host=rng.randrange(self.plain.hosts), loss=loss)

    def _step(self) -> AnyFault:
        by = self.rng.choice((200 * MS, 1 * SECOND, 4 * SECOND))
        by = self.rng.choice((-by, by))
        logs = self.rng.random() < 0.5
        return Step(at_us=self._at(), host=self.rng.randrange(self.plain.hosts), by_us=by, logs=logs)

    def _sink_crash(self, sinks: int) -> AnyFault:
        rng, at = self.rng, self._at()
        until = min(self.plain.trouble_us, at + int(rng.random() ** 2 * 10 * SECOND) + 50 * MS)
        keeps: Kept = rng.choice(("all", "all", "lake", "nothing"))
        return SinkCrash(at_us=at, until_us=until, sink=rng.randrange(sinks), keeps=keeps)


class _Killed:
    """Adds processes that end while their hosts live, drawn from a generator of their own."""

    def __init__(self, plain: Scenario) -> None:
        self.plain, self.rng = plain, Random(plain.seed ^ 0x5EED_0008)

    def scenario(self) -> Scenario:
        plain, rng = self.plain, self.rng
        if rng.random() < 0.5:
            return plain
        return with_faults(plain, *(self._kill() for _ in range(rng.choice((1, 1, 2, 3)))))

    def _kill(self) -> AnyFault:
        """Half of the processes are back before any neighbour suspects them."""
        rng, trouble_us = self.rng, self.plain.trouble_us
        at = rng.randint(CALM_US, trouble_us - 2 * SECOND)
        target: Target = rng.choice(("host", "master", "master", "circle"))
        return Crash(
            at_us=at,
            until_us=min(trouble_us, at + rng.choice((1, 20, 400, 1_000, 3_000, 8_000)) * MS),
            target=target,
            host=rng.randrange(self.plain.hosts),
            job=rng.randrange(len(self.plain.jobs)),
            wipe=rng.random() < 0.4,
            process=True,
        )


class _Read:
    """Adds readers to every third scenario, drawn from a generator of their own."""

    def __init__(self, plain: Scenario) -> None:
        self.plain, self.rng = plain, Random(plain.seed ^ 0x5EED_0005)

    def scenario(self) -> Scenario:
        if self.rng.random() >= 1 / 3:
            return self.plain
        count = self.rng.choice((1, 2, 2, 3))
        return msgspec.structs.replace(self.plain, readers=tuple(self._reader() for _ in range(count)))

    def _reader(self) -> Reader:
        plain, rng = self.plain, self.rng
        again = [rng.randint(CALM_US, plain.trouble_us) for _ in range(rng.choice((0, 1, 3)))]
        return Reader(
            host=rng.randrange(plain.hosts),
            job=rng.randrange(len(plain.jobs)),
            from_us=rng.randint(2 * SECOND, plain.trouble_us // 2),
            again_us=tuple(sorted(again)),
        )


class _Maker:
    """Draws a scenario's parts from one generator, in one order."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, Random(seed)
        self.hosts = self.rng.choice((5, 5, 5, 5, 6, 6, 6, 7, 7, 8, 9, 10, 12, 16, 24))
        self.joined = self.hosts
        self.parted: set[int] = set()
        self.trouble_us = int(self.rng.uniform(13, 25) * SECOND)
        if self.rng.random() < 0.1:
            self.trouble_us += 15 * SECOND

    def scenario(self) -> Scenario:
        rng = self.rng
        jobs = tuple(self._job() for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3))))
        kinds = (
            (self._storm, 5),
            (self._cut, 6),
            (self._slow, 2),
            (self._pause, 4),
            (self._full, 2),
            (self._step, 3),
            (self._crash, 8),
            (self._join, 2),
            (self._part, 2),
            (self._change, 4),
        )
        chosen = rng.choices(
            [kind for kind, _ in kinds], [weight for _, weight in kinds], k=rng.randint(1, 10)
        )
        self.jobs = len(jobs)
        faults = in_order(make() for make in chosen)
        return Scenario(
            seed=self.seed,
            hosts=self.hosts,
            jobs=jobs,
            faults=faults,
            skews=self._skews(),
            traffic=self._traffic(),
            weather=rng.choice((Weather(), Weather(delay_us=200, jitter_us=20_000), self._weather(0.1))),
            parameters=self._parameters(),
            trouble_us=self.trouble_us,
        )

    def _job(self) -> Job:
        rng = self.rng
        windows = tuple(rng.choice(WINDOWS) for _ in range(8))
        return Job(
            start_us=rng.randint(2 * SECOND, 3 * SECOND),
            windows=windows,
            lateness_us=rng.randint(2, 4) * SECOND,
            line_us=rng.choice((0, 0, rng.randint(0, 2 * SECOND))),
        )

    def _traffic(self) -> Traffic:
        rng = self.rng
        return Traffic(
            lines_per_s=rng.choice((2.0, 10.0, 20.0, 60.0)),
            keys=rng.choice((3, 20)),
            late_share=rng.choice((0.0, 0.05, 0.3)),
            late_us_max=rng.choice((1, 4)) * SECOND,
            rotate_us=rng.choice((0, 0, 3, 7)) * SECOND,
        )

    def _skews(self) -> tuple[int, ...]:
        rng = self.rng
        most = rng.choice((0, 50 * MS, 50 * MS, 1 * SECOND, 3 * SECOND))
        return tuple(rng.randint(-most, most) for _ in range(self.hosts + 4))

    def _parameters(self) -> Parameters:
        rng = self.rng
        return msgspec.structs.replace(
            QUICK,
            children_max=rng.choice((2, 3, 16)),
            replicas=rng.choice((1, 2, 2, 3)),
            kept_bytes_max=rng.choice((20_000, 8 << 20)),
            park_bytes_max=rng.choice((30_000, 32 << 20)),
            snapshot_entries=rng.choice((60, 200, 2_000)),
        )

    # Faults.

    def _host(self) -> int:
        return self.rng.randrange(self.hosts)

    def _at(self) -> int:
        return self.rng.randint(CALM_US, self.trouble_us - 2 * SECOND)

    def _until(self, at_us: int, longest_us: int = 12 * SECOND) -> int:
        return min(self.trouble_us, at_us + int(self.rng.random() ** 2 * longest_us) + 50 * MS)

    def _weather(self, loss_max: float) -> Weather:
        rng = self.rng
        return Weather(
            delay_us=rng.choice((200, 1_000, 20_000)),
            jitter_us=rng.choice((500, 5_000, 80_000)),
            loss=rng.random() * loss_max,
            duplicate=rng.choice((0.0, 0.02, 0.2)),
            straggle=rng.choice((0.0, 0.05, 0.3)),
            straggle_us=rng.choice((50 * MS, 800 * MS)),
        )

    def _storm(self) -> AnyFault:
        at = self._at()
        return Storm(at_us=at, until_us=self._until(at), weather=self._weather(0.3))

    def _cut(self) -> AnyFault:
        rng, at = self.rng, self._at()
        count = rng.choice((1, 1, 2, self.hosts // 2))
        hosts = tuple(sorted(rng.sample(range(self.hosts), min(count, self.hosts - 1))))
        if rng.random() < 0.15:
            hosts = (SINK, *hosts)
        outward, inward = rng.choice(((True, True), (True, True), (True, False), (False, True)))
        return Cut(at_us=at, until_us=self._until(at), hosts=hosts, outward=outward, inward=inward)

    def _slow(self) -> AnyFault:
        at = self._at()
        extra = self.rng.choice((5 * MS, 60 * MS, 400 * MS))
        return Slow(at_us=at, until_us=self._until(at), host=self._host(), extra_us=extra)

    def _pause(self) -> AnyFault:
        at = self._at()
        return Pause(at_us=at, until_us=self._until(at, self.rng.choice((1, 10)) * SECOND), host=self._host())

    def _full(self) -> AnyFault:
        at = self._at()
        return FullDisk(at_us=at, until_us=self._until(at), host=self._host())

    def _step(self) -> AnyFault:
        by = self.rng.choice((200 * MS, 1 * SECOND, 4 * SECOND))
        return Step(at_us=self._at(), host=self._host(), by_us=self.rng.choice((-by, by)))

    def _crash(self) -> AnyFault:
        rng, at = self.rng, self._at()
        target: Target = rng.choice(("host", "host", "master", "master", "circle", "mesh"))
        return Crash(
            at_us=at,
            until_us=self._until(at, rng.choice((500 * MS, 10 * SECOND))),
            target=target,
            host=self._host(),
            job=rng.randrange(self.jobs),
            wipe=target != "mesh" and rng.random() < 0.35,
        )

    def _join(self) -> AnyFault:
        rng = self.rng
        host, self.joined = self.joined, self.joined + 1
        return Join(at_us=self._at(), host=host, backlog_us=rng.choice((0, 1, 30)) * SECOND)

    def _part(self) -> AnyFault:
        """A host leaves only once; two hosts always stay."""
        host = self.rng.randrange(2, self.hosts)
        if host in self.parted:
            return self._pause()
        self.parted.add(host)
        return Part(at_us=self._at(), host=host)

    def _change(self) -> AnyFault:
        rng = self.rng
        mode: Mode = rng.choice(("split", "restate", "next"))
        return Change(at_us=self._at(), host=self._host(), job=rng.randrange(self.jobs), mode=mode)
