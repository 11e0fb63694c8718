"""The answers of `elf mesh status` and `elf mesh tree`, from the directory, the overlay and the agents' reports. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import astuple, replace

from elf.agent.config.units import duration_text
from elf.agent.control.protocol import (
    AgentEstimate,
    Cost,
    Failure,
    LagLine,
    Member,
    SinkLine,
    Status,
    TreeNode,
    TrialLine,
)
from elf.agent.control.shared_files import shared
from elf.agent.control.survey import Survey
from elf.agent.node.mesh_node import MeshNode
from elf.jobmaster.directory.job_spec import AgentAdvert, decode_job
from elf.jobmaster.directory.limits import LIMIT
from elf.srt.messages.ids import JobId, NodeId, short
from elf.srt.messages.messages import TreeReport
from elf.srt.messages.reports import EstimateReport, StatusReport
from elf.srt.transport.admission import TWO_AGENTS

MEMBERS_MAX = 2_000
"""Members that one status asks: 3 s, with 16 at a time and a round trip of 20 ms."""
TREE_MAX = 5_000
DEPTH_MAX = 64
"""A tree of 100,000 agents has six levels; a chain that is repairing itself may be longer for a moment."""
SKEW_US_MAX = 100_000
"""Clocks in a datacenter agree within this."""
PROBLEMS_MAX = 100


def sinks_of(advert: AgentAdvert) -> tuple[str, ...]:
    """The sinks that an agent serves; none if it has left."""
    return () if advert.until_us else advert.sinks


def name_of(node: NodeId, advert: AgentAdvert | None) -> str:
    """An agent's name, or its id if it has no advert."""
    return advert.name if advert is not None else node.hex()[:12]


def nodes_to_ask(node: MeshNode, adverts: Mapping[NodeId, AgentAdvert]) -> list[NodeId]:
    """All known nodes that have not left."""
    known = set(node.overlay.acquaintances()) | {node.id}
    return sorted(known | {each for each, advert in adverts.items() if not advert.until_us})


def status_of(
    node: MeshNode,
    adverts: Mapping[NodeId, AgentAdvert],
    survey: Survey[StatusReport],
    jobs: Mapping[JobId, str] = MappingProxyType({}),
    trials: tuple[TrialLine, ...] = (),
    job_problems: Sequence[str] = (),
    finishing: tuple[str, ...] = (),
) -> Status:
    """The status of all members after a survey. jobs: names. trials: those that run. job_problems: what is
    wrong with jobs."""
    near = set(node.overlay.acquaintances())
    nodes = sorted(set(survey.answers) | survey.silent | {each for each, a in adverts.items() if a.until_us})
    members = [_member(node, each, adverts.get(each), survey, each in near) for each in nodes]
    members.sort(key=lambda member: (member.name, member.id))
    problems = [*_failing(adverts, survey, jobs), *job_problems, *_problems(node, adverts, survey, members)]
    about = survey.left_out, trials, costs_of(survey, jobs), finishing
    return Status(node.id.hex(), tuple(members), tuple(problems[:PROBLEMS_MAX]), *about)


def costs_of(survey: Survey[StatusReport], jobs: Mapping[JobId, str]) -> tuple[Cost, ...]:
    """What each job costs the agents that answered, the most expensive first. jobs: names."""
    found: dict[JobId, Cost] = {}
    for report, _, _ in survey.answers.values():
        for each in report.costs:
            name = jobs.get(each.job, short(each.job))
            so_far = found.get(each.job, Cost(name, 0.0, 0, 0, 0, 0))
            found[each.job] = Cost(
                name,
                so_far.cpu_ms + each.cpu_us / 1000,
                so_far.sent_bytes + each.sent_bytes,
                max(so_far.groups, each.groups),
                so_far.held_bytes + each.held_bytes,
                so_far.agents + 1,
            )
    return tuple(sorted(found.values(), key=lambda cost: (-cost.cpu_ms, -cost.sent_bytes, cost.job)))


