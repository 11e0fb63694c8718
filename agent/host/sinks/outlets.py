"""The sinks of an agent that deliver each window as a message: the connection of each, and its ledgers.

    Put -> dispatch -> (mark on disk) -> carrier: deliver ... acknowledged -> ledger -> disk -> PutReply

A window is in the ledger only once the receiver has acknowledged it, and until then its master keeps it: the master's log is
the queue on disk. So an agent that is killed in between gets the same window again, in the same revision, and delivers it again;
and a receiver that is down costs this agent `dispatch.BYTES_MAX` of memory and no disk. Each sink has a task of its own and waits
for no other.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from elf.agent.config.specs import SinkSection
from elf.agent.host.sinks.lake_ledgers import key_of
from elf.agent.host.sinks.surroundings import Host, Parts, Records, ToSink, carry, ended
from elf.errors import PeerError
from elf.jobmaster.delivery.chunks import put_bytes
from elf.jobmaster.delivery.dispatch import AT_ONCE, Delivery, Dispatch
from elf.jobmaster.delivery.ledger import Ledger
from elf.jobmaster.delivery.shown import check_rows, columns_of, key_columns, window_of
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.log.schedule import plan_of
from elf.jobmaster.plan.plan import Plan
from elf.sinks.console.cells import unique_names
from elf.sinks.console.jsonlines import window_object
from elf.sinks.delivery.contract import (
    Carrier,
    DeclinedError,
    DeliveryError,
    RefusedError,
    Take,
    WindowMessage,
)
from elf.srt.messages.effects import Write
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import NO_BALLOT
from elf.srt.messages.reports import SinkState
from elf.srt.messages.results import WITHDRAWN, LedgerRequest, Put, PutPart

SMALL_BYTES = 64 << 10
"""Windows up to this size become text on the loop, within milliseconds; larger ones in a thread."""
PROBLEM_CHARS = 200


class _Load(NamedTuple):
    source: NodeId
    put: Put
    spec: JobSpec


class Outlets:
    """All sinks of an agent that deliver messages, by name."""

    def __init__(
        self, sections: Sequence[SinkSection], agent: str, host: Host, records: Records, folder: Path
    ) -> None:
        """folder: for parts of windows. Raises UsageError where a library is missing."""

        async def command(message: bytes) -> dict[str, Any]:
            return await host.signed_messages.take(message)

        self._each = {
            each.name: Outlet(each.name, carrier, host, records, folder)
            for each in sections
            if (carrier := _carrier(each, agent, command)) is not None
        }

    @property
    def names(self) -> list[str]:
        return list(self._each)

    def get(self, name: str) -> Outlet | None:
        return self._each.get(name)

    @property
    def queued_bytes(self) -> int:
        """Bytes of windows that wait here."""
        return sum(each.dispatch.nbytes for each in self._each.values())

    def states(self, now: int) -> tuple[SinkState, ...]:
        return tuple(each.state(now) for each in self._each.values())

    def families(self) -> Iterator[Any]:
        """The gauges of those that have some, as of the agent's metrics."""
        return chain.from_iterable(each.families() for each in self._each.values())

    async def close(self) -> None:
        for each in self._each.values():
            await each.close()


def _carrier(section: SinkSection, agent: str, command: Take | None = None) -> Carrier | None:
    """None for a sink that is no receiver of messages. command: does what a message on a command topic asks for. Raises
    UsageError where a library is missing. An agent imports only the kinds that it has."""
    if section.mqtt is not None:
        from elf.sinks.delivery.mqtt import MqttCarrier

        return MqttCarrier(section.mqtt, agent, section.name, command if section.mqtt.commands else None)
    if section.webhook is not None:
        from elf.sinks.delivery.webhook import WebhookCarrier

        return WebhookCarrier(section.webhook)
    if section.alertmanager is not None:
        from elf.sinks.delivery.alertmanager import NoWindows

        return NoWindows()
    if section.jsonl is not None:
        from elf.sinks.delivery.jsonl import JsonlCarrier

        return JsonlCarrier(section.jsonl)
    if section.results is not None:
        from elf.sinks.results.carrier import ResultsCarrier

        return ResultsCarrier(section.results)
    if section.prometheus is not None:
        from elf.sinks.delivery.prometheus import RemoteWriteCarrier, ScrapeCarrier

        write = section.prometheus.write
        return ScrapeCarrier() if write is None else RemoteWriteCarrier(write, section.prometheus.credentials)
    if section.command is not None:
        from elf.sinks.delivery.command import CommandCarrier

        return CommandCarrier(section.command)
    return None


