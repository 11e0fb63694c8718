"""What `elf alerts` lists: the alerts of all jobs, with the states that their masters report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

import msgspec

from elf.agent.control import protocol as w
from elf.agent.control.survey import Survey
from elf.errors import UsageError
from elf.jobmaster.alerts.book import Transition, labels_of
from elf.jobmaster.directory.job_spec import AgentAdvert, JobSpec
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.reports import StatusReport

_decoder = msgspec.msgpack.Decoder(Transition)


def alert_list(jobs: Iterable[JobSpec], survey: Survey[StatusReport]) -> w.Alerts:
    """All alerts, by job and name; one without an instance is inactive."""
    states: dict[tuple[JobId, str], list[Transition]] = {}
    left_out: dict[JobId, int] = {}
    for report, _, _ in survey.answers.values():
        for job, count in report.alerts_left_out.items():
            left_out[job] = max(count, left_out.get(job, 0))
        for job, data in report.alerts:
            try:
                change = _decoder.decode(data)
            except msgspec.MsgspecError:
                continue  # of another version of elf
            known = states.setdefault((job, change.alert), [])
            if change not in known:
                known.append(change)
    running = sorted((spec for spec in jobs if not spec.stopped), key=lambda spec: spec.name)
    lines = [line for spec in running for line in _lines(spec, states)]
    return w.Alerts(tuple(lines), {spec.name: left_out[spec.id] for spec in running if spec.id in left_out})


def _lines(spec: JobSpec, states: dict[tuple[JobId, str], list[Transition]]) -> Iterator[w.AlertLine]:
    for alert in spec.alerts:
        about = alert.when, alert.for_us, alert.sinks or spec.sinks
        found = states.get((spec.id, alert.name), [])
        if not found:
            yield w.AlertLine(spec.name, alert.name, "inactive", *about)
        for each in sorted(found, key=lambda each: (each.state != "firing", each.keys)):
            labels = dict(labels_of(each, spec.name))
            times = each.since_us, each.at_us
            yield w.AlertLine(
                spec.name, alert.name, each.state, *about, *times, dict(each.keys), labels, each.text
            )


NO_ANSWER = "it has not answered within 1.6 s: the agent's log says what happens"


def test_of(jobs: Iterable[JobSpec], name: str, job: str) -> tuple[JobSpec, tuple[str, ...]]:
    """The job that has an alert of that name, and the alert's sinks. Raises UsageError."""
    having = [spec for spec in jobs if not spec.stopped and name in [each.name for each in spec.alerts]]
    found = [spec for spec in having if job in ("", spec.name)]
    if not found:
        where = f"job {job}" if job else "no job that runs"
        raise UsageError(f"{where} has {'no' if job else 'an'} alert {name}; see elf alerts")
    if len(found) > 1:
        names = ", ".join(sorted(spec.name for spec in found))
        raise UsageError(f"more than one job has an alert {name} ({names}); name one with --job JOB")
    (spec,) = found
    (alert,) = (each for each in spec.alerts if each.name == name)
    sinks = alert.sinks or spec.sinks
    if not sinks:
        raise UsageError(
            f'alert {name} of job {spec.name} goes to no sink; name one with sinks = ["…"] in its job file'
        )
    return spec, sinks


Ask = Callable[[NodeId, JobId, str, str], Awaitable[str | None]]
"""(node, job, alert, sink) -> the node's answer to a test; None without one."""


async def alert_tested(
    request: w.AlertTestRequest, jobs: Iterable[JobSpec], adverts: Mapping[NodeId, AgentAdvert], ask: Ask
) -> w.AlertTested:
    """Have each sink of an alert tested by an agent that serves it. Raises UsageError."""
    spec, sinks = test_of(jobs, request.alert, request.job)
    problems = {}
    for sink in sinks:
        nodes = sorted(node for node, each in adverts.items() if sink in each.sinks and not each.until_us)
        problem = await ask(nodes[0], spec.id, request.alert, sink) if nodes else "no agent serves it"
        problems[sink] = NO_ANSWER if problem is None else problem
    return w.AlertTested(spec.name, problems)