def _member(
    node: MeshNode, of: NodeId, advert: AgentAdvert | None, survey: Survey[StatusReport], is_near: bool
) -> Member:
    address = node.overlay.address_of(of) or (advert.address if advert is not None else "")
    sources = advert.sources if advert is not None else ()
    sinks = advert.sinks if advert is not None else ()
    takes = advert.takes if advert is not None else ()
    base = Member(
        name_of(of, advert), of.hex(), address.partition("/")[0], "left", sources, sinks, takes=takes
    )
    if of not in survey.answers:
        if of in survey.silent:
            ended_s = _ended_s(of, survey)
            state = "ended" if ended_s is not None else "suspect" if is_near else "dead"
            return replace(base, state=state, ended_s=ended_s)
        return base
    report, asked_us, heard_us = survey.answers[of]
    round_trip = max(0, heard_us - asked_us)
    skew = 0 if of == node.id else report.clock_us - (asked_us + heard_us) // 2
    roles = {
        "master": report.masters,
        "replica": report.replicas,
        "reducer": report.reducers,
        "worker": report.workers,
    }
    return replace(
        base,
        state="alive",
        version=report.version,
        roles=roles,
        lag_bytes=report.lag_bytes,
        skew_us=skew,
        round_trip_us=round_trip,
        memory_bytes=report.memory_bytes,
        memory_max=report.memory_max,
        memory_bare=report.memory_bare,
        memory=report.memory,
        delivering=tuple(SinkLine(*astuple(sink)) for sink in report.sinks),
        lags=tuple(LagLine(_job_name(node, lag.job), *astuple(lag)[1:]) for lag in report.lags),
        up_s=float(report.up_s),
        gone=report.gone,
    )


def _job_name(node: MeshNode, job: JobId) -> str:
    item = node.directory.get("job", job)
    return decode_job(item).name if item is not None else short(job)


def _ended_s(of: NodeId, survey: Survey[StatusReport]) -> float | None:
    """How long ago its process ended: its neighbours saw its host close its sockets, or it announced its end."""
    ended = [report.ended[of] for report, _, _ in survey.answers.values() if of in report.ended]
    return min(ended) / 1e6 if ended else None


def _problems(
    node: MeshNode,
    adverts: Mapping[NodeId, AgentAdvert],
    survey: Survey[StatusReport],
    members: Sequence[Member],
) -> list[str]:
    """What is wrong, each with what to do."""
    found: list[str] = []
    for member in members:
        if (
            member.skew_us is not None
            and abs(member.skew_us) > SKEW_US_MAX + (member.round_trip_us or 0) // 2
        ):
            ahead = "ahead of" if member.skew_us > 0 else "behind"
            found.append(
                f"{member.name}: its clock is {abs(member.skew_us) / 1e6:.1f} s {ahead} this agent's; "
                "let both keep time (chrony, NTP)"
            )
        if member.state in ("dead", "suspect"):
            found.append(
                f"{member.name}: does not answer at {member.address or 'any address'}; if it runs, check its address "
                "([agent] advertise) and the firewall"
            )
        if member.ended_s is not None:
            found.append(
                f"{member.name}: its process ended {duration_text(round(member.ended_s) * 1_000_000)} ago; see its log, and "
                "start it again: it then reads the lines logged meanwhile"
            )
        if member.version and member.version != survey.answers[node.id][0].version:
            found.append(
                f"{member.name}: runs elf {member.version}, this agent another version; upgrade the older one"
            )
    for other, (report, _, _) in sorted(survey.answers.items()):
        found += [f"{name_of(other, adverts.get(other))}: {problem}" for problem in report.problems]
    found = _once(found)
    found += shared(
        (name_of(each, adverts.get(each)), report.files) for each, (report, _, _) in survey.answers.items()
    )
    names: dict[str, list[str]] = {}
    for member in members:
        if member.state != "left":
            names.setdefault(member.name, []).append(member.id[:12])
    for name, ids in names.items():
        if len(ids) > 1:
            found.append(f"{name}: {len(ids)} agents have this name ({', '.join(ids)}); give each its own")
    return found


def _once(problems: Sequence[str]) -> list[str]:
    """Drop repetitions: each neighbour of two processes with one key reports both of them."""
    found: dict[str, str] = {}
    for problem in problems:
        about = problem.find(TWO_AGENTS)
        found.setdefault(problem[about:] if about >= 0 else problem, problem)
    return list(found.values())


