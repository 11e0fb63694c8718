"""Small meshes with one kind of trouble each, in which a canary shows quickly. The same seed gives the same scenario."""

from __future__ import annotations

from random import Random

import msgspec

from elf.agent.simulator.mesh import SHOWN
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.network import Weather
from elf.agent.simulator.world.sources import Traffic
from elf.srt.messages.ids import closeness, job_id, node_id
from tests.rigs import paths
from tests.rigs.quick import QUICK

MS, SECOND = 1_000, 1_000_000
TROUBLE_US = 11 * SECOND


def mesh(seed: int, faults: list[s.AnyFault], **given: object) -> s.Scenario:
    """Six hosts and one job; after eleven seconds all faults end."""
    plain: dict[str, object] = {
        "hosts": 6,
        "jobs": (s.Job(start_us=2 * SECOND, windows=("1 second",) * 8, lateness_us=2 * SECOND),),
        "traffic": Traffic(lines_per_s=20.0, keys=5, rotate_us=Random(seed).choice((0, 3 * SECOND))),
        "parameters": msgspec.structs.replace(QUICK, children_max=2, kept_bytes_max=60_000),
        "trouble_us": TROUBLE_US,
        "after_us": SECOND,
        "rest_us": 25 * SECOND,
    }
    ordered = tuple(sorted(faults, key=lambda fault: fault.at_us))
    return s.Scenario(seed=seed, faults=ordered, **(plain | given))  # type: ignore[arg-type]


def times(rng: Random, count: int, longest_us: int) -> list[tuple[int, int]]:
    """So many (from, until) within the time of faults."""
    begins = [rng.randint(s.CALM_US, TROUBLE_US - SECOND) for _ in range(count)]
    return [(at, min(TROUBLE_US, at + rng.randint(100 * MS, longest_us))) for at in begins]


def rough(seed: int) -> s.Scenario:
    """Loss and disorder, hosts that die, pause, or are cut off: parents change, and bundles are sent again."""
    rng = Random(seed)
    weather = Weather(
        delay_us=1_000, jitter_us=20_000, loss=0.05, duplicate=0.05, straggle=0.1, straggle_us=300 * MS
    )
    faults: list[s.AnyFault] = []
    for at, until in times(rng, 3, 2 * SECOND):
        faults.append(s.Crash(at_us=at, until_us=until, target="host", host=rng.randrange(8)))
    for at, until in times(rng, 2, 3 * SECOND):
        faults.append(s.Pause(at_us=at, until_us=until, host=rng.randrange(8)))
    for at, until in times(rng, 2, 3 * SECOND):
        faults.append(s.Cut(at_us=at, until_us=until, hosts=(rng.randrange(8),), inward=rng.random() < 0.5))
    return mesh(seed, faults, weather=weather, hosts=8)


def carried(seed: int) -> s.Scenario:
    """Sinks whose receivers are elsewhere, at three agents; these die and pause in turn, and the master does."""
    rng = Random(seed)
    carriers, trouble_us = tuple(rng.sample(range(6), 3)), 25 * SECOND

    def spans(count: int, longest_us: int) -> list[tuple[int, int]]:
        begins = [rng.randint(s.CALM_US, trouble_us - 3 * SECOND) for _ in range(count)]
        return [(at, min(trouble_us, at + rng.randint(SECOND, longest_us))) for at in begins]

    faults: list[s.AnyFault] = []
    for at, until in spans(6, 6 * SECOND):
        faults.append(s.Crash(at_us=at, until_us=until, target="host", host=rng.choice(carriers)))
    for at, until in spans(2, 5 * SECOND):
        faults.append(s.Pause(at_us=at, until_us=until, host=rng.choice(carriers)))
    for at, until in spans(1, 4 * SECOND):
        faults.append(s.Crash(at_us=at, until_us=until, target="master"))
    weather = rng.choice((Weather(), Weather(delay_us=1_000, jitter_us=30_000, loss=0.05, duplicate=0.05)))
    about = {"finals_only": True, "sinks": 2, "carriers": carriers, "trouble_us": trouble_us}
    plain = mesh(seed, faults, weather=weather, **about)
    hold_us_max = rng.choice((SECOND, 4 * SECOND))
    return msgspec.structs.replace(
        plain, parameters=msgspec.structs.replace(plain.parameters, hold_us_max=hold_us_max)
    )


