"""The versions of a job: what another change makes of a spec, and what its history says."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from elf.agent.formats.presets import COLUMN_TYPES
from elf.errors import PeerError, UsageError
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.directory.changes import next_spec_number
from elf.jobmaster.directory.job_spec import (
    CHANGES_MAX,
    VERSIONS_MAX,
    Change,
    JobSpec,
    Lost,
    Version,
    decode_job,
    decode_lost,
    lost_item,
)
from elf.jobmaster.directory.known_schedule import LINES_MAX, KnownLine, KnownSchedule
from elf.jobmaster.directory.settings import Settings, name_of
from elf.jobmaster.directory.shared_plans import WHOLE_BYTES_MAX, shared, whole
from elf.jobmaster.directory.versions import (
    changed,
    has_change,
    history,
    line_of,
    line_of_change,
    lost_changes,
    meaning_of,
    parameter_texts,
    started,
    version_of,
    with_shared_plans,
)
from elf.jobmaster.log.schedule import plan_of
from elf.jobmaster.plan import codec

SECOND = 1_000_000
T0 = 1_700_000_000 * SECOND
HOUR = 3600 * SECOND


def text_of(status: int) -> str:
    return f"SELECT window, count(*) AS n FROM access WHERE status > {status} GROUP BY window(time, '10 seconds')"


def version(status: int) -> Version:
    return version_of(compile_query(text_of(status), {"access": COLUMN_TYPES}), text_of(status))


A, B, C = version(1), version(2), version(3)


def spec(first: Version = A) -> JobSpec:
    return started(JobSpec("hits", 7, "access", (first,), since_us=T0, line_us=T0))


def known(number: int, *lines: tuple[Version, int]) -> KnownSchedule:
    return KnownSchedule(number, b"", tuple(KnownLine(each.digest, at) for each, at in lines))


def states(job: JobSpec, schedule: KnownSchedule | None) -> list[tuple[str, int | None, str]]:
    names = {A.digest: "A", B.digest: "B", C.digest: "C"}
    return [(names[step.version], step.from_us, step.state) for step in history(job, schedule)]


# Versions.


@pytest.mark.parametrize(
    "text",
    [
        text_of(1).lower(),
        f"-- the same\n{text_of(1)}",
        text_of(1).replace("10 seconds", "10 second").replace(" FROM", "\n   FROM"),
        text_of(1).replace("count(*)", "COUNT(1)"),
    ],
)
def test_texts_of_one_meaning_are_one_version(text: str) -> None:
    plan = compile_query(text, {"access": COLUMN_TYPES})
    assert version_of(plan, text) == msgspec.structs.replace(A, text=text)


def test_an_older_agents_version_has_the_same_meaning() -> None:
    plan = compile_query(text_of(1), {"access": COLUMN_TYPES})
    older = Version(codec.digest(plan), codec.encode(plan), text_of(1))
    assert older.digest != A.digest
    assert meaning_of(older) == meaning_of(A) == A.digest != meaning_of(B)


def test_a_changed_spec_is_the_next_one_and_can_be_read() -> None:
    job = changed(spec(), B, "restate", T0 + HOUR, None)
    assert (job.number, job.versions, job.mode, job.line_us) == (8, (A, B), "restate", T0 + HOUR)
    assert job.changes == (
        Change(7, A.digest, "start", T0, T0),
        Change(8, B.digest, "restate", T0 + HOUR, former=A.digest),
    )
    assert decode_job(job.item()) == job


def test_a_version_that_comes_back_moves_to_the_end() -> None:
    job = changed(spec(), B, "split", T0 + 1, None)
    job = changed(job, A, "split", T0 + 2, known(8, (A, 0), (B, T0 + 1)))
    assert job.versions == (B, A)
    assert decode_job(job.item()) == job


def test_only_versions_whose_windows_are_past_are_left_out() -> None:
    job, lines = spec(version(0)), [(version(0), 0)]
    for number in range(1, VERSIONS_MAX + 24):
        at = T0 + number * HOUR
        job = changed(job, version(number), "split", at, known(job.number, *lines[-LINES_MAX:]))
        lines.append((version(number), at))
    assert len(job.versions) == VERSIONS_MAX
    assert [each.digest for each in job.versions] == [each.digest for each, _ in lines[-VERSIONS_MAX:]]


def test_too_many_changes_within_retention_are_refused() -> None:
    job, lines = spec(version(0)), [(version(0), 0)]
    for number in range(1, VERSIONS_MAX):
        job = changed(job, version(number), "split", T0 + number, known(job.number, *lines))
        lines.append((version(number), T0 + number))
    with pytest.raises(UsageError, match=f"windows of {VERSIONS_MAX} versions can still take corrections"):
        changed(job, version(99), "split", T0 + 99, known(job.number, *lines))
    back = changed(job, version(3), "split", T0 + 99, known(job.number, *lines))
    assert len(back.versions) == VERSIONS_MAX, "a version that comes back needs no room"
    later = changed(job, version(99), "split", T0 + 3 * HOUR, known(job.number, *lines))
    assert later.versions == (*job.versions[1:], version(99))


def test_the_history_is_bounded() -> None:
    job = spec()
    for number in range(2 * CHANGES_MAX):
        job = changed(job, (B, A)[number % 2], "split", T0 + number + 1, None)
    assert len(job.changes) == CHANGES_MAX
    assert len(history(job, None)) == CHANGES_MAX


# Versions that share a plan.

LEAST = "SELECT window, count(*) AS n FROM access WHERE status > :least GROUP BY window(time, '10 seconds') LIMIT :rows"


def with_least(least: int, text: str = LEAST) -> Version:
    values = {"least": str(least), "rows": "5"}
    return version_of(compile_query(text, {"access": COLUMN_TYPES}, values), text)


def test_a_spec_has_a_plan_once_however_many_values_it_had() -> None:
    made = [with_least(number) for number in range(VERSIONS_MAX)]
    job, lines = spec(made[0]), [(made[0], 0)]
    for number, each in enumerate(made[1:], 1):
        job = changed(job, each, "split", T0 + number, known(job.number, *lines))
        lines.append((each, T0 + number))
    assert job.whole == tuple(made)
    assert job.versions[-1] == made[-1], "the last version is whole"
    assert {each.text for each in job.versions[:-1]} == {""}
    assert max(len(each.plan) for each in job.versions[:-1]) < 100 < len(made[0].plan)
    assert decode_job(job.item()) == job
    assert [parameter_texts(each)["least"] for each in decode_job(job.item()).whole] == [
        str(n) for n in range(VERSIONS_MAX)
    ]
    assert [step.values["least"] for step in history(job, None)] == [str(n) for n in range(VERSIONS_MAX)]


def test_only_equal_plans_are_shared_and_a_text_of_its_own_stays() -> None:
    made = [
        with_least(0),
        A,
        with_least(1, LEAST.lower()),
        with_least(2, LEAST.replace(" LIMIT :rows", " LIMIT :rows -- few")),
    ]
    stored = shared([astuple(each) for each in made])
    assert [data[:5] for _, data, _ in stored] == [b"ELFV\x01", b"ELFP\x01", b"ELFV\x01", b"ELFP\x01"]
    assert [text for _, _, text in stored] == [each.text for each in made]
    assert whole(tuple(stored)) == tuple(astuple(each) for each in made)
    assert shared(stored[3:] + stored[1:2]) == [*stored[3:], stored[1]]


@pytest.mark.parametrize(
    "held",
    [
        [],
        ["nobody", [["least", 5], ["rows", 5]]],
        ["least", 5],
        ["{base}", [["least", 5]]],
        ["{base}", [["least", None], ["rows", 5]]],
        ["{base}", [[str(at), 1] for at in range(65)]],
    ],
)
def test_values_without_a_plan_that_takes_them_are_refused(held: list[object]) -> None:
    base = with_least(1)
    data = msgspec.msgpack.encode([base.digest if part == "{base}" else part for part in held])
    job = msgspec.structs.replace(spec(base), versions=(Version("v", b"ELFV\x01" + data, ""), base))
    with pytest.raises(PeerError, match="has values for no plan"):
        decode_job(job.item())


POOL = [
    A,
    B,
    *map(with_least, range(4)),
    with_least(7, LEAST.lower()),
    with_least(8, LEAST + " -- few"),
    version(500),
]


@settings(deadline=None)
@given(versions=st.lists(st.sampled_from(POOL), min_size=1, unique_by=lambda each: each.digest))
def test_shared_plans_are_whole_again(versions: list[Version]) -> None:
    stored = with_shared_plans(versions)
    assert stored[-1] == versions[-1]
    assert msgspec.structs.replace(spec(), versions=stored).whole == tuple(versions)
    assert sum(len(each.plan) for each in stored) <= sum(len(each.plan) for each in versions)


def test_the_plans_of_a_job_are_bounded() -> None:
    text = f"SELECT count(*) FROM access WHERE status = :s OR bytes IN ({', '.join(map(str, range(2500)))})"
    made = [version_of(compile_query(text, {"access": COLUMN_TYPES}, {"s": s}), "-") for s in ("1", "2")]
    one, last = with_shared_plans(made)
    most = WHOLE_BYTES_MAX // len(last.plan)
    assert most < VERSIONS_MAX
    for count in (most, most + 1):
        many = [msgspec.structs.replace(one, digest=f"v{at}") for at in range(1, count)]
        job = msgspec.structs.replace(spec(), versions=(*many, last))
        if count == most:
            assert len(decode_job(job.item()).whole) == most
    with pytest.raises(PeerError, match="the plans of a job have more than 4,194,304 bytes"):
        decode_job(job.item())


def test_wrong_values_are_refused_like_a_wrong_plan() -> None:
    base = with_least(1)
    data = msgspec.msgpack.encode([base.digest, [["least", "x"], ["rows", 5]]])
    job = msgspec.structs.replace(spec(base), versions=(Version("v", b"ELFV\x01" + data, ""), base))
    with pytest.raises(PeerError, match="a plan was refused: a literal is not a valid bigint"):
        plan_of(decode_job(job.item()).whole[0].plan)


# History.


def test_a_job_that_was_never_changed() -> None:
    assert states(spec(), None) == [("A", T0, "in force")]
    (step,) = history(spec(), None)
    assert (step.mode, step.asked_us, step.sql) == ("start", T0, text_of(1))


def test_a_change_waits_until_its_line_is_announced() -> None:
    job = changed(spec(), B, "next", T0 + 5, None)
    assert states(job, None) == [("A", T0, "in force"), ("B", None, "waits")]
    assert line_of(job, None) is None
    schedule = known(8, (A, 0), (B, T0 + 9))
    assert states(job, schedule) == [("A", T0, "replaced"), ("B", T0 + 9, "in force")]
    assert line_of(job, schedule) == T0 + 9


def test_an_older_schedule_is_no_answer() -> None:
    job = changed(spec(), B, "split", T0 + 5, None)
    again = changed(changed(job, A, "split", T0 + 6, None), B, "split", T0 + 7, None)
    assert line_of(again, known(8, (A, 0), (B, T0 + 5))) is None
    assert line_of(again, known(10, (A, 0), (B, T0 + 5), (A, T0 + 6), (B, T0 + 7))) == T0 + 7


def test_control_lines_of_earlier_changes_stay_known() -> None:
    job = changed(spec(), B, "split", T0 + 5, None)
    job = changed(job, A, "split", T0 + HOUR, known(8, (A, 0), (B, T0 + 5)))
    assert states(job, known(9, (B, T0 + 5), (A, T0 + HOUR))) == [
        ("A", T0, "replaced"),
        ("B", T0 + 5, "replaced"),
        ("A", T0 + HOUR, "in force"),
    ]


def test_what_left_no_result_is_superseded() -> None:
    job = changed(spec(), B, "next", T0 + 5, None)
    job = changed(job, C, "restate", T0 + 6, known(8, (A, 0), (B, T0 + 9)))
    assert states(job, known(9, (A, 0), (C, T0 + 3))) == [
        ("A", T0, "replaced"),
        ("B", T0 + 9, "superseded"),
        ("C", T0 + 3, "in force"),
    ]


def test_a_line_that_the_log_of_a_later_term_does_not_have_is_superseded() -> None:
    """A master of the other side of a partition took the newest change only."""
    job = changed(spec(), B, "split", T0 + 5, None)
    job = changed(job, C, "split", T0 + 9, known(8, (A, 0), (B, T0 + 5)))
    whole = [("A", T0, "replaced"), ("B", T0 + 5, "replaced"), ("C", T0 + 9, "in force")]
    assert states(job, known(9, (A, 0), (B, T0 + 5), (C, T0 + 9))) == whole
    lost = [whole[0], ("B", None, "superseded"), whole[2]]
    assert states(job, known(9, (A, 0), (C, T0 + 9))) == lost
    later = changed(job, A, "split", T0 + HOUR, known(9, (A, 0), (C, T0 + 9)))
    after = [*lost[:2], ("C", T0 + 9, "replaced"), ("A", T0 + HOUR, "in force")]
    assert states(later, known(10, (C, T0 + 9), (A, T0 + HOUR))) == after, (
        "retention has passed the lines before"
    )


def test_the_schedule_of_an_earlier_life_of_the_job_does_not_count() -> None:
    assert states(spec(), known(6, (A, 0), (B, T0 - 9))) == [("A", T0, "in force")]


def test_a_spec_without_a_history() -> None:
    """As an older agent wrote it."""
    job = msgspec.structs.replace(spec(), changes=(), versions=(A, B), mode="next", number=8)
    schedule = known(8, (A, 0), (B, T0 + 9))
    assert states(job, schedule) == [("A", T0, "replaced"), ("B", T0 + 9, "in force")]


# Order.


def test_a_change_may_be_signed_for_a_place_in_a_masters_order() -> None:
    number = next_spec_number((3, b"M" * 16), 7)
    assert number == next_spec_number((3, b"M" * 16), 0) > next_spec_number((2, b"N" * 16), 7)
    assert next_spec_number((3, b"M" * 16), number) == number + 1
    assert next_spec_number((1 << 40, b"M" * 16), number) < 1 << 62, "also of a hostile epoch"
    job = changed(spec(), B, "split", T0 + 1, None, number, C.digest)
    assert (job.number, job.changes[-1].former) == (number, C.digest)
    assert has_change(job, job.changes[-1])
    assert not has_change(spec(), job.changes[-1])


def two_terms() -> tuple[JobSpec, JobSpec]:
    """The changes of two masters, which did not know each other's."""
    one, other = (next_spec_number((epoch, b"M" * 16), 7) for epoch in (3, 4))
    job = changed(changed(spec(), B, "split", T0 + 1, None, one), A, "split", T0 + 2, None, one + 1)
    return job, changed(spec(), C, "split", T0 + 1, None, other)


