"""Alerts of the jobs of a mesh, delivered to the sinks of this agent.

    AlertPut -> (cursor on disk: delivered already?) -> carrier: deliver, one after another -> cursor -> disk -> AlertReply

Each sink that has ever got an alert has a connection of its own for alerts and a task, so windows that wait do not delay an
alert, nor the other way round. A change is in the cursor only once the receiver has acknowledged it: an agent that is killed in
between delivers it again, with the same id. One that the receiver refuses `REFUSALS_MAX` times is given up, and said."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from elf.agent.config.specs import SinkSection
from elf.agent.host.sinks.lake_ledgers import key_of
from elf.agent.host.sinks.surroundings import ended
from elf.jobmaster.alerts.book import Notification, Transition, identifier, labels_of
from elf.jobmaster.alerts.template import time_text
from elf.jobmaster.directory.job_spec import JobSpec
from elf.sinks.delivery.contract import Carrier, DeliveryError, RefusedError, WindowMessage
from elf.srt.messages.effects import Write
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import NO_BALLOT, Ballot
from elf.srt.messages.reports import AlertTest
from elf.srt.messages.results import AlertPut, AlertReply

REFUSALS_MAX = 3
PAUSE_S, PAUSE_S_MAX = 1.0, 60.0
WAITING_MAX = 256
"""Messages of masters that wait for one sink: 12 MiB at most. Others are dropped, and repeated by their masters."""
KEEP_S = 3600
"""How long a broker keeps a change of an alert for a client that is away."""

Cursor = tuple[Ballot, int]
"""(ballot under which the log began, number of the last delivered change), compared in order."""
Reply = Callable[[NodeId, AlertReply], None]
Records = Mapping[bytes, Sequence[Any]]
_decoder = msgspec.msgpack.Decoder(tuple[Notification, ...])


class _Work(msgspec.Struct):
    """A message of a master, of which the sink has delivered the first `done` changes. refusals: of the next one."""

    source: NodeId
    put: AlertPut
    spec: JobSpec
    notifications: tuple[Notification, ...]
    done: int = 0
    refusals: int = 0


class AlertOutlets:
    """All sinks of an agent that take alerts, by name. `carrier`: makes the connection of a sink, None for one that takes
    none."""

    def __init__(
        self,
        sections: Sequence[SinkSection],
        carrier: Callable[[SinkSection], Carrier | None],
        host: Any,
        records: Records,
        reply: Reply,
    ) -> None:
        self._sections = {each.name: each for each in sections}
        self._make, self._host, self._records, self._reply = carrier, host, records, reply
        self._each: dict[str, AlertOutlet] = {}
        self._unable: set[str] = set()

    def take(self, source: NodeId, put: AlertPut, spec: JobSpec) -> None:
        """Deliver what the sink lacks."""
        outlet = self._outlet(put.sink)
        if outlet is not None:
            outlet.take(source, put, spec)

    def _outlet(self, name: str) -> AlertOutlet | None:
        section = self._sections.get(name)
        if section is None or name in self._unable:
            return None
        if name not in self._each:
            carrier = self._make(section)
            if carrier is None:
                self._unable.add(name)
                self._host.notices(
                    f"sink {name}: alerts name it, and it takes none: name one of the kind alertmanager, webhook, mqtt, "
                    "jsonl or exec"
                )
                return None
            repeats = section.alertmanager is not None
            self._each[name] = AlertOutlet(name, carrier, self._host, self._records, self._reply, repeats)
        return self._each[name]

    async def test(self, spec: JobSpec, test: AlertTest) -> str:
        """Deliver one notification now that says it is a test. Returns "", or why it could not be."""
        section = self._sections.get(test.sink)
        carrier = self._make(section) if section is not None else None
        alert = next((each for each in spec.alerts if each.name == test.alert), None)
        if carrier is None or alert is None:
            return "this sink takes no alerts" if carrier is None else f"the job has no alert {test.alert}"
        now_us = self._host.clock_us()
        labels = tuple(sorted({**dict(alert.labels), "test": "true"}.items()))
        text = f"a test of the alert {alert.name} of job {spec.name}: nothing is wrong"
        change = Transition(alert.name, (), "firing", now_us, now_us, text, labels)
        try:
            await carrier.connect()
            await carrier.deliver(message_of(spec, change))
        except (DeliveryError, RefusedError) as error:
            return str(error)
        finally:
            await carrier.close()
        return ""

    async def close(self) -> None:
        for each in self._each.values():
            await each.close()


class AlertOutlet:
    """One sink's alerts."""

    def __init__(
        self, name: str, carrier: Carrier, host: Any, records: Records, reply: Reply, repeats: bool
    ) -> None:
        self.name, self.repeats = name, repeats
        self._carrier, self._host, self._records, self._reply = carrier, host, records, reply
        self._cursors: dict[JobId, Cursor] = {}
        self._served: dict[JobId, Ballot] = {}
        self._work: dict[tuple[JobId, bool], _Work] = {}
        self._news = asyncio.Event()
        self._said = ""
        self._pause_s = PAUSE_S
        self._task = asyncio.get_running_loop().create_task(self._run())

    def _key(self, job: JobId) -> bytes:
        return key_of(job, f"{self.name}\0alerts")  # no sink has such a name

    def cursor(self, job: JobId) -> Cursor:
        if job not in self._cursors:
            self._cursors[job] = (NO_BALLOT, 0)
            for _, entries in self._records.get(self._key(job), ()):
                for _, (epoch, maker, number), _, _ in entries:
                    self._cursors[job] = (epoch, maker), number
        return self._cursors[job]

    def take(self, source: NodeId, put: AlertPut, spec: JobSpec) -> None:
        """Deliver a master's changes, unless a later master is served, or they are delivered already or under way."""
        if put.ballot < self._served.get(put.job, NO_BALLOT):
            return
        self._served[put.job] = put.ballot
        log, number = self.cursor(put.job)
        if put.log < log:
            return
        done = number if put.log == log else 0
        try:
            notifications = _decoder.decode(put.payload)
        except msgspec.MsgspecError:
            return  # no master of this version of elf sends it
        key = (put.job, put.is_firing)
        if put.is_firing and not self.repeats:
            return
        if not (put.is_firing or notifications) and put.number > done:
            # Rule Moving: another node with this sink has delivered so far.
            self._advance(source, put, put.number)
            return
        if not put.is_firing and (not notifications or put.number <= done):
            self._reply(source, AlertReply(put.job, self.name, put.log, done, self.repeats))
            return
        known = self._work.get(key)
        if known is not None and (known.put.ballot, known.put.number) >= (put.ballot, put.number):
            return
        if known is None and len(self._work) >= WAITING_MAX:
            return
        rest = notifications if put.is_firing else tuple(each for each in notifications if each.number > done)
        self._work[key] = _Work(source, put, spec, rest)
        self._news.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._news.wait()
                await self._carrier.connect()
                self._connected()
                await self._serve()
            except DeliveryError as error:
                await self._failed(str(error), error.after_s)
            except Exception as error:  # a bug here or in a library: this sink tries again, all others go on
                traceback.print_exception(error)
                await self._failed(f"{type(error).__name__}: {error}", 0.0)

    async def _serve(self) -> None:
        """Deliver all that waits, until a connection ends. Raises DeliveryError."""
        while True:
            while self._work:
                key = next(iter(self._work))
                work = self._work[key]
                while work.done < len(work.notifications):
                    await self._deliver(work)
                if self._work.get(key) is work:
                    del self._work[key]
            self._news.clear()
            gone = asyncio.ensure_future(self._carrier.gone())
            news = asyncio.ensure_future(self._news.wait())
            try:
                await asyncio.wait([gone, news], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in (gone, news):
                    each.cancel()
                await asyncio.gather(gone, news, return_exceptions=True)
            if not self._news.is_set():
                return  # an idle connection that ends is made again when there is news

    async def _deliver(self, work: _Work) -> None:
        """The next change of a message. Raises DeliveryError."""
        number, change = work.notifications[work.done].number, work.notifications[work.done].change
        try:
            await self._carrier.deliver(message_of(work.spec, change))
        except RefusedError as error:
            work.refusals += 1
            self._say(f"alert {change.alert} of job {work.spec.name}: {error}")
            if work.refusals < REFUSALS_MAX:
                await asyncio.sleep(PAUSE_S)
                return
        self._pause_s = PAUSE_S
        work.done, work.refusals = work.done + 1, 0
        if not work.put.is_firing:
            # Not only behind the message: an agent that is killed would repeat all of it.
            self._advance(work.source, work.put, number)

    def _advance(self, source: NodeId, put: AlertPut, number: int) -> None:
        """Set the cursor behind that change; answer the master when that is on disk."""
        self._cursors[put.job] = (put.log, number)
        record = (put.ballot, ((("", 0), (*put.log, number), 0, False),))
        reply = AlertReply(put.job, self.name, put.log, number, self.repeats)
        write = Write(("ledger", self._key(put.job)), record, replace=True)
        self._host.store.write(write, lambda: self._reply(source, reply))

    def _connected(self) -> None:
        if self._said:
            self._host.notices(f"sink {self.name}: is connected again for alerts")
            self._said = ""

    async def _failed(self, problem: str, after_s: float) -> None:
        self._say(f"{problem}; alerts wait, and it is tried again")
        await self._carrier.close()
        await asyncio.sleep(max(self._pause_s, after_s))
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def _say(self, text: str) -> None:
        if text != self._said:
            self._host.notices(f"sink {self.name}: {text}")
        self._said = text

    async def close(self) -> None:
        """Stop. What was not acknowledged is delivered by the next life."""
        await ended(self._task)
        await self._carrier.close()


def event_of(spec: JobSpec, change: Transition) -> dict[str, Any]:
    """A change of an alert as all sinks get it, in JSON."""
    return {
        "id": identifier(spec.id, change),
        "job": spec.name,
        "alert": change.alert,
        "state": change.state,
        "keys": dict(change.keys),
        "labels": dict(labels_of(change, spec.name)),
        "text": change.text,
        "since": time_text(change.since_us),
        "at": time_text(change.at_us),
    }


def message_of(spec: JobSpec, change: Transition) -> WindowMessage:
    event = event_of(spec, change)
    about = event["id"], spec.name, change.alert, change.state, str(change.at_us), "0"
    return WindowMessage(*about, msgspec.json.encode(event), False, KEEP_S, kind="alert")