def visited(seed: int) -> s.Scenario:
    """Sinks take final windows only; readers come and go throughout, and the last one goes."""
    rng = Random(seed)
    spans = [(at, at + rng.randint(50 * MS, 3 * SECOND)) for at in range(s.CALM_US, TROUBLE_US, 1_700 * MS)]
    readers = tuple(s.Reader(host=rng.randrange(6), job=0, from_us=at, until_us=until) for at, until in spans)
    return mesh(seed, [], finals_only=True, readers=readers, traffic=Traffic(lines_per_s=20.0, keys=5))


def stayed(seed: int) -> s.Scenario:
    """The same, and one reader stays."""
    plain = visited(seed)
    stays = s.Reader(host=2, job=0, from_us=8 * SECOND)
    return msgspec.structs.replace(plain, readers=(*plain.readers, stays))


def mixed(seed: int) -> s.Scenario:
    """The host that serves the job, and another one, are too old for the version that comes."""
    order = sorted(range(6), key=lambda host: closeness(job_id("job0"), node_id(f"web{host}".encode())))
    change = s.Change(at_us=6 * SECOND, host=seed % 6, job=0, mode="split")
    return mesh(seed, [change], older=(order[0], order[2 + seed % 4]))


def revoked(seed: int) -> s.Scenario:
    """Several operators change the job, some of them are revoked, and masters die around the end of the grace period."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    for at, _ in times(rng, rng.choice((2, 3, 4)), SECOND):
        mode: s.Mode = rng.choice(("split", "split", "restate", "next"))
        faults.append(s.Change(at_us=at, host=rng.randrange(6), job=0, mode=mode, back=rng.random() < 0.2))
    for at, _ in times(rng, rng.choice((1, 2)), SECOND):
        faults.append(s.Revoke(at_us=at, host=rng.randrange(6), operator=rng.randrange(3)))
        if rng.random() < 0.6:
            crash_at = at + rng.choice((0, 2 * SECOND)) + rng.randint(-300 * MS, 300 * MS)
            target: s.Target = rng.choice(("master", "circle", "host"))
            faults.append(
                s.Crash(at_us=crash_at, until_us=crash_at + 2 * SECOND, target=target, host=rng.randrange(6))
            )
        if rng.random() < 0.4:
            faults.append(s.Cut(at_us=at, until_us=at + 3 * SECOND, hosts=tuple(rng.sample(range(6), 2))))
    plain = mesh(seed, faults, trouble_us=16 * SECOND, skews=rng.choice(((0,), (0, 300 * MS, -300 * MS))))
    parameters = msgspec.structs.replace(plain.parameters, revoked_grace_us=2 * SECOND)
    return msgspec.structs.replace(plain, parameters=parameters)


def revoked_meanwhile(seed: int) -> s.Scenario:
    """Lines are read again for a change of an operator, who is revoked before that is done."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    for at, _ in times(rng, 2, SECOND):
        faults.append(s.Change(at_us=at, host=2, job=0, mode=rng.choice(("restate", "split"))))
        faults.append(s.Revoke(at_us=at + rng.randint(0, 100 * MS), host=rng.randrange(6), operator=2))
        faults.append(s.Pause(at_us=at - 100 * MS, until_us=at + 2 * SECOND, host=rng.choice((0, 3, 4))))
    plain = mesh(seed, faults, weather=Weather(delay_us=10_000, jitter_us=10_000))
    parameters = msgspec.structs.replace(plain.parameters, revoked_grace_us=300 * MS)
    return msgspec.structs.replace(plain, parameters=parameters)


def in_pieces(seed: int) -> s.Scenario:
    """Takeovers, with states that are sent and written a few rows at a time."""
    plain = takeovers(seed)
    parameters = msgspec.structs.replace(plain.parameters, piece_bytes=500, snapshot_entries=60)
    return msgspec.structs.replace(plain, parameters=parameters)