def test_changes_of_an_earlier_term_are_lost_and_the_history_says_so() -> None:
    former, later = two_terms()
    lost = lost_changes(former, later, None)
    assert lost == former.changes[1:]
    assert decode_lost(lost_item(later.id, later.number, Lost(lost))).changes == lost
    steps = history(later, known(later.number, (A, 0), (C, T0 + 9)), Lost(lost))
    assert [(step.version, step.state) for step in steps] == [
        (A.digest, "replaced"),
        (B.digest, "lost"),
        (A.digest, "lost"),
        (C.digest, "in force"),
    ]


def test_a_lost_change_whose_line_is_in_the_log_was_in_force() -> None:
    """The log of the side with the majority goes on; the other side's spec is of a later term, and came into force after it."""
    job = changed(spec(), B, "split", T0 + 1, None)
    other = Settings(5, 2 * HOUR)
    one, later = (next_spec_number((epoch, b"M" * 16), job.number) for epoch in (3, 4))
    seen = known(job.number, (A, 0), (B, T0 + 1))
    former = changed(job, B, "restate", T0 + 5, seen, one, settings=other)
    spec_of_later = changed(job, A, "split", T0 + 9, seen, later)
    lost = lost_changes(former, spec_of_later, None)
    assert [change.number for change in lost] == [one]
    schedule = known(later, (A, 0), (B, T0 + 1), (B, T0 + 5), (A, T0 + 9))
    steps = history(spec_of_later, schedule, Lost(lost))
    assert [(step.version, step.from_us, step.state) for step in steps] == [
        (A.digest, T0, "replaced"),
        (B.digest, T0 + 1, "replaced"),
        (B.digest, T0 + 5, "replaced"),
        (A.digest, T0 + 9, "in force"),
    ]
    forgotten = history(spec_of_later, schedule)
    assert [step.from_us for step in forgotten] == [T0, T0 + 1, T0 + 9], (
        "a line of none is given to no other change"
    )
    without = history(spec_of_later, known(later, (A, 0), (B, T0 + 1), (A, T0 + 9)), Lost(lost))
    assert [(step.from_us, step.state) for step in without][1:3] == [(T0 + 1, "replaced"), (None, "lost")]