def alert_carrier(section: SinkSection, agent: str) -> Carrier | None:
    """The connection of a sink for alerts; None for a sink that takes none."""
    if section.alertmanager is not None:
        from elf.sinks.delivery.alertmanager import AlertmanagerCarrier

        return AlertmanagerCarrier(section.alertmanager)
    if section.mqtt is not None:
        from elf.sinks.delivery.mqtt import MqttCarrier

        return MqttCarrier(section.mqtt, agent, f"{section.name}\0alerts")
    if section.results is not None:
        return None
    return _carrier(section, agent)


class Outlet:
    """One sink."""

    def __init__(self, name: str, carrier: Carrier, host: Host, records: Records, folder: Path) -> None:
        self.name, self.dispatch = name, Dispatch(at_once=getattr(carrier, "at_once", AT_ONCE))
        self._carrier, self._host, self._records = carrier, host, records
        self._parts = Parts(host, folder)
        self._ledgers: dict[JobId, Ledger] = {}
        self._news = asyncio.Event()
        self._said = ""
        self._has_declined = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def ledger(self, job: JobId) -> Ledger:
        """The job's ledger, and its mark, from disk. O(entries) the first time."""
        if job not in self._ledgers:
            ledger = self._ledgers[job] = Ledger(job, key_of(job, self.name))
            ledger.restore(self._records.get(key_of(job, self.name), ()))
            for _, entries in self._records.get(self._mark_key(job), ()):
                for (_, start), revision, _, _ in entries:
                    self.dispatch.marks[job] = (start, revision)
        return self._ledgers[job]

    def take(self, source: NodeId, message: ToSink, spec: JobSpec) -> None:
        """Deliver a window that the ledger lacks; answer all else at once."""
        ledger = self.ledger(message.job)
        if isinstance(message, LedgerRequest) or not ledger.wants(message):
            carry(self._host, ledger.step(source, message, self._host.clock_us()), self)
            return
        if isinstance(message, PutPart):
            try:
                put = self._parts.take(source, message)
            except OSError:  # it was reported, and comes again
                return
        else:
            put = message
        if put is None or put.status == "open":
            return
        load, now = _Load(source, put, spec), self._host.clock_us()
        delivery = Delivery(put.job, put.version, put.start, put.revision, put_bytes(put), load, now)
        if self.dispatch.offer(delivery):
            self._news.set()

    def families(self) -> Iterable[Any]:
        """What the carrier shows on the agent's metrics page."""
        shown: Callable[[], Iterable[Any]] = getattr(self._carrier, "families", tuple)
        return shown()

    def state(self, now: int) -> SinkState:
        """What operators see."""
        dispatch, oldest = self.dispatch, self.dispatch.oldest
        age = 0 if oldest is None else max(0, now - oldest)
        counts = dispatch.delivered, dispatch.refusals, dispatch.failures
        return SinkState(self.name, len(dispatch), age, *counts, dispatch.problem[:PROBLEM_CHARS])

    async def close(self) -> None:
        """Stop. What was not acknowledged is delivered by the next life."""
        await ended(self._task)
        await self._carrier.close()

    async def _run(self) -> None:
        while True:
            after_s = 0.0
            try:
                await self._carrier.connect()
                self._connected()
                await self._serve()
            except DeliveryError as error:
                self._failed(str(error))
                after_s = error.after_s
            except Exception as error:  # a bug here or in a library: this sink tries again, all others go on
                traceback.print_exception(error)
                self._failed(f"{type(error).__name__}: {error}")
            await self._carrier.close()
            await asyncio.sleep(max(self.dispatch.pause_us / 1e6, after_s))

    async def _serve(self) -> None:
        """Deliver until the connection ends. Raises DeliveryError."""
        gone = asyncio.ensure_future(self._carrier.gone())
        flying: dict[asyncio.Future[None], Delivery] = {}
        try:
            while True:
                self._news.clear()
                for delivery, message in await self._begin():
                    flying[asyncio.ensure_future(self._carrier.deliver(message))] = delivery
                news = asyncio.ensure_future(self._news.wait())
                waits: list[asyncio.Future[Any]] = [gone, news, *flying]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                for each in [each for each in flying if each.done()]:
                    self._ended(flying.pop(each), each)
                if gone.done():
                    gone.result()
        finally:
            for each in (gone, *flying):
                each.cancel()
            await asyncio.gather(gone, *flying, return_exceptions=True)

    async def _begin(self) -> list[tuple[Delivery, WindowMessage]]:
        """The messages to send now, when the marks of their jobs are on disk."""
        begun, made = self.dispatch.next(), []
        for delivery in begun:
            try:
                made.append((delivery, await self._text(delivery)))
            except Exception as error:
                if not isinstance(error, PeerError):
                    traceback.print_exception(error)
                self._refused(delivery, f"job {delivery.load.spec.name}: a window has no text ({error})")
        for job in self.dispatch.raise_marks([delivery for delivery, _ in made]):
            await self._record(job)
        return [
            (each, _message(each, body, self.dispatch.is_newest(each), self._status(each)))
            for each, body in made
        ]

    async def _text(self, delivery: Delivery) -> bytes:
        """Raises PeerError for a window that cannot be shown."""
        put, spec = delivery.load.put, delivery.load.spec
        check_rows(put)
        plan = _plan(spec, put.version)
        if plan is None and put.status != WITHDRAWN:
            raise PeerError("its version is not known any more")
        status = self._status(delivery)
        window = window_of(spec.name, _with_status(put, status), plan)
        if delivery.nbytes <= SMALL_BYTES:
            return window_object(window)
        return await asyncio.get_running_loop().run_in_executor(None, window_object, window)

    def _status(self, delivery: Delivery) -> str:
        return self.ledger(delivery.job).status_of(delivery.load.put)

    async def _record(self, job: JobId) -> None:
        """Return when the job's mark is on disk."""
        start, revision = self.dispatch.marks[job]
        durable = asyncio.Event()
        record = (NO_BALLOT, ((("", start), revision, 0, False),))
        write = Write(("ledger", self._mark_key(job)), record, replace=True)
        self._host.store.write(write, durable.set)
        await durable.wait()

    def _mark_key(self, job: JobId) -> bytes:
        return key_of(job, f"{self.name}\0newest")  # no sink has such a name

    def _ended(self, delivery: Delivery, outcome: asyncio.Future[None]) -> None:
        """Raises DeliveryError."""
        try:
            outcome.result()
        except RefusedError as error:
            self._refused(delivery, str(error))
            return
        except DeclinedError as error:
            self._declined(delivery, str(error))
        else:
            self.dispatch.acknowledged(delivery)
        source, put, _ = delivery.load
        ledger = self.ledger(delivery.job)
        effects = ledger.step(source, put, self._host.clock_us())
        ledger.take_accepted()
        self._parts.forget(put)
        carry(self._host, effects, self)

    # Notices: each problem once.

    def _connected(self) -> None:
        if self._said:
            self._host.notices(f"sink {self.name}: is connected again")
            self._said = ""

    def _failed(self, problem: str) -> None:
        self.dispatch.failed(problem)
        self._say(f"{problem}; its windows wait at their masters, and it is tried again")

    def _refused(self, delivery: Delivery, problem: str) -> None:
        self.dispatch.refused(delivery, problem)
        self._say(f"{problem}; the window is offered again by its master")

    def _declined(self, delivery: Delivery, problem: str) -> None:
        self.dispatch.declined(delivery)
        if not self._has_declined:
            self._host.notices(f"sink {self.name}: {problem}; such windows are counted as refused")
        self._has_declined = True

    def _say(self, text: str) -> None:
        if text != self._said:
            self._host.notices(f"sink {self.name}: {text}")
        self._said = text