def takeovers(seed: int) -> s.Scenario:
    """Masters die, with their replicas or alone, and some come back without their disks."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    for at, until in times(rng, 4, 4 * SECOND):
        target: s.Target = rng.choice(("master", "master", "circle", "host"))
        faults.append(
            s.Crash(at_us=at, until_us=until, target=target, host=rng.randrange(6), wipe=rng.random() < 0.4)
        )
    for at, until in times(rng, 2, 3 * SECOND):
        hosts = tuple(rng.sample(range(6), rng.choice((1, 2, 3))))
        faults.append(s.Cut(at_us=at, until_us=until, hosts=hosts, inward=rng.random() < 0.6))
    weather = rng.choice((Weather(), Weather(delay_us=1_000, jitter_us=30_000, loss=0.05)))
    return mesh(seed, faults, weather=weather)


def changes(seed: int) -> s.Scenario:
    """The job changes repeatedly, some hosts learn of it late, masters die meanwhile."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    for at, _ in times(rng, rng.choice((1, 2, 4)), SECOND):
        mode: s.Mode = rng.choice(("split", "split", "restate", "next"))
        faults.append(s.Change(at_us=at, host=rng.randrange(6), job=0, mode=mode))
        if rng.random() < 0.5:
            faults.append(s.Pause(at_us=at - 100 * MS, until_us=at + SECOND, host=rng.randrange(6)))
        if rng.random() < 0.3:
            crash_at = at + rng.randint(0, 300 * MS)
            faults.append(s.Crash(at_us=crash_at, until_us=at + SECOND, target="master"))
    weather = rng.choice((Weather(), Weather(delay_us=1_000, jitter_us=30_000, loss=0.05)))
    return mesh(seed, faults, weather=weather)


def tuned(seed: int) -> s.Scenario:
    """The job's settings and sinks change repeatedly, also with its query, and masters die meanwhile."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    for at, until in times(rng, rng.choice((2, 3, 5)), SECOND):
        about = {"lateness_us": rng.choice((0, SECOND, 4 * SECOND)), "sink": rng.choice((-1, 0, 1))}
        faults.append(s.Tune(at_us=at, host=rng.randrange(6), job=0, **about))
        if rng.random() < 0.4:
            mode: s.Mode = rng.choice(("split", "restate", "next"))
            faults.append(
                s.Change(at_us=at + rng.randint(0, SECOND), host=rng.randrange(6), job=0, mode=mode)
            )
        if rng.random() < 0.4:
            faults.append(s.Crash(at_us=at + rng.randint(0, 300 * MS), until_us=until, target="master"))
    return msgspec.structs.replace(mesh(seed, faults), sinks=2)


def sinks(seed: int) -> s.Scenario:
    """The sink is away for a while, and masters change meanwhile."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    at = rng.randint(s.CALM_US, 7 * SECOND)
    faults.append(s.Cut(at_us=at, until_us=at + 3 * SECOND, hosts=(s.SINK,)))
    faults.append(s.Crash(at_us=at + 2 * SECOND, until_us=TROUBLE_US, target="master"))
    if rng.random() < 0.5:
        faults.append(s.Cut(at_us=at + SECOND, until_us=at + 3 * SECOND, hosts=(rng.randrange(6), s.SINK)))
    return mesh(seed, faults)


def beside(seed: int) -> s.Scenario:
    """Two sinks of one node, of which one is away for good, while the master dies."""
    rng = Random(seed)
    away = s.SinkCrash(at_us=rng.randint(s.CALM_US, 6 * SECOND), until_us=1_000 * SECOND, sink=seed % 2)
    faults: list[s.AnyFault] = [away, s.Crash(at_us=8 * SECOND, until_us=TROUBLE_US, target="master")]
    return msgspec.structs.replace(mesh(seed, faults), sinks=2, beside=True)


def silent(seed: int) -> s.Scenario:
    """A seed host is cut off before the job begins, and stays so for a while."""
    rng = Random(seed)
    begin = 5_500 * MS
    job = s.Job(start_us=begin, windows=("1 second",), lateness_us=2 * SECOND, line_us=begin)
    cut = s.Cut(at_us=begin - 300 * MS, until_us=TROUBLE_US, hosts=(rng.randrange(3, 6),))
    return mesh(seed, [cut], jobs=(job,))


MASTER = 1
"""The host that is closest to the job's id."""


def restarts(seed: int) -> s.Scenario:
    """The master dies; while others are asked for their logs, and one does not answer, all are restarted."""
    rng = Random(seed)
    at = 6 * SECOND
    again = at + rng.randint(1_000 * MS, 3_500 * MS)
    quiet = s.Pause(at_us=at + SECOND, until_us=again - MS, host=rng.choice((0, 2, 3)))
    dead = s.Crash(at_us=at, until_us=again + 2 * SECOND, target="master")
    return mesh(seed, [dead, quiet, s.Crash(at_us=again, until_us=again + 200 * MS, target="mesh")])


