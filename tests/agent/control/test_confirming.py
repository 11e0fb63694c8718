"""An agent asks a job's master who has confirmed a change, and the others why they have not."""

from __future__ import annotations

import pytest

from elf.agent.control.changing import REPEAT_US, Submission
from elf.agent.control.status import SKEW_US_MAX, reasons
from elf.agent.control.survey import Survey
from elf.jobmaster.directory.job_spec import AgentAdvert, JobSpec
from elf.srt.messages.changes import ChangeReport
from elf.srt.messages.effects import Route
from elf.srt.messages.ids import node_id
from elf.srt.messages.reports import Failing, StatusReport, StatusRequest
from tests.rigs.mesh_lines import plan_of, version_of

VERSION = version_of(plan_of("10 seconds"))
SPEC = JobSpec("hits", 1, "access", (VERSION,))
MASTER = b"M" * 16
NODES = [node_id(name.encode()) for name in ("late", "silent", "failing", "slow")]


def report(agents: int, confirmed: int, version: str = VERSION.digest) -> ChangeReport:
    return ChangeReport(SPEC.id, 7, True, 2, version, (), agents, confirmed)


@pytest.mark.parametrize(
    ("answer", "is_confirmed"),
    [
        (report(0, 0), False),
        (report(3, 2), False),
        (report(3, 3), True),
        (report(0, 0, "another"), True),  # no longer in force
    ],
)
def test_it_asks_again_until_all_have_confirmed(answer: ChangeReport, is_confirmed: bool) -> None:
    submission = Submission(SPEC.id, 7, SPEC.item(), 0)
    assert [type(effect) for effect in submission.tick(0)] == [Route]
    submission.step(MASTER, report(0, 0, "the one before"), 5)
    assert submission.report is not None
    submission.confirm()
    assert not submission.is_confirmed
    assert len(submission.tick(6)) == 1
    submission.step(MASTER, answer, 9)
    assert submission.is_confirmed == is_confirmed
    assert submission.tick(7) == []
    assert len(submission.tick(6 + REPEAT_US)) == 1


def test_why_agents_have_not_confirmed() -> None:
    adverts = {
        node: AgentAdvert(name, ("access",), 1)
        for node, name in zip(NODES, ("late", "silent", "failing", "slow"), strict=True)
    }
    survey: Survey[StatusReport] = Survey(StatusRequest(1), NODES, 10)
    survey.tick(1_000_000)
    failing = (Failing(SPEC.id, "KeyError: 'x'", 2, 5_000_000),)
    survey.step(NODES[0], StatusReport(1, 1_000_000), 1_000_000)
    survey.step(NODES[2], StatusReport(1, 1_000_000, failing=failing), 1_000_000)
    survey.step(NODES[3], StatusReport(1, 1_000_000 - SKEW_US_MAX - 7_000_000), 1_000_000)
    behind = (SKEW_US_MAX + 7_000_000) / 1e6
    assert reasons(SPEC.id, NODES, survey, adverts) == (
        ("late", "it has yet to report under it"),
        ("silent", "it does not answer"),
        ("failing", "fails (KeyError: 'x'), 2 times by now, and begins again in 5 s"),
        ("slow", f"its clock is {behind:.1f} s behind this agent's"),
    )