def _with_status(put: Put, status: str) -> Put:
    return put if status == put.status else replace(put, status=status)


def _message(delivery: Delivery, body: bytes, is_newest: bool, status: str) -> WindowMessage:
    put, spec = delivery.load.put, delivery.load.spec
    epoch, maker, n = put.revision
    revision = f"{epoch}.{int.from_bytes(maker):048x}.{n}"  # as in `_elf`: its parts sort in order
    about = "\0".join((spec.name, put.version, str(put.start), revision))
    identifier = blake2b(about.encode(errors="surrogateescape"), digest_size=16).hexdigest()
    # Until the next window replaces it, and as long as it can still be revised.
    fresh_s = (spec.lateness_us + 2 * max(0, put.end - put.start)) // 1_000_000 + 60
    keep_s = spec.keep_us // 1_000_000 + fresh_s
    digest = f"{put.digest:016x}"
    return WindowMessage(
        identifier,
        spec.name,
        put.version,
        status,
        revision,
        digest,
        body,
        is_newest,
        keep_s,
        _keys(spec, put.version),
        put.end,
        fresh_s,
        start_us=put.start,
        columns=_columns(spec, put.version),
    )


def _keys(spec: JobSpec, version: str) -> tuple[str, ...]:
    """The columns that no aggregate decides, as they are named in the text of a window."""
    plan = _plan(spec, version)
    return key_columns(plan) if plan is not None else ()


def _columns(spec: JobSpec, version: str) -> tuple[tuple[str, str], ...]:
    """(name, Spark type) of the columns, as they are named in the text of a window."""
    plan = _plan(spec, version)
    infos = columns_of(plan) if plan is not None else ()
    return tuple(zip(unique_names(infos), (each.type for each in infos), strict=True))


def _plan(spec: JobSpec, version: str) -> Plan | None:
    return next((plan_of(each.plan) for each in spec.whole if each.digest == version), None)
