"""Serves the commands on an agent's host: reads the directory, submits jobs, asks other agents."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from elf.agent.config.names import unknown_job
from elf.agent.control import protocol as w
from elf.agent.control.alerting import alert_list, alert_tested
from elf.agent.control.audit import AuditList, Request, lines_of
from elf.agent.control.changing import (
    ANSWERS_US,
    CONFIRMS_US,
    NewLines,
    Submission,
    in_force,
    refusal,
    unannounced,
)
from elf.agent.control.columns import held_columns, held_lateness_us
from elf.agent.control.fleet import held_features, unable_in
from elf.agent.control.follow import Watcher
from elf.agent.control.gathering import InMemory, PartStore
from elf.agent.control.ports import Asking, Host
from elf.agent.control.revoked_jobs import left_agents, revoked_text
from elf.agent.control.search import Search
from elf.agent.control.status import (
    LATE,
    MEMBERS_MAX,
    TREE_MAX,
    estimates_of,
    failures_of,
    name_of,
    nodes_to_ask,
    reasons,
    sinks_of,
    status_of,
    tree_of,
    untimed_of,
)
from elf.agent.control.survey import Survey
from elf.errors import ElfError, PeerError, UsageError
from elf.jobmaster.delivery.chunks import PAYLOAD_BYTES_MAX
from elf.jobmaster.directory.changes import next_spec_number
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import (
    AgentAdvert,
    JobSpec,
    ballot_of,
    decode_agent,
    decode_job,
)
from elf.jobmaster.log.schedule import plan_of
from elf.srt.codec.wire import encode
from elf.srt.messages.compression import decompress
from elf.srt.messages.ids import JobId, NodeId, job_id
from elf.srt.messages.messages import (
    Item,
    Message,
    TreeReport,
    TreeRequest,
    node_of,
)
from elf.srt.messages.patterns import is_named
from elf.srt.messages.reports import (
    AlertTest,
    AlertTestReport,
    EstimateReport,
    EstimateRequest,
    StatusReport,
    StatusRequest,
)

NAMES_MAX = 1_000
SAMPLE_MAX = 5
"""Agents that one estimate asks."""
RUMOR_S = 1.5
"""Time within which every agent knows a new job: a second of gossip, and time to spare."""
LOOK_FOR_JOB_S = 0.05
FAILURES_S_MAX = 0.5
"""How long a list of jobs waits for the agents' reports."""
LOOK_FOR_START_S = 0.25
LOOK_S = 1.0
"""How soon a watch notices that its job was stopped."""


class Exchange:
    """A core, and whether it received messages since it was last driven."""

    def __init__(self, core: Asking) -> None:
        self.core, self.news = core, asyncio.Event()
        self.failure: Exception | None = None


