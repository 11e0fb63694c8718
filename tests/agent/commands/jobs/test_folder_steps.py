"""What has to be done for a folder of job files, for every state that a job of the mesh can be in."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from elf.agent.commands.jobs.folder.steps import step_of, stops, too_many
from elf.agent.commands.jobs.job import NewJob, compiled, job_of_file, spec_of
from elf.agent.config.job_file import job_text, parse_job_file
from elf.agent.control.protocol import HeldSource, JobHeld, JobLine
from elf.errors import UsageError
from elf.jobmaster.directory.differences import Difference, differences
from elf.jobmaster.directory.job_spec import JobSpec, decode_job
from elf.jobmaster.plan.plan import Plan

SQL = "SELECT window, status, count(*) AS n FROM access GROUP BY window(time, '10 seconds'), status"
ERRORS = SQL.replace("GROUP BY", "WHERE status >= 400 GROUP BY")
NOW_US = 1_700_000_000_000_000


def held(spec: JobSpec | None = None) -> JobHeld:
    sources = {"access": HeldSource(3), "other": HeldSource(1)}
    item = spec.item() if spec is not None else None
    number = spec.number + 1 if spec is not None else 1
    return JobHeld(item, ("hits",), tuple(sources), ("lake", "old"), NOW_US, False, sources, next=number)


def asked(text: str, label: str = "web") -> tuple[NewJob, Plan]:
    job = job_of_file(parse_job_file(text, Path("hits.sql")), "hits", label)
    return job, compiled(job, held())[0]


def running(text: str = SQL, label: str = "web") -> JobSpec:
    job, plan = asked(text, label)
    return spec_of(job, plan, held(), None)


def head(*lines: str) -> str:
    return "\n".join(["-- +++", *(f"-- {line}" for line in lines), "-- +++", SQL])


def test_a_job_that_the_mesh_does_not_have_starts_with_the_label() -> None:
    step = step_of(*asked(SQL), held())
    assert step.spec is not None
    assert (step.action, step.former, step.spec.number, step.spec.label) == ("start", None, 1, "web")
    assert decode_job(step.spec.item()) == step.spec


@pytest.mark.parametrize("label", ["", "web", "other"])
def test_a_stopped_job_starts_again_whoever_started_it(label: str) -> None:
    stopped = replace(running(ERRORS, label), stopped=True, number=5)
    step = step_of(*asked(SQL), held(stopped))
    assert step.spec is not None
    assert (step.action, step.spec.number, step.spec.stopped, step.spec.label) == ("start", 6, False, "web")
    assert step.differences == []


@pytest.mark.parametrize("label", ["", "web"])
@pytest.mark.parametrize(
    "text", [SQL, SQL.lower(), head("lateness = '60s'", "keep = '60m'"), f"-- new\n{SQL}"]
)
def test_a_job_of_the_same_meaning_is_left_alone(label: str, text: str) -> None:
    step = step_of(*asked(text), held(running(SQL, label)))
    assert (step.action, step.spec) == ("unchanged", running(SQL, label))


@pytest.mark.parametrize("label", ["", "web"])
def test_another_query_is_an_update_that_keeps_all_else(label: str) -> None:
    former = running(SQL, label)
    step = step_of(*asked(ERRORS), held(former))
    assert step.spec is not None
    assert (step.action, step.spec.label, step.spec.number, step.spec.mode) == ("update", label, 2, "split")
    assert step.differences == [Difference("where", "none", "(status >= 400)")]
    assert step_of(*asked(ERRORS), held(step.spec)).action == "unchanged"


def test_a_change_under_one_name_is_seen() -> None:
    one, other = running(SQL), running(SQL.replace("count(*)", "sum(bytes)"))
    (difference,) = differences(one.versions[-1], other.versions[-1])
    assert difference.part == "select"
    assert difference.before != difference.after
    assert str(difference).startswith("select: window, status, ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (head("lateness = '5s'"), [Difference("lateness", "1m", "5s")]),
        (
            head("keep = '2h'", "emit = '1s'"),
            [Difference("emit", "200ms", "1s"), Difference("keep", "1h", "2h")],
        ),
        (head("sinks = 'lake'"), [Difference("sinks", "none", "lake")]),
        (head("limits.groups = 3"), [Difference("limits", "none", "3 groups")]),
    ],
)
def test_other_options_are_an_update_that_keeps_the_version(text: str, expected: list[Difference]) -> None:
    former = running()
    step = step_of(*asked(text), held(former))
    assert step.spec is not None
    assert (step.action, step.differences) == ("update", expected)
    assert step.spec.versions == former.versions
    assert step.spec.changes[-1].settings == (former.settings, step.spec.settings)
    assert step_of(*asked(text), held(step.spec)).action == "unchanged"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            head("sinks = 'lake'", "limits.groups = 3", "limits.over = 'other'"),
            "a lake has no place for the row other",
        ),
        (
            head("sinks = 'lake'").replace("window(time, '10 seconds'), ", "").replace("window, ", ""),
            "a sink would stay empty",
        ),
    ],
)
def test_other_options_that_cannot_be_are_refused(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        step_of(*asked(text), held(running()))


def test_a_default_differs_from_what_the_job_has() -> None:
    step = step_of(*asked(SQL), held(running(head("keep = '5m'"))))
    assert step.differences == [Difference("keep", "5m", "1h")]


def test_a_lateness_that_no_file_says_was_decided_at_the_start() -> None:
    assert step_of(*asked(SQL), held(running(head("lateness = '5s'")))).action == "unchanged"


def test_a_query_over_another_source_is_another_job() -> None:
    with pytest.raises(UsageError, match=r"hits\.sql:1: sql: job hits reads the source access, this query"):
        step_of(*asked(SQL.replace("access", "other")), held(running()))


def test_a_job_of_another_folder_is_refused_even_if_it_is_the_same() -> None:
    with pytest.raises(
        UsageError, match="job hits belongs to the folder labelled other, and this one is labelled web"
    ):
        step_of(*asked(SQL), held(running(SQL, "other")))


@pytest.mark.parametrize(
    "text",
    [SQL, ERRORS, head("sinks = ['old', 'lake']", "lateness = '1m30s'", "keep = '10m'", "emit = '2s'")],
)
def test_a_job_as_a_file_is_that_job(text: str) -> None:
    spec = running(text)
    file = parse_job_file(job_text(spec), Path("hits.toml"))
    job = job_of_file(file, "hits", "web")
    assert step_of(job, compiled(job, held())[0], held(spec)).action == "unchanged"


# Stops.


def lines(**labels: str) -> list[JobLine]:
    return [
        JobLine(name, "running", 1, "access", "v", SQL, (), 1, 1, 1, 1, "web1", 3, label=label)
        for name, label in labels.items()
    ]


def test_only_jobs_of_the_folder_without_a_file_are_stopped() -> None:
    jobs = lines(a="web", b="web", c="", d="other")
    assert [step.name for step in stops(jobs, {"b"}, "web")] == ["a"]
    assert [step.action for step in stops(jobs, {"b"}, "web")] == ["stop"]
    assert stops(jobs, {"a", "b"}, "web") == []


@pytest.mark.parametrize(
    ("stopping", "of", "is_refused"),
    [(0, 1, False), (1, 5, False), (1, 4, True), (2, 10, False), (3, 14, True), (1, 1, True)],
)
def test_more_than_a_fifth_needs_a_yes(stopping: int, of: int, is_refused: bool) -> None:
    jobs = lines(**{f"j{number}": "web" for number in range(of)})
    steps = stops(jobs, {f"j{number}" for number in range(stopping, of)}, "web")
    assert len(steps) == stopping
    text = too_many(steps, jobs)
    assert text.startswith(f"--prune would stop {stopping} of the {of} jobs that run (j0") is is_refused
    assert bool(text) is is_refused


def test_an_agents_own_job_whose_file_says_no_lateness_any_more_gets_that_of_the_format() -> None:
    """The file of an agent names all options; a job file that does not name one leaves it."""
    former, facts = running(head("lateness = '1s'")), held(running(head("lateness = '1s'")))
    facts = replace(facts, schemas={"access": HeldSource(3, lateness_us=5_000_000)})
    job, plan = asked(SQL)
    assert step_of(job, plan, facts).action == "unchanged"
    step = step_of(replace(job, given=("lateness",)), plan, facts)
    assert step.spec is not None
    assert (step.action, former.lateness_us, step.spec.lateness_us) == ("update", 1_000_000, 5_000_000)


def test_a_sink_that_shows_open_windows_needs_no_final_ones() -> None:
    text = "SELECT status, count(*) AS n FROM access GROUP BY status"
    job, plan = asked(text)
    job = replace(job, sinks=("screen", "lake"), shown=("screen",))
    with pytest.raises(UsageError, match="nothing is ever final"):
        step_of(replace(job, shown=()), plan, held())
    with pytest.raises(UsageError, match="nothing is ever final"):
        step_of(job, plan, held())
    step = step_of(replace(job, sinks=("screen",)), plan, held())
    assert step.spec is not None
    assert step.spec.sinks == ()
    assert step_of(*asked(SQL), held(running())).action == "unchanged"