def deaf(seed: int) -> s.Scenario:
    """The master receives nothing any more, but its messages reach the sink, which serves another one meanwhile."""
    rng = Random(seed)
    at = rng.randint(s.CALM_US, 6 * SECOND)
    until = at + rng.randint(7 * SECOND, 9 * SECOND)
    return mesh(
        seed, [s.Cut(at_us=at, until_us=until, hosts=(MASTER,), outward=False)], trouble_us=15 * SECOND
    )


def hasty(seed: int) -> s.Scenario:
    """Windows are final as soon as all have passed them, and lines are read again meanwhile."""
    rng = Random(seed)
    job = s.Job(start_us=2 * SECOND, windows=("1 second",) * 8, lateness_us=0)
    faults: list[s.AnyFault] = []
    for at, _ in times(rng, 4, SECOND):
        faults.append(s.Change(at_us=at, host=rng.randrange(6), job=0, mode=rng.choice(("split", "restate"))))
    return mesh(seed, faults, jobs=(job,), weather=Weather(delay_us=20_000, jitter_us=30_000, loss=0.05))


def hurried(seed: int) -> s.Scenario:
    """The job is changed again before all lines have been read for the change before."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    for at, _ in times(rng, 2, SECOND):
        again = at + rng.randint(50 * MS, 500 * MS)
        faults.append(s.Change(at_us=at, host=2, job=0, mode="restate"))
        faults.append(s.Change(at_us=again, host=2, job=0, mode=rng.choice(("split", "next"))))
        faults.append(s.Pause(at_us=at - 100 * MS, until_us=again + SECOND, host=rng.choice((0, 3, 4))))
    return mesh(seed, faults, weather=Weather(delay_us=10_000, jitter_us=10_000))


def shown(seed: int) -> s.Scenario:
    """The job is changed repeatedly, in HAVING alone, and masters die meanwhile."""
    job = s.Job(start_us=2 * SECOND, windows=("2 seconds", f"2 seconds{SHOWN}"), lateness_us=SECOND)
    return msgspec.structs.replace(changes(seed), jobs=(job,))


def returns(seed: int) -> s.Scenario:
    """A version gives way to another and comes back, within its last window or later. The clock of one host is so far ahead that
    no control line is past its lines."""
    rng = Random(seed)
    job = s.Job(start_us=2 * SECOND, windows=("3 seconds", "2 seconds"), lateness_us=SECOND)
    faults: list[s.AnyFault] = []
    at = s.CALM_US
    for number in range(4):
        mode: s.Mode = rng.choice(("split", "split", "restate"))
        faults.append(s.Change(at_us=at, host=rng.randrange(6), job=0, mode=mode, back=number > 0))
        at += rng.choice((300, 800, 1_700)) * MS
    return mesh(seed, faults, jobs=(job,), skews=(0, 0, 0, 0, 0, 6 * SECOND))


def operators(seed: int) -> s.Scenario:
    """Operators change the job at the same moment, each at another host; most expect the version that they saw."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    for at, _ in times(rng, 3, SECOND):
        for host in rng.sample(range(6), 3):
            expects, at_us = rng.random() < 0.7, at + rng.randrange(30 * MS)
            mode: s.Mode = rng.choice(("split", "restate", "next"))
            faults.append(s.Change(at_us=at_us, host=host, job=0, mode=mode, expects=expects))
    return mesh(seed, faults)


def stopping(seed: int) -> s.Scenario:
    """An operator stops the job so that its windows are final, while others change it, agents die, and the sink is away."""
    rng = Random(seed)
    faults: list[s.AnyFault] = [s.Stop(at_us=rng.randint(6_000, 10_000) * MS, host=rng.randrange(6), job=0)]
    for at, _ in times(rng, 2, SECOND):
        faults.append(s.Change(at_us=at, host=rng.randrange(6), job=0, mode=rng.choice(("split", "next"))))
    for at, until in times(rng, 2, 3 * SECOND):
        faults.append(s.Crash(at_us=at, until_us=until, target="host", host=rng.randrange(6)))
    at, until = times(rng, 1, 3 * SECOND)[0]
    faults.append(s.SinkCrash(at_us=at, until_us=until, sink=0))
    if rng.random() < 0.3:
        faults.append(
            s.Stop(at_us=rng.randint(8_000, 11_000) * MS, host=rng.randrange(6), job=0, at_once=True)
        )
    return mesh(seed, faults)