class ControlService:
    """Answers requests, on the loop of its host."""

    def __init__(self, host: Host, new_store: Callable[[], PartStore] = InMemory) -> None:
        """new_store: makes a store for a window that comes in parts."""
        self._host, self._new_store = host, new_store
        self._exchanges: dict[int, Exchange] = {}
        # Numbers differ between lives, so that a late answer to an earlier life is not taken for one to this life.
        self._numbers = count(host.node.life << 16)
        self._audit = AuditList(host, lambda: self._directory, host.node.id)
        host.node.listener = self._receive
        host.node.served_anew = self._served_anew
        host.node.describe = host.describe

    @property
    def held_bytes(self) -> int:
        """Memory of windows that wait for their readers."""
        cores = [exchange.core for exchange in self._exchanges.values()]
        return sum(core.held_bytes for core in cores if isinstance(core, Watcher))

    async def serve(self, request: w.AnyRequest) -> AsyncGenerator[w.Answer, None]:
        """The answers of one request. Raises ElfError."""
        if isinstance(request, w.JobGet):
            if request.exists:
                await self._wait_for_job(request.name)
            yield self._job_held(request)
        elif isinstance(request, w.JobPut):
            yield self._put_job(request.item)
        elif isinstance(request, w.JobChange):
            yield await self._change(request.item)
        elif isinstance(request, w.JobList):
            yield w.Jobs(tuple(self._lines(await self._health())))
        elif isinstance(request, w.Revoke):
            yield self._revoke(request.items)
        elif isinstance(request, w.MeshStatus):
            yield await self._status()
        elif isinstance(request, w.MeshTree):
            yield w.Tree(await self._tree(request.job))
        elif isinstance(request, w.MeshAudit):
            names = {node: advert.name for node, advert in self.adverts()}
            yield w.Audit(tuple(lines_of(self._directory, names)))
        elif isinstance(request, w.JobEstimate):
            yield await self._estimates(request.plan)
        elif isinstance(request, w.AlertTestRequest):
            yield await alert_tested(request, self.jobs(), dict(self.adverts()), self._ask_test)
        elif isinstance(request, w.AlertList):
            yield alert_list(self.jobs(), await self._health())
        elif isinstance(request, w.MeshLeave):
            yield await self._leave()
        else:
            async for answer in self._watch(request.name):
                yield answer

    # Jobs.

    def _job_held(self, request: w.JobGet) -> w.JobHeld:
        held = JobItems(self._directory, job_id(request.name))
        item = held.item()
        adverts = [advert for _, advert in self.adverts() if not advert.until_us]
        sources = Counter(source for advert in adverts for source in set(advert.sources))
        schemas = {
            source: w.HeldSource(
                count,
                held_columns(adverts, source),
                held_features(adverts, source),
                held_lateness_us(adverts, source),
            )
            for source, count in (sources.items() if request.columns else ())
        }
        taking = [advert for advert in adverts if is_named(advert.name, request.agents)]
        return w.JobHeld(
            item,
            self._running(),
            tuple(sorted(sources)),
            tuple(sorted({sink for advert in adverts for sink in sinks_of(advert)})),
            self._host.clock_us(),
            self._host.is_signed,
            schemas,
            held.schedule(),
            next_spec_number(held.ballot(), decode_job(item).number if item is not None else 0),
            held.lost(),
            left_agents(dict(self.adverts()), self._directory, decode_job(item).source)
            if item is not None
            else (),
            dict(Counter(source for advert in taking for source in set(advert.sources))),
            over.text if item is not None and (over := held.over(decode_job(item))) is not None else "",
            revoked_text(self._directory, item, self._host.clock_us()) if item is not None else "",
        )

    def _put_job(self, item: Item) -> w.Done:
        """Raises UsageError for an item that is no job or is not signed as required; ElfError if a newer one came first."""
        spec = self._signed_job(item)
        with self._audit.request(spec, item) as request:
            self._host.submit(item)
            held = self._directory.get("job", spec.id)
            if held is not None and held.body != item.body:
                request.refused("another command changed the job at the same time")
                raise ElfError(
                    f"job {spec.name!r} was changed at the same time by another command; see elf job list"
                )
            request.taken()
        return w.Done()

    def _signed_job(self, item: Item) -> JobSpec:
        """Raises UsageError for an item that is no job or is not signed as required."""
        try:
            spec = decode_job(item)
        except PeerError as error:
            self._audit.unsigned(None)
            raise UsageError(str(error)) from error
        if JobItems(self._directory, spec.id).accepts(item):
            return spec
        refusal = self._host.refusal(item)
        if refusal is not None and refusal.reason == "jobs":
            with self._audit.request(spec, item):
                raise UsageError(f"the mesh does not take this change: {refusal}")
        self._audit.unsigned(refusal)
        raise UsageError(
            f"the mesh does not take job {spec.name!r}: it must be signed with an operator's key that its authority has issued "
            "and not revoked; give the bundle with --keys FILE or ELF_KEYS"
        )

    def refuse(self, item: Item, reason: str) -> None:
        """Enter a signed request into the audit list as refused. Raises UsageError with the reason, or as `_signed_job` does."""
        with self._audit.request(self._signed_job(item), item) as request:
            request.refused(reason)
            raise UsageError(reason)

    async def _change(self, item: Item) -> w.Changed | w.Refused:
        """Rule Order*: the job's master judges a change before any directory has it."""
        spec = self._signed_job(item)
        with self._audit.request(spec, item) as request:
            return await self._judged(item, spec, request)

    async def _judged(self, item: Item, spec: JobSpec, request: Request) -> w.Changed | w.Refused:
        began_us, number = self._host.clock_us(), next(self._numbers)
        submission = Submission(spec.id, number, item, began_us)
        with self._exchange(number, submission) as exchange:
            while submission.report is None and not submission.is_over(self._host.clock_us()):
                if self._spec(spec.name).stopped:
                    raise UsageError(f"job {spec.name} was stopped meanwhile; nothing was changed")
                await self._drive(exchange)
            report = submission.report
            if report is None:
                raise ElfError(
                    f"no agent that serves job {spec.name} has answered within {ANSWERS_US / 1e6:.0f} s; see elf job history "
                    f"{spec.name} for whether the change was taken"
                )
            for each in (item,) if report.taken else report.items:
                self._host.submit(each)
            if not report.taken:
                request.refused(refusal(spec, report))
                return w.Refused(report.version, report.next, report.unread_us)
            request.taken()
            if (from_us := await in_force(self._directory, spec)) is None:
                if await self._waits(exchange, submission):
                    return w.Changed(0, max(0, self._host.clock_us() - began_us), waits=True)
                from_us = await in_force(self._directory, spec)
            if from_us is None:
                raise unannounced(spec)
            return await self._confirmed(spec, from_us, began_us, exchange, submission)

    async def _waits(self, exchange: Exchange, submission: Submission) -> bool:
        """Whether the job's master says that a change which it has taken waits for another."""
        submission.confirm()
        until_us = self._host.clock_us() + CONFIRMS_US
        while submission.report is None and self._host.clock_us() < until_us:
            await self._drive(exchange)
        return submission.report is not None and submission.report.waits

    async def _confirmed(
        self, spec: JobSpec, from_us: int, began_us: int, exchange: Exchange, submission: Submission
    ) -> w.Changed:
        """The answer to a change that is in force, once all agents have confirmed it, or those that have not are named: it waits
        for them only while one of them says that it works."""
        took_us = self._host.clock_us() - began_us
        missing: tuple[tuple[str, str], ...] = ()
        while self._host.clock_us() < began_us + ANSWERS_US:
            submission.confirm()
            until_us = self._host.clock_us() + CONFIRMS_US + 2 * self._host.node.parameters.flush_us
            while not submission.is_confirmed and self._host.clock_us() < until_us:
                await self._drive(exchange)
            if submission.is_confirmed or submission.report is None:
                break
            survey = await self._surveyed(submission.report.missing)
            missing = reasons(spec.id, submission.report.missing, survey, dict(self.adverts()))
            if all(reason != LATE for _, reason in missing):
                break
        report = submission.report
        if report is None or not report.agents:
            return w.Changed(from_us, max(0, took_us))
        if report.confirmed == report.agents:
            took_us, missing = self._host.clock_us() - began_us, ()
        return w.Changed(from_us, max(0, took_us), report.agents, report.confirmed, missing)

    def _revoke(self, items: Sequence[Item]) -> w.Done:
        """Raises UsageError for an item that the mesh's authority has not signed."""
        for item in items:
            self._host.submit(item)
            held = self._directory.get(item.kind, item.name)
            if item.kind != "revoked" or held is None or held.body != item.body:
                raise UsageError(
                    "the mesh does not take this revocation: it must be signed by its authority's key"
                )
        return w.Done()

    async def _health(self) -> Survey[StatusReport]:
        """The reports of agents that answer in time. No agent is asked while no job runs."""
        return await self._surveyed(
            nodes_to_ask(self._host.node, dict(self.adverts())) if self._running() else ()
        )

    async def _surveyed(self, asked: Sequence[NodeId]) -> Survey[StatusReport]:
        """The reports of those agents, as far as they answer in time."""
        number = next(self._numbers)
        survey: Survey[StatusReport] = Survey(StatusRequest(number), asked, MEMBERS_MAX)
        with suppress(TimeoutError):
            async with asyncio.timeout(FAILURES_S_MAX):
                await self._ask_all(number, survey)
        return survey

    def _lines(self, survey: Survey[StatusReport]) -> list[w.JobLine]:
        adverts = dict(self.adverts())
        failures, untimed = failures_of(adverts, survey), untimed_of(survey)
        lines = [
            self._line(spec, adverts, failures.get(spec.id, ()), untimed.get(spec.id, 0))
            for spec in self.jobs()
            if spec.trial is None
        ]
        return sorted(lines, key=lambda line: line.name)

    def _line(
        self, spec: JobSpec, adverts: dict[NodeId, AgentAdvert], failing: Sequence[w.Failure], untimed: int
    ) -> w.JobLine:
        ballot = self._directory.get("ballot", spec.id)
        master = node_of(ballot_of(ballot)) if ballot is not None else b""
        served_by = name_of(master, adverts.get(master)) if master else ""
        last, state = spec.query, "failing" if failing else "finishing" if spec.is_finishing else "running"
        return w.JobLine(
            spec.name,
            "stopped" if spec.stopped else state,
            spec.number,
            spec.source,
            last.digest,
            last.text,
            spec.sinks,
            spec.lateness_us,
            spec.keep_us,
            spec.emit_us,
            spec.since_us,
            "" if spec.stopped else served_by,
            sum(
                spec.takes(advert.name, advert.sources) and not advert.until_us for advert in adverts.values()
            ),
            () if spec.stopped else tuple(failing),
            0 if spec.stopped else untimed,
            spec.label,
        )

    # Windows.

    async def _watch(self, name: str) -> AsyncGenerator[w.Answer, None]:
        """The job's windows, from each of its starts to its end. Of a trial, until it ends."""
        await self._wait_for_job(name)
        while True:
            if not self._has_ended(self._spec(name)):
                async for answer in self._watch_life(name):
                    yield answer
            spec = self._spec(name)
            if spec.trial is not None:
                over = JobItems(self._directory, spec.id).over(spec)
                why = f": {over.text}" if over is not None else ""
                yield w.Done(f"the trial of job {spec.trial.of} has ended{why}")
                return
            yield w.Note(f"job {name} was stopped; this waits for its next start")
            while self._has_ended(self._spec(name)):
                await asyncio.sleep(LOOK_FOR_START_S)
            yield w.Note(f"job {name} was started again")

    async def _watch_life(self, name: str) -> AsyncGenerator[w.Answer, None]:
        """The job's windows, until it has ended."""
        job, sent = self._spec(name).id, set[str]()
        number = next(self._numbers)
        changes = NewLines(self._directory, job)
        watcher = Watcher(job, self._host.node.id, number, self._host.node.parameters, self._new_store)
        if text := unable_in(self._spec(name), [advert for _, advert in self.adverts()]):
            yield w.Note(f"job {name}: {text}")
        with self._exchange(number, watcher) as exchange:
            while not self._has_ended(self._spec(name)):
                await self._drive(exchange)
                if watcher.is_refused:
                    raise ElfError(f"job {name!r} has too many watchers already; end one of them")
                if (line := changes.take()) is not None:
                    yield w.NewVersion(line.version, line.from_us)
                for put, parts in watcher.take_parts():
                    if put.version not in sent and (plans := self._plans(job)):
                        sent |= plans.keys()
                        yield w.Versions(plans)
                    if put.version in sent:
                        for at, part in enumerate(parts, 1):
                            yield w.Published(decompress(part, PAYLOAD_BYTES_MAX), more=at < len(parts))
                        if not parts:
                            yield w.Published(encode(put))

    def _plans(self, job: JobId) -> dict[str, bytes]:
        item = self._directory.get("job", job)
        return {} if item is None else {each.digest: each.plan for each in decode_job(item).whole}

    # The mesh.

    async def _status(self) -> w.Status:
        node, adverts = self._host.node, dict(self.adverts())
        number = next(self._numbers)
        survey: Survey[StatusReport] = Survey(StatusRequest(number), nodes_to_ask(node, adverts), MEMBERS_MAX)
        await self._ask_all(number, survey)
        jobs = self.jobs()
        names = {spec.id: spec.name for spec in jobs}
        about = self._trials(jobs), self._job_problems(jobs), self._finishing(jobs)
        return status_of(node, adverts, survey, names, *about)

    def _job_problems(self, jobs: Sequence[JobSpec]) -> list[str]:
        """What is wrong with jobs, and what to do."""
        adverts = [advert for _, advert in self.adverts()]
        running = sorted((spec for spec in jobs if not self._has_ended(spec)), key=lambda spec: spec.name)
        found = [(spec.name, unable_in(spec, adverts)) for spec in running]
        for item in self._directory.items("job"):
            found.append((decode_job(item).name, revoked_text(self._directory, item, self._host.clock_us())))
        return [f"job {name}: {text}" for name, text in found if text]

    def _trials(self, jobs: Sequence[JobSpec]) -> tuple[w.TrialLine, ...]:
        """The trials that run, by job; not the present versions that run beside them."""
        return tuple(
            w.TrialLine(trial.of, spec.versions[-1].digest, trial.version, trial.agents, trial.until_us)
            for spec in sorted(jobs, key=lambda spec: spec.name)
            if (trial := spec.trial) is not None
            and not self._has_ended(spec)
            and spec.versions[-1].digest != trial.version
        )

    def _finishing(self, jobs: Sequence[JobSpec]) -> tuple[str, ...]:
        return tuple(sorted(spec.name for spec in jobs if spec.is_finishing)[:NAMES_MAX])

    async def _estimates(self, plan: bytes) -> w.Estimates:
        """Raises UsageError for bytes that are no plan."""
        try:
            source = plan_of(plan).source
        except PeerError as error:
            raise UsageError(str(error)) from error
        adverts = {
            node: each for node, each in self.adverts() if source in each.sources and not each.until_us
        }
        nodes = sorted(adverts, key=lambda node: adverts[node].name)
        some = (
            [nodes[at * len(nodes) // SAMPLE_MAX] for at in range(SAMPLE_MAX)]
            if len(nodes) > SAMPLE_MAX
            else nodes
        )
        number = next(self._numbers)
        survey: Survey[EstimateReport] = Survey(EstimateRequest(number, source, plan), some, SAMPLE_MAX)
        await self._ask_all(number, survey)
        return w.Estimates(tuple(estimates_of(adverts, survey)), len(nodes))

    async def _ask_test(self, node: NodeId, job: JobId, alert: str, sink: str) -> str | None:
        number = next(self._numbers)
        survey: Survey[AlertTestReport] = Survey(AlertTest(number, job, alert, sink), [node], 1)
        await self._ask_all(number, survey)
        return next((report.problem for report, _, _ in survey.answers.values()), None)

    async def _tree(self, name: str) -> w.TreeNode:
        await self._wait_for_job(name)
        spec = self._spec(name)
        if self._has_ended(spec):
            raise UsageError(f"job {name} was stopped, so it has no tree")
        job = spec.id
        root = await self._master(job)
        if root is None:
            raise ElfError(f"no agent serves job {name!r} at the moment; try again in a few seconds")
        number = next(self._numbers)
        survey: Survey[TreeReport] = Survey(
            TreeRequest(job, number), [root], TREE_MAX, lambda report: report.children
        )
        await self._ask_all(number, survey)
        return tree_of(root, dict(self.adverts()), survey)

    async def _master(self, job: JobId) -> NodeId | None:
        """The job's master, found by the overlay's routes; None if no agent serves the job within `search.MASTER_US_MAX`."""
        number = next(self._numbers)
        search = Search(job, number, self._host.clock_us())
        with self._exchange(number, search) as exchange:
            while search.found is None and not search.is_over(self._host.clock_us()):
                await self._drive(exchange)
        return search.found

    async def _leave(self) -> w.Done:
        if await self._host.leave():
            return w.Done()
        raise ElfError(
            "the mesh does not have all lines of this agent yet; the agent continues to leave, and ends when it has them"
        )

    # Cores that send requests.

    def _receive(self, source: NodeId, message: Message) -> None:
        if isinstance(message, EstimateRequest):
            self._host.estimates.take(source, message)
            return
        if isinstance(message, AlertTest):
            if self._host.sinks is not None:
                self._host.sinks.test_alert(source, message)
            return
        exchange = self._exchanges.get(message.number)  # type: ignore[attr-defined]
        if exchange is not None:
            try:
                exchange.core.step(source, message, self._host.clock_us())
            except Exception as error:  # a bug in a core ends its command only
                exchange.failure = error
            exchange.news.set()

    def _served_anew(self, job: JobId) -> None:
        for exchange in self._exchanges.values():
            if isinstance(exchange.core, Watcher) and exchange.core.job == job:
                exchange.core.renew()
                exchange.news.set()

    @contextmanager
    def _exchange(self, number: int, core: Asking) -> Iterator[Exchange]:
        exchange = self._exchanges[number] = Exchange(core)
        try:
            yield exchange
        finally:
            del self._exchanges[number]

    async def _ask_all(self, number: int, survey: Survey[Any]) -> None:
        with self._exchange(number, survey) as exchange:
            while not survey.is_done:
                await self._drive(exchange)

    async def _drive(self, exchange: Exchange) -> None:
        """Perform what is due for a core, then wait for a message to it or for its deadline."""
        if isinstance(exchange.failure, OSError):
            raise ElfError(
                f"a large window cannot be stored: {exchange.failure.strerror}; free space on the agent's disk"
            ) from exchange.failure
        if exchange.failure is not None:
            raise exchange.failure
        now = self._host.clock_us()
        effects = exchange.core.tick(now)
        if effects:
            self._host.perform(self._host.node.carry(effects, now))
        deadline = exchange.core.deadline
        wait_s = LOOK_S if deadline is None else min(max(0.0, (deadline - now) / 1e6), LOOK_S)
        await wait_for_news(exchange.news, wait_s)
        exchange.news.clear()

    # The directory.

    async def _wait_for_job(self, name: str) -> None:
        """Wait a moment for a job that may have been started at another agent."""
        for _ in range(round(RUMOR_S / LOOK_FOR_JOB_S)):
            if self._directory.get("job", job_id(name)) is not None:
                return
            await asyncio.sleep(LOOK_FOR_JOB_S)

    def _spec(self, name: str) -> JobSpec:
        """Raises UsageError."""
        item = self._directory.get("job", job_id(name))
        if item is None:
            raise unknown_job(name, self._running())
        return decode_job(item)

    def _running(self) -> tuple[str, ...]:
        running = (spec.name for spec in self.jobs() if not spec.stopped and spec.trial is None)
        return tuple(sorted(running)[:NAMES_MAX])

    def _has_ended(self, spec: JobSpec) -> bool:
        return JobItems(self._directory, spec.id).has_ended(spec, self._host.clock_us())

    @property
    def _directory(self) -> Directory:
        return self._host.node.directory

    def jobs(self) -> list[JobSpec]:
        """All jobs, including stopped ones. O(items)."""
        return [decode_job(item) for item in self._directory.items("job")]

    def adverts(self) -> list[tuple[NodeId, AgentAdvert]]:
        """The adverts of all agents. O(items)."""
        return [(item.name, decode_agent(item)) for item in self._directory.items("agent")]


async def wait_for_news(news: asyncio.Event, wait_s: float) -> None:
    """Wait for news, at most `wait_s`. A cancellation always ends it: `asyncio.wait_for` of Python 3.11 loses one that comes at
    the same moment as the news, and then a stopping agent would not end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await news.wait()