def failures_of(
    adverts: Mapping[NodeId, AgentAdvert], survey: Survey[StatusReport]
) -> dict[JobId, list[Failure]]:
    """Jobs that fail, and at which agents."""
    found: dict[JobId, list[Failure]] = {}
    for agent, (report, _, _) in sorted(survey.answers.items()):
        for each in report.failing:
            failure = Failure(
                name_of(agent, adverts.get(agent)), each.reason, each.failures, each.again_us / 1e6
            )
            found.setdefault(each.job, []).append(failure)
    return found


def estimates_of(
    adverts: Mapping[NodeId, AgentAdvert], survey: Survey[EstimateReport]
) -> Iterator[AgentEstimate]:
    """The estimates of agents, by name."""
    for node in sorted(adverts, key=lambda node: adverts[node].name):
        if node in survey.silent:
            yield AgentEstimate(adverts[node].name, problem="it does not answer")
        elif node in survey.answers:
            made = survey.answers[node][0]
            about = (made.read_bytes, made.lines, made.span_us, made.groups, made.sent_bytes, made.problem)
            yield AgentEstimate(adverts[node].name, *about)


LATE = "it has yet to report under it"


def reasons(
    job: JobId,
    missing: Sequence[NodeId],
    survey: Survey[StatusReport],
    adverts: Mapping[NodeId, AgentAdvert],
) -> tuple[tuple[str, str], ...]:
    """Agents that have not confirmed a change, by name, and why, as far as they say."""
    failing = {failure.agent: failure.text for failure in failures_of(adverts, survey).get(job, [])}
    found = []
    for node in missing:
        name, answer = name_of(node, adverts.get(node)), survey.answers.get(node)
        reason = failing.get(name, LATE)
        if answer is None:
            reason = "it does not answer"
        elif name not in failing:
            report, asked_us, heard_us = answer
            skew_us = report.clock_us - (asked_us + heard_us) // 2
            if abs(skew_us) > SKEW_US_MAX + (heard_us - asked_us) // 2:
                reason = f"its clock is {abs(skew_us) / 1e6:.1f} s {'ahead of' if skew_us > 0 else 'behind'} this agent's"
        found.append((name, reason))
    return tuple(found)


def untimed_of(survey: Survey[StatusReport]) -> dict[JobId, int]:
    """For each job, how many rejected lines are in none of its windows, as its master reports."""
    found: dict[JobId, int] = {}
    for report, _, _ in survey.answers.values():
        for job, count in report.untimed.items():
            found[job] = max(count, found.get(job, 0))
    return found


def _failing(
    adverts: Mapping[NodeId, AgentAdvert], survey: Survey[StatusReport], jobs: Mapping[JobId, str]
) -> list[str]:
    return [
        f"{failure.agent}: job {jobs.get(job, short(job))} {failure.text}. {_advice(failure)}"
        for job, failures in failures_of(adverts, survey).items()
        for failure in failures
    ]


def _advice(failure: Failure) -> str:
    if failure.reason.startswith(LIMIT):
        return "Other jobs are not affected"
    return "Its log has the traceback; other jobs are not affected"


def tree_of(root: NodeId, adverts: Mapping[NodeId, AgentAdvert], survey: Survey[TreeReport]) -> TreeNode:
    """The tree from the master down. A node that two others report as their child (it is moving) is put below its own parent."""
    placed = {root}
    return _below(root, adverts, survey, placed, 0)


def _below(
    node: NodeId,
    adverts: Mapping[NodeId, AgentAdvert],
    survey: Survey[TreeReport],
    placed: set[NodeId],
    depth: int,
) -> TreeNode:
    report = survey.answers.get(node)
    children: list[TreeNode] = []
    if report is not None and depth < DEPTH_MAX:
        for child in report[0].children:
            answer = survey.answers.get(child)
            elsewhere = answer is not None and answer[0].parent not in (node, b"")
            if child not in placed and not elsewhere:
                placed.add(child)
                children.append(_below(child, adverts, survey, placed, depth + 1))
    children.sort(key=lambda child: (child.name, child.id))
    return TreeNode(name_of(node, adverts.get(node)), node.hex(), tuple(children), report is None)