def operators_apart(seed: int) -> s.Scenario:
    """Operators on both sides of a partition change the job."""
    rng = Random(seed)
    at = 6 * SECOND + rng.randrange(SECOND)
    cut = s.Cut(at_us=at, until_us=at + 7 * SECOND, hosts=(MASTER, rng.choice((3, 5))))
    changes = [
        s.Change(at_us=at + rng.randint(3_500, 6_500) * MS, host=host, job=0, mode="split", expects=True)
        for host in (MASTER, 0, 2)
    ]
    return mesh(seed, [cut, *changes], trouble_us=at + 8 * SECOND)


def rivals(seed: int) -> s.Scenario:
    """Two operators change the job at the same time."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    for at, _ in times(rng, 2, SECOND):
        faults.append(s.Change(at_us=at, host=rng.randrange(6), job=0, mode="split", rival=True))
    return mesh(seed, faults)


def bare(seed: int) -> s.Scenario:
    """The master is back at once without its disk, repeatedly, while others still have the log."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    for begin in (5, 7, 9):
        at = begin * SECOND + rng.randint(0, SECOND)
        faults.append(s.Crash(at_us=at, until_us=at + rng.randint(20, 600) * MS, target="master", wipe=True))
    away = s.Cut(at_us=5 * SECOND, until_us=TROUBLE_US, hosts=(rng.choice((0, 2)),))
    return mesh(seed, [*faults, s.Part(at_us=s.CALM_US, host=rng.choice((3, 4, 5))), away])


def rebuilt(seed: int) -> s.Scenario:
    """The log is lost with all its holders, and an agent is away when a new one begins."""
    rng = Random(seed)
    at = rng.randint(6 * SECOND, 7 * SECOND)
    lost = s.Crash(at_us=at, until_us=at + rng.randint(200 * MS, 2 * SECOND), target="circle", wipe=True)
    away = s.Cut(at_us=at - 200 * MS, until_us=at + 9 * SECOND, hosts=(rng.choice((0, 2)),))
    return mesh(seed, [lost, away], trouble_us=at + 10 * SECOND)


def stopped(seed: int) -> s.Scenario:
    """Parents pause until their children have others, and then resume with the messages that had arrived."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    for begin in (5, 8, 11):
        for host in rng.sample(range(10), 4):
            at = begin * SECOND + rng.randint(0, 400 * MS)
            faults.append(s.Pause(at_us=at, until_us=at + rng.randint(1_200, 2_400) * MS, host=host))
    parameters = msgspec.structs.replace(QUICK, children_max=2, combine_us_max=190 * MS)
    return mesh(seed, faults, parameters=parameters, hosts=10, trouble_us=14 * SECOND)


def twins(seed: int) -> s.Scenario:
    """A process with a host's key, and without its logs, runs while the host is away; one of two jobs was paused before that."""
    rng = Random(seed)
    at = rng.randint(6 * SECOND, 7 * SECOND)
    until = at + rng.randint(3 * SECOND, 5 * SECOND)
    back = until + rng.randint(0, 1 * SECOND)
    twin = s.Twin(
        at_us=at,
        until_us=until,
        host=rng.choice((0, 2, 3)),
        logs=rng.random() < 0.5,
        keeps=rng.choice(("nothing", "clone")),
        back_us=back,
    )
    still = s.Pause(at_us=at - rng.randint(200, 900) * MS, until_us=at + 500 * MS, host=MASTER)
    joins = s.Join(at_us=rng.randint(at, back), host=6, backlog_us=0)
    job = s.Job(start_us=2 * SECOND, windows=("1 second",), lateness_us=2 * SECOND)
    return mesh(seed, [still, twin, joins], jobs=(job, job), trouble_us=14 * SECOND)


