"""The sinks that an agent serves to the jobs of its mesh: it stores masters' windows in lakes, or writes them on its standard
output (`storing`), or delivers them to brokers and other receivers (`outlets`), and records them in ledgers.

Each message of a master names one sink, and is answered by that sink alone (rule Alone*). A master of before names none: it is
answered only where the job has one sink here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from elf.agent.config.specs import SinkSection
from elf.agent.host.compaction import Care, Compaction
from elf.agent.host.only_job import NewSink
from elf.agent.host.sinks.alert_outlets import AlertOutlets
from elf.agent.host.sinks.outlets import Outlet, Outlets, alert_carrier
from elf.agent.host.sinks.storing import Storing
from elf.agent.host.sinks.streams import Streams
from elf.agent.host.sinks.surroundings import Host, ToSink, carry
from elf.errors import PeerError
from elf.jobmaster.directory.job_spec import JobSpec, decode_job
from elf.jobmaster.directory.settings import sinks_of
from elf.jobmaster.directory.versions import latest_revision_us
from elf.jobmaster.windows.result import Window
from elf.sinks.lake.parquet import ParquetSink
from elf.srt.messages.effects import Send
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Message
from elf.srt.messages.patterns import is_named
from elf.srt.messages.reports import PROBLEM_CHARS_MAX, AlertTest, AlertTestReport, Failing, SinkState
from elf.srt.messages.results import AlertPut, AlertReply, LedgerRequest, Put, PutPart

COMPACT_LOOK_S = 60.0
Records = Mapping[tuple[str, bytes], Sequence[Any]]


FOREVER_US = 1 << 60


class SinkHost:
    """All sinks of an agent. Runs on the loop of its host."""

    def __init__(
        self,
        sections: Sequence[SinkSection],
        host: Host,
        records: Records,
        folder: Path,
        new_sink: NewSink | None = None,
    ) -> None:
        """folder: for parts of windows, unless a lake has one. new_sink: that of an `OnlyJob`, of which a lake has nothing from
        before. Raises ElfError without pyarrow, UsageError where a lake's folder cannot be made."""
        self._host = host
        self._patterns = {each.name: each.jobs for each in sections if each.jobs}
        kept = {key: list(known) for (kind, key), known in records.items() if kind == "ledger"}
        lakes = {each.name: ParquetSink(each.parquet) for each in sections if each.parquet is not None}
        forms = {each.name: each.console for each in sections if each.console is not None}
        about = host, kept
        self._stores = {
            name: Storing(
                {name: lake}, Streams({}), *about, lake.directory, self._compact, adopts=new_sink is None
            )
            for name, lake in lakes.items()
        }
        if forms:
            opens = {each.name for each in sections if each.shows_open}
            streams = Storing({}, Streams(forms, opens, new_sink), *about, folder, self._compact)
            self._stores |= dict.fromkeys(forms, streams)
        self._outlets = Outlets(sections, host.node.name, *about, folder)
        self.alerts = AlertOutlets(
            sections,
            lambda section: alert_carrier(section, host.node.name),
            host,
            kept,
            self._alert_delivered,
        )
        kinds = [each for each in sections if each.parquet is not None]
        cares = [
            Care(each.parquet, each.keep, each.compact_after, each.coarsen or ())
            for each in kinds
            if each.parquet
        ]
        self._compaction = Compaction(cares, time.monotonic(), late_us=self._late_us)
        self._compact_at = 0.0
        self._test: asyncio.Task[None] | None = None
        host.node.sink = self.take

    def take(self, source: NodeId, message: Message) -> None:
        """Take a master's message to one of the sinks here."""
        if not isinstance(message, LedgerRequest | Put | PutPart | AlertPut):
            return
        item = self._host.node.directory.get("job", message.job)
        if item is None:
            return
        spec = decode_job(item)
        if isinstance(message, AlertPut):
            self.alerts.take(source, message, spec)
            return
        name = message.sink or self._only(spec)
        sink = self._sink(name)
        if sink is None or not self._takes(name, spec):
            return
        sink.take(source, message if message.sink else _named(message, name), spec)

    def test_alert(self, source: NodeId, test: AlertTest) -> None:
        """Send a test notification to a sink here, and report; while one is under way no other begins."""
        item = self._host.node.directory.get("job", test.job)
        if item is None or (self._test is not None and not self._test.done()):
            return
        work = self.alerts.test(decode_job(item), test)
        self._test = asyncio.get_running_loop().create_task(self._tested(source, test.number, work))

    async def _tested(self, source: NodeId, number: int, work: Coroutine[Any, Any, str]) -> None:
        report = AlertTestReport(number, (await work)[:PROBLEM_CHARS_MAX])
        carry(self._host, [Send(source, report)], None)

    def _alert_delivered(self, source: NodeId, reply: AlertReply) -> None:
        """A sink has delivered changes of alerts: answer the master, after the effects of this message."""
        asyncio.get_running_loop().call_soon(carry, self._host, [Send(source, reply)], None)

    async def show(self, name: str, window: Window) -> None:
        """See `Storing.show`."""
        await self._stores[name].show(name, window)

    def _sink(self, name: str) -> Storing | Outlet | None:
        return self._stores.get(name) or self._outlets.get(name)

    def _takes(self, name: str, spec: JobSpec) -> bool:
        """Whether the job names that sink, or did, or the sink takes it anyway."""
        patterns = self._patterns.get(name)
        is_taken = patterns is not None and spec.trial is None and is_named(spec.name, patterns)
        return is_taken or name in sinks_of(spec.remembered)

    def _only(self, spec: JobSpec) -> str:
        """The name of the job's only sink here; "" if it has several, or none."""
        names = [name for name in (*self._stores, *self._outlets.names) if self._takes(name, spec)]
        return names[0] if len(names) == 1 else ""

    async def close(self) -> None:
        """Stop. Masters repeat messages that are not durable yet, for the next life."""
        for store in self._each:
            await store.close()
        if self._test is not None:
            self._test.cancel()
            await asyncio.gather(self._test, return_exceptions=True)
        await self._outlets.close()
        await self.alerts.close()

    # What operators see.

    @property
    def _each(self) -> list[Storing]:
        return list(dict.fromkeys(self._stores.values()))

    @property
    def queued_bytes(self) -> int:
        """Bytes of windows that wait here."""
        return sum(store.queued_bytes for store in self._each) + self._outlets.queued_bytes

    @property
    def stored(self) -> int:
        """Windows stored since the start."""
        return sum(store.stored for store in self._each)

    @property
    def is_refused(self) -> bool:
        """Whether writes to a lake or to standard output fail at present."""
        return any(store.is_refused for store in self._each)

    @property
    def refusal(self) -> str:
        """Why."""
        return "; ".join(store.refusal for store in self._each if store.refusal)

    def failing(self, now: int) -> tuple[Failing, ...]:
        """Jobs whose windows could not be stored lately."""
        return tuple(each for store in self._each for each in store.failing(now))

    def delivering(self, now: int) -> tuple[SinkState, ...]:
        """All sinks."""
        return (*(state for store in self._each for state in store.states(now)), *self._outlets.states(now))

    def families(self) -> Iterator[Any]:
        """Gauges of results for the agent's metrics page."""
        return self._outlets.families()

    def _late_us(self) -> int:
        """How long a window of any job may be revised; for ever, where a job's plan is of a later version of elf."""
        specs = map(decode_job, self._host.node.directory.items("job"))
        try:
            return max(map(latest_revision_us, specs), default=0)
        except PeerError:
            return FOREVER_US

    def _compact(self) -> None:
        moment = time.monotonic()
        if moment >= self._compact_at:
            self._compact_at = moment + COMPACT_LOOK_S
            for failure in self._compaction.look(moment, time.time_ns() // 1_000):
                self._host.notices(failure)


def _named(message: ToSink, name: str) -> ToSink:
    return replace(message, sinks=(name,)) if isinstance(message, Put) else replace(message, sink=name)
