"""The limit on groups at one agent: counted over all cuts of a pane; past it the job fails, or the rest becomes one row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from elf.agent.node.job_limits import JobLimits
from elf.agent.node.worker.group_limit import PANES_MAX, GroupLimit, LimitsAt
from elf.agent.simulator.run import Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.cbt.other import is_other
from elf.cbt.rows import Op
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.directory.limits import LimitPassed, Limits
from elf.jobmaster.directory.versions import changed
from elf.jobmaster.values.sql_types import BIGINT, STRING, TIMESTAMP
from elf.srt.messages.events import Cut
from elf.srt.messages.messages import Line
from elf.srt.messages.partial import Part
from tests.rigs.mesh_lines import part_of, plan_of, version_of
from tests.rigs.quick import QUICK

SECOND = 1_000_000
PLAN = plan_of("1 second")
PLAIN = Limits(groups=3)


def cut(*lines: tuple[int, int], version: str = "v") -> Cut:
    """A cut with these lines: pane in seconds, number of the path."""
    part = part_of(PLAN, [(pane * SECOND, path, 1) for pane, path in lines])
    return Cut(b"job", 1, 1, {}, 0, {version: part}, True)


def always(limits: Limits) -> LimitsAt:
    return lambda version, pane: limits


def test_each_pane_has_the_limits_of_its_own_time() -> None:
    before, after = Limits(3, others=True), Limits(5, others=True)
    few = cut(*((pane, path) for pane in range(4) for path in range(5)))
    found = GroupLimit().apply(few, lambda version, pane: after if pane // SECOND in (1, 3) else before)
    rows = found.parts["v"].rows[0]
    groups = [int((~is_other(rows) & (rows.pane == pane * SECOND)).sum()) for pane in range(4)]
    assert groups[1] == groups[3] == 5
    assert groups[0] == groups[2] <= 3
    assert rows.lanes[0].sum() == 20


def test_groups_of_a_pane_are_counted_over_all_cuts() -> None:
    limit = GroupLimit()
    first = cut((0, 1), (0, 2), (1, 3), (1, 4), (1, 5))
    assert limit.apply(first, always(PLAIN)) == first
    limit.apply(cut((0, 2), (0, 1), (0, 3), (2, 9)), always(PLAIN))
    limit.apply(cut((0, 4), version="another"), always(PLAIN))
    with pytest.raises(LimitPassed, match="limit: more than 3 groups in one pane"):
        limit.apply(cut((0, 4)), always(PLAIN))


def test_a_cut_without_groups_has_none() -> None:
    for limits in (PLAIN, Limits(3, others=True)):
        assert len(GroupLimit().apply(cut(), always(limits)).parts["v"].rows[0]) == 0


def test_without_a_limit_nothing_is_counted() -> None:
    many = cut(*((0, path) for path in range(9)))
    assert GroupLimit().apply(many, always(Limits())) == many
    assert GroupLimit().apply(many, always(Limits(cpu_us=1, sent_bytes=1))) == many


def test_memory_is_bounded() -> None:
    limit = GroupLimit()
    for pane in range(5 * PANES_MAX):
        limit.apply(cut((pane, 1), (pane, 2)), always(PLAIN))
    assert len(limit._known) == PANES_MAX


def test_the_rest_becomes_one_row() -> None:
    found = GroupLimit().apply(cut(*((0, path) for path in range(9))), always(Limits(3, others=True)))
    rows = found.parts["v"].rows[0]
    assert len(rows) <= 4
    assert is_other(rows).sum() == 1
    assert rows.lanes[0].sum() == 9


def test_what_has_no_common_row_fails() -> None:
    types = {"access": {"time": TIMESTAMP, "path": STRING, "bytes": BIGINT}}
    plan = compile_query("SELECT path, count(DISTINCT bytes) AS n FROM access GROUP BY path", types)
    assert plan.families
    few = cut(*((0, path) for path in range(9)))
    part = few.parts["v"]
    with_family = Part((*part.ops, (Op.SUM64,)), (*part.rows, part.rows[1]))
    with pytest.raises(LimitPassed, match="there is no row other"):
        GroupLimit().apply(replace(few, parts={"v": with_family}), always(Limits(3, others=True)))
    GroupLimit().apply(replace(few, parts={"v": with_family}), always(Limits(9, others=True)))


bounds = st.builds(Limits, *(st.integers(0, 9), st.booleans(), st.integers(0, 9), st.integers(0, 9)))


@given(bounds, bounds)
def test_an_agents_limits_only_lower_those_of_a_job(limits: Limits, caps: Limits) -> None:
    both = limits.within(caps)
    assert both.others == limits.others
    for field in ("groups", "sent_bytes", "cpu_us"):
        known = [getattr(each, field) for each in (limits, caps) if getattr(each, field)]
        assert getattr(both, field) == min(known, default=0)


@pytest.mark.slow
def test_a_job_over_its_limit_fails_alone_and_says_why() -> None:
    job = s.Job(start_us=2 * SECOND, windows=("1 second",), lateness_us=SECOND)
    runs: list[Run] = []

    def prepare(run: Run) -> None:
        run.specs[0] = replace(run.specs[0], limits=Limits(groups=3))
        runs.append(run)

    scenario = s.Scenario(
        seed=3, hosts=4, jobs=(job, job), parameters=QUICK, trouble_us=6 * SECOND, rest_us=2 * SECOND
    )
    assert simulate(scenario, prepare=prepare).violation != ""  # nothing of the first job is ever whole
    run = runs[0]
    nodes = [actor.node for actor in run.hosts if actor.node is not None]
    failing = {each.job: each.reason for node in nodes for each in node.failing(0)}
    assert failing.keys() == {run.specs[0].id}
    assert failing[run.specs[0].id].startswith("limit: more than 3 groups in one pane")
    assert all(run.specs[1].id in node.seats for node in nodes)
    assert not any(node.vacancies.get(run.specs[1].id) for node in nodes)


def test_a_limit_that_fails_a_job_is_the_newest_and_one_that_shapes_results_that_of_the_pane() -> None:
    spec = JobSpec("hits", 1, "access", (version_of(PLAN),), limits=Limits(2), since_us=1)
    name = spec.versions[-1].digest
    more = changed(
        spec, spec.versions[-1], "split", 9, None, settings=replace(spec.settings, limits=Limits(5))
    )
    few = replace(spec.settings, limits=Limits(4, others=True))
    rest = changed(more, spec.versions[-1], "split", 9, None, settings=few)
    limits = JobLimits(more, Limits())
    limits.schedule = (Line(1, name, 0, b""), Line(2, name, 10, b"", more.settings.encode()))
    assert [limits.at(name, pane).groups for pane in (5, 10)] == [5, 5]
    limits.spec = rest
    limits.schedule = (*limits.schedule, Line(3, name, 20, b"", few.encode()))
    assert [limits.at(name, pane) for pane in (5, 10, 20)] == [Limits(), Limits(), few.limits]
    assert (limits.sample, limits.newest) == (0, few.limits)
    assert JobLimits(rest, Limits(3)).at(name, 20) == Limits(3, others=True)
