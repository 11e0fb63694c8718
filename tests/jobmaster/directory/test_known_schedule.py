"""The schedule in the directory, which a log that begins anew continues."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elf.agent.simulator.mesh import version_of
from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.sources import Traffic
from elf.errors import PeerError
from elf.jobmaster.directory.changes import first_entry, rank_of
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.ending import finishing
from elf.jobmaster.directory.job_spec import ALL_TIME, END, JobSpec, is_readable
from elf.jobmaster.directory.known_schedule import LINES_MAX, decode_schedule, schedule_item
from elf.jobmaster.directory.versions import started
from elf.jobmaster.log.schedule import next_number
from elf.srt.messages.ids import node_id
from elf.srt.messages.messages import Ballot, Item, Line, Schedule
from elf.srt.messages.parameters import Parameters
from tests.rigs.quick import QUICK

SECOND = 1_000_000
T0 = 1_700_000_000 * SECOND
LOW: Ballot = (3, node_id(b"low"))
HIGH: Ballot = (4, node_id(b"high"))
VERSIONS = tuple(
    version_of(window, number) for number, window in enumerate(("2 seconds", "3 seconds", "1 second"))
)


def spec_of(versions: Any = VERSIONS, **fields: Any) -> JobSpec:
    given = {
        "number": len(versions),
        "since_us": T0,
        "line_us": T0 + 90 * SECOND,
        "mode": "restate",
        **fields,
    }
    return JobSpec("job0", source="access", versions=versions, **given)


def lines_of(*places: tuple[int, int], ballot: Ballot = LOW) -> Schedule:
    """Control lines from pairs (version, seconds)."""
    first = next_number(ballot, ())
    return tuple(
        Line(first + at, VERSIONS[of].digest, T0 + after * SECOND if after else 0, VERSIONS[of].plan)
        for at, (of, after) in enumerate(places)
    )


def places(schedule: Schedule) -> list[tuple[str, int]]:
    return [(line.version, line.from_us) for line in schedule]


def begun(spec: JobSpec, known: Schedule, rank: Any = None, now: int = T0 + 100 * SECOND) -> Any:
    item = schedule_item(spec.id, LOW, rank or rank_of(spec), known)
    return first_entry(spec, HIGH, now, decode_schedule(item))


# As an item.


def test_an_item_survives_and_of_two_the_higher_ballot_stays() -> None:
    spec, known = spec_of(), lines_of((0, 0), (1, 30))
    item = schedule_item(spec.id, LOW, rank_of(spec), known)
    assert decode_schedule(item).rank == rank_of(spec)
    assert [(line.version, line.from_us) for line in decode_schedule(item).lines] == places(known)
    directory = Directory(Parameters(), is_readable, rng=None)  # type: ignore[arg-type]
    later = schedule_item(spec.id, LOW, rank_of(spec), lines_of((0, 0), (1, 30), (2, 40)))
    higher = schedule_item(spec.id, HIGH, rank_of(spec), lines_of((0, 0), (2, 35), ballot=HIGH))
    assert [directory.put(each, 0) for each in (item, later, item, higher, later)] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert directory.get("schedule", spec.id) == higher


def test_an_item_is_bounded() -> None:
    spec = spec_of()
    many = lines_of(*((at % 3, at) for at in range(LINES_MAX + 9)))
    item = schedule_item(spec.id, LOW, rank_of(spec), many)
    assert places(many)[-LINES_MAX:] == [(line.version, line.from_us) for line in decode_schedule(item).lines]
    assert len(item.body) < 7 << 10


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", [], [1, b"", []], [1, b"", [["v", 5], ["v", 5]]], [1, b"", [["v", 6], ["v", 5]]],
     [1, b"", [["v" * 65, 5]]], [1, b"x" * 17, [["v", 5]]], [1, b"", [["v", at] for at in range(LINES_MAX + 1)]],
     [-1, b"", [["v", 5]]], [1, b"", [["v", 1 << 63]]]],
)  # fmt: skip
def test_an_invalid_item_is_refused(body: Any) -> None:
    made = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
    item = Item("schedule", b"j" * 16, (1, 2, 3, 4), made)
    with pytest.raises(PeerError):
        decode_schedule(item)
    assert not is_readable(item)
    assert not is_readable(
        msgspec.structs.replace(schedule_item(b"j" * 16, LOW, (1, b""), lines_of((0, 0))), stamp=(1,))
    )


# A log that begins anew.


def test_a_log_that_begins_anew_has_the_lines_of_the_earlier_one() -> None:
    spec, known = spec_of(), lines_of((0, 0), (1, 30), (2, 44))
    begin = begun(spec, known)
    assert places(begin.schedule) == places(known)
    assert [line.plan for line in begin.schedule] == [version.plan for version in VERSIONS]
    assert (begin.since_us, begin.spec, begin.ballot) == (T0, rank_of(spec), HIGH)
    assert [line.number for line in begin.schedule] == [next_number(HIGH, ()) + at for at in range(3)]


def test_lines_that_retention_has_passed_are_left_out() -> None:
    spec = spec_of(keep_us=20 * SECOND, lateness_us=5 * SECOND)
    begin = begun(spec, lines_of((0, 0), (1, 30), (2, 44)))  # kept: from 100 - 20 - 5 - 3 on
    assert places(begin.schedule) == [(VERSIONS[2].digest, T0 + 44 * SECOND)]
    assert T0 + 44 * SECOND <= begin.since_us <= T0 + 72 * SECOND


def test_before_a_version_that_the_spec_does_not_know_nothing_is_rebuilt() -> None:
    spec = spec_of(VERSIONS[1:], number=9)
    begin = begun(spec, lines_of((1, 0), (0, 20), (1, 30), (2, 44)))
    assert places(begin.schedule) == places(lines_of((1, 0), (0, 20), (1, 30), (2, 44)))[2:]
    assert begin.since_us == T0 + 30 * SECOND


def test_a_spec_that_is_newer_than_the_schedule_comes_into_force_later() -> None:
    spec = spec_of(number=3)
    begin = begun(spec, lines_of((0, 0), (1, 30)), rank=(2, b"two"))
    assert places(begin.schedule) == places(lines_of((0, 0), (1, 30)))
    assert begin.spec == (2, b"two")  # so that the master proposes the third version


def test_a_schedule_newer_than_the_spec_counts_up_to_the_versions_of_the_spec() -> None:
    spec = spec_of(VERSIONS[:2])
    begin = begun(spec, lines_of((0, 0), (1, 30), (2, 44)), rank=(3, b"three"))
    assert places(begin.schedule) == places(lines_of((0, 0), (1, 30)))
    assert begin.spec == rank_of(spec)


def test_a_schedule_of_other_versions_is_ignored() -> None:
    spec = spec_of(VERSIONS[:1], number=7, mode="split")
    assert begun(spec, lines_of((1, 0), (2, 30))) == first_entry(spec, HIGH, T0 + 100 * SECOND)


def test_only_the_first_log_of_a_job_of_all_time_begins_before_what_it_retains() -> None:
    spec = spec_of(VERSIONS[:1], keep_us=20 * SECOND, lateness_us=5 * SECOND, since_us=ALL_TIME, line_us=0)
    now, retained_us = T0 + 100 * SECOND, T0 + 72 * SECOND
    assert first_entry(spec, (1, b"a" * 24), now).since_us == 0
    for begin in (first_entry(spec, (2, b"a" * 24), now), begun(spec, lines_of((0, 0)))):
        assert retained_us - SECOND <= begin.since_us <= retained_us
    late = msgspec.structs.replace(spec, since_us=ALL_TIME + 1)
    assert first_entry(late, (1, b"a" * 24), now).since_us >= retained_us - SECOND


def test_the_first_log_of_a_job_that_counts_earlier_lines_begins_within_a_window_and_may_end_so() -> None:
    since_us, until_us, now = T0 + 3 * SECOND // 2, T0 + 25 * SECOND // 2, T0 + 1000 * SECOND
    about = {"keep_us": 20 * SECOND, "lateness_us": 5 * SECOND, "mode": "split", "line_us": since_us}
    spec = started(spec_of(VERSIONS[:1], since_us=since_us, **about), now)
    begin = first_entry(finishing(spec, until_us, None), (1, b"a" * 24), now)
    assert begin.since_us == T0
    assert [(line.version, line.from_us) for line in begin.schedule] == [
        (VERSIONS[0].digest, since_us),
        (END, until_us),
    ]
    asked = started(spec_of(VERSIONS[:1], since_us=since_us, **about))
    begin = first_entry(asked, (1, b"a" * 24), now)
    assert begin.since_us >= now - 28 * SECOND
    assert [line.from_us for line in begin.schedule] == [0]


# In a mesh.

WINDOWS = ("2 seconds", "3 seconds", "1 second", "2 seconds/1 second")
CHANGES = (["split"], ["restate"], ["next"], ["split", "restate", "next"])


@pytest.mark.slow
@pytest.mark.parametrize("modes", CHANGES, ids="-".join)
def test_rule_8_a_log_that_is_lost_with_all_replicas_keeps_each_windows_version(modes: list[s.Mode]) -> None:
    """After the last change, master and replicas are lost with their disks: the oracle finds each window under the version that
    it had before."""
    lost_us = (6 + 2 * len(modes)) * SECOND
    changes = [
        s.Change(at_us=(6 + 2 * at) * SECOND + 300_000, host=at, job=0, mode=mode)
        for at, mode in enumerate(modes)
    ]
    scenario = s.Scenario(
        seed=len(modes),
        hosts=7,
        jobs=(s.Job(start_us=2 * SECOND, windows=WINDOWS, lateness_us=SECOND),),
        faults=(*changes, s.Crash(at_us=lost_us, target="circle", job=0, wipe=True)),
        traffic=Traffic(lines_per_s=10.0, rotate_us=3 * SECOND),
        parameters=QUICK,
        trouble_us=lost_us + 8 * SECOND,
    )
    seen: dict[str, Any] = {}

    def note(run: Run) -> None:
        seen.update(before=run.schedule(run.specs[0]), epoch=run._state(run.specs[0]).ballot[0])

    def prepare(run: Run) -> None:
        seen["run"] = run
        run.world.at(lost_us - 1, lambda: note(run))

    outcome = simulate(scenario, prepare=prepare)
    assert outcome.is_exact, outcome.violation
    run = seen["run"]
    assert run._state(run.specs[0]).ballot[0] > seen["epoch"], "the log did not begin anew"
    assert run.schedule(run.specs[0]) == seen["before"]
    assert seen["before"][-1].version == run._newest(run.specs[0]).versions[-1].digest