def test_nothing_is_lost_where_one_change_follows_another_or_the_job_starts_again() -> None:
    former, later = two_terms()
    assert not lost_changes(former, changed(former, C, "split", T0 + 3, None, later.number), None)
    assert not lost_changes(former, started(msgspec.structs.replace(spec(), number=later.number)), None)
    assert not lost_changes(former, msgspec.structs.replace(later, changes=()), None)
    assert not lost_changes(spec(), later, None)


def test_the_line_of_an_earlier_change_is_known_from_a_later_one() -> None:
    job = changed(spec(), B, "split", T0 + 1, None)
    later = changed(job, C, "split", T0 + 9, known(8, (A, 0), (B, T0 + 3)))
    assert line_of_change(later, None, 8) == T0 + 3
    assert line_of_change(later, None, 9) is None
    assert line_of_change(later, known(9, (A, 0), (B, T0 + 3), (C, T0 + 11)), 9) == T0 + 11


def test_a_change_keeps_its_line_where_a_lost_change_of_settings_has_the_next_one() -> None:
    """The other side of a partition made that change, and the log that went on has its line."""
    job = changed(spec(), B, "restate", T0 + 9, None)
    other = msgspec.structs.replace(job.settings, lateness_us=4 * SECOND)
    foreign = KnownLine(B.digest, T0 + 20, name_of(other.encode()))
    schedule = KnownSchedule(8, b"", (*known(8, (A, 0), (B, T0 + 5)).lines, foreign))
    assert states(job, schedule) == [("A", T0, "replaced"), ("B", T0 + 5, "in force")]
    longer = msgspec.structs.replace(job.settings, keep_us=2 * HOUR)
    later = changed(job, B, "split", T0 + 30, schedule, settings=longer)
    own = KnownLine(B.digest, T0 + 30, name_of(longer.encode()))
    schedule = KnownSchedule(later.number, b"", (*schedule.lines, own))
    assert states(later, schedule) == [
        ("A", T0, "replaced"),
        ("B", T0 + 5, "replaced"),
        ("B", T0 + 30, "in force"),
    ]