def one_behind(seed: int) -> s.Scenario:
    """As twins: what the log of one of two jobs lacks of the host's lines the other one has, and the twin has no file."""
    rng = Random(seed)
    at, host = 6 * SECOND + rng.randint(0, 500 * MS), rng.choice((0, 2, 3))
    until = at + 6 * SECOND
    behind = s.Bug(at_us=at - 1500 * MS, until_us=at, job=seed % 2, on="cut", host=host)
    twin = s.Twin(at_us=at, until_us=until, host=host, back_us=until + 200 * MS)
    job = s.Job(start_us=2 * SECOND, windows=("1 second",), lateness_us=2 * SECOND)
    traffic = Traffic(lines_per_s=20.0, keys=5)
    return mesh(seed, [behind, twin], jobs=(job, job), traffic=traffic, trouble_us=16 * SECOND)


def brisk(seed: int) -> s.Scenario:
    """As rough, and all must be exact soon after the faults end."""
    return msgspec.structs.replace(rough(seed), rest_us=6 * SECOND)


NEXT = 4
"""The closest host after the master."""


def deposed(seed: int) -> s.Scenario:
    """While the master is cut off, the next one asks all others for their promise; one does not answer, and it dies before it
    serves. So the directory does not know its ballot, and all has to be exact soon after."""
    rng = Random(seed)
    at = 6 * SECOND
    asked = at + rng.randint(2_000 * MS, 3_500 * MS)
    faults: list[s.AnyFault] = [
        s.Cut(at_us=at, until_us=asked, hosts=(MASTER,)),
        s.Pause(at_us=at + 500 * MS, until_us=asked + 300 * MS, host=rng.choice((0, 2, 3))),
        s.Crash(at_us=asked, until_us=TROUBLE_US + 500 * MS, target="host", host=NEXT),
    ]
    return mesh(seed, faults, rest_us=6 * SECOND)


def divided(seed: int) -> s.Scenario:
    """A minority is cut off, with the sink and a log that has the progress of all but one agent, which was paused just before."""
    rng = Random(seed)
    job = s.Job(start_us=2 * SECOND, windows=("1 second",), lateness_us=0)
    at = rng.randint(6 * SECOND, 7 * SECOND)
    still = rng.choice((0, 2))
    faults: list[s.AnyFault] = [
        s.Pause(at_us=at - rng.randint(800, 1_300) * MS, until_us=at + 8 * SECOND, host=still),
        s.Cut(at_us=at, until_us=at + 8 * SECOND, hosts=(s.SINK, NEXT, rng.choice((3, 5)))),
    ]
    parameters = msgspec.structs.replace(QUICK, replicas=3, hold_us_max=1_500 * MS)
    return mesh(seed, faults, jobs=(job,), parameters=parameters, trouble_us=at + 8 * SECOND)


def unread(seed: int) -> s.Scenario:
    """One agent cannot parse its lines for a while."""
    at = 6 * SECOND + Random(seed).randint(0, SECOND)
    return mesh(seed, [s.Reject(at_us=at, until_us=at + 2_500 * MS, host=3)])


def kept(name: str, seed: int) -> s.Scenario:
    """A scenario that is kept because it once failed, with new random draws."""
    scenario = s.decode((paths.GOLDEN / "simulator" / f"{name}.json").read_bytes())
    return msgspec.structs.replace(scenario, seed=seed)


def late_comers(seed: int) -> s.Scenario:
    """Two logs of which one has retired what the other retains, where agents that may still come decide whether lines are late:
    so rare that the seeds in which it occurred are kept."""
    return kept("fourth-56", seed)


def read_anew(seed: int) -> s.Scenario:
    """A new log has the lines of an agent without its promises, and bundles that it cut for another log arrive later."""
    return kept("unparsed-lines-before-a-kept-promise", seed)


def bereft(seed: int) -> s.Scenario:
    """Of three agents one has lost lines, and one never comes again."""
    return kept("final-where-one-lost-lines-and-one-never-comes", seed)


def unknown_sender(seed: int) -> s.Scenario:
    """An agent that joins receives a job, loses its only neighbour, and begins the job's log anew."""
    return kept("sixth-311", seed)


def rebuilt_with_less(seed: int) -> s.Scenario:
    """As rebuilt, where an agent has lost its log files since the windows were told: it cannot give those lines again."""
    rng = Random(seed)
    at = rng.randint(7 * SECOND, 8 * SECOND)
    lost = s.Crash(at_us=at, until_us=at + SECOND, target="circle", wipe=True)
    gone = s.Lose(at_us=at - rng.randint(0, SECOND), host=rng.randrange(6), loss="all")
    return mesh(seed, [gone, lost], trouble_us=at + 2 * SECOND)


def watched(seed: int) -> s.Scenario:
    """As takeovers, with readers that reconnect now and then."""
    rng = Random(seed)
    readers = [
        s.Reader(
            host=rng.randrange(6),
            job=0,
            from_us=3 * SECOND,
            again_us=tuple(sorted(rng.randint(s.CALM_US, TROUBLE_US) for _ in range(4))),
        )
        for _ in range(2)
    ]
    return msgspec.structs.replace(takeovers(seed), readers=tuple(readers))


def moved(seed: int) -> s.Scenario:
    """Two hosts are cut off, and one of them serves; then the former master and its replicas are, and the others report to the
    later master what both may publish as final. Readers watch on both sides."""
    rng = Random(seed)
    at = 6 * SECOND + rng.randrange(SECOND)
    middle = at + rng.randint(4, 8) * SECOND
    until = middle + 8 * SECOND
    first, heir, *others = sorted(
        range(8), key=lambda host: closeness(job_id("job0"), node_id(f"web{host}".encode()))
    )
    faults: list[s.AnyFault] = [
        s.Cut(at_us=at, until_us=middle, hosts=(heir, others[0])),
        s.Cut(at_us=middle, until_us=until, hosts=(first, others[1], others[2])),
    ]
    readers = tuple(s.Reader(host=host, job=0, from_us=4 * SECOND) for host in (first, heir, others[3]))
    return mesh(seed, faults, hosts=8, trouble_us=until + SECOND, readers=readers)


def bugs(seed: int) -> s.Scenario:
    """One of two jobs fails, without any other fault."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    for at, until in times(rng, 3, 3 * SECOND):
        doors: tuple[tuple[s.FailPoint, str], ...] = (
            ("tick", "Master"), ("message", "Held"), ("message", "Bundle"), ("cut", ""),
        )  # fmt: skip
        on, kind = rng.choice(doors)
        host, once = rng.choice((-1, rng.randrange(6))), rng.random() < 0.5
        faults.append(s.Bug(at_us=at, until_us=until, job=0, on=on, kind=kind, host=host, once=once))
    job = s.Job(start_us=2 * SECOND, windows=("1 second",) * 8, lateness_us=2 * SECOND)
    return mesh(seed, faults, jobs=(job, job))


def bugs_of_slow_disks(seed: int) -> s.Scenario:
    """Disks are full when a job fails, so that what it wrote is durable later."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    for at, until in times(rng, 6, 3 * SECOND):
        host = rng.randrange(6)
        faults.append(s.FullDisk(at_us=at, until_us=until, host=host))
        kind = rng.choice(("Append", "Held", "StateRequest", "Bundle"))
        bug = s.Bug(at_us=at + 200 * MS, until_us=until, job=0, on="message", kind=kind, host=host, once=True)
        faults.append(bug)
        if rng.random() < 0.5:
            faults.append(s.Crash(at_us=at + 300 * MS, until_us=until, target="master"))
    return mesh(seed, faults)


def tried(seed: int) -> s.Scenario:
    """A job of some hosts, and one that ends by itself."""
    job = s.Job(start_us=2 * SECOND, windows=("1 second",), lateness_us=2 * SECOND, agents=("web[0-2]",))
    return mesh(seed, [], jobs=(job, msgspec.structs.replace(job, until_us=8 * SECOND)))


def limited(seed: int) -> s.Scenario:
    """A job with a limit on groups: some agents pass it, others do not; masters die and versions change meanwhile."""
    rng = Random(seed)
    faults: list[s.AnyFault] = []
    for at, until in times(rng, 3, 3 * SECOND):
        target: s.Target = rng.choice(("master", "host"))
        faults.append(s.Crash(at_us=at, until_us=until, target=target, host=rng.randrange(6)))
    for at, _ in times(rng, 2, SECOND):
        mode: s.Mode = rng.choice(("split", "restate", "next"))
        faults.append(s.Change(at_us=at, host=rng.randrange(6), job=0, mode=mode))
    windows = ("1 second", "2 seconds/1 second") * 4
    job = s.Job(start_us=2 * SECOND, windows=windows, lateness_us=2 * SECOND, sample=5)
    traffic = Traffic(lines_per_s=30.0, keys=40)
    return mesh(seed, faults, jobs=(job,), traffic=traffic)
