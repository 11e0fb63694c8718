"""An agent's metrics for Prometheus and its health: `GET /metrics`, `GET /healthz`, and nothing else.

A server for two pages on asyncio's streams: a bounded request line and headers, one answer, and the connection ends. Figures are
read at each request; nothing is gathered in between.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from elf.agent.host.job_costs import JobCosts
from elf.agent.node.mesh_node import MeshNode
from elf.jobmaster.delivery.outbox import Lag
from elf.srt.messages.addresses import Address
from elf.srt.messages.reports import Failing, SinkState

REQUEST_BYTES_MAX = 8 << 10
REQUEST_S = 5.0
CONNECTIONS_MAX = 16
TEXT = "text/plain; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
Sample = tuple[Labels, float]
Family = tuple[str, str, list[Sample]]
"""(name, help, samples). A counter's name ends with "_total"; all others are gauges."""


class Host(Protocol):
    """The parts of the host that the figures are read from. See `elf.agent.host.host.Host`."""

    node: MeshNode
    transport: Any
    sources: Any
    config: Any
    budget: Any
    memory: Any
    store: Any
    notice_log: Any
    sinks: Any
    notary: Any
    single_instance: Any
    costs: JobCosts
    started_s: float
    peers: Any

    def failing(self) -> Sequence[Failing]: ...

    def clock_us(self) -> int: ...


class MetricsServer:
    """On the running loop, at `address`."""

    def __init__(self, address: Address, metrics: Callable[[], str], health: Callable[[], str]) -> None:
        """health: "" if the agent is healthy, else a line for each problem."""
        self._address, self._metrics, self._health = address, metrics, health
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_server(
            self._answer, self._address.host, self._address.port, limit=REQUEST_BYTES_MAX
        )

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._page(head))
                async with asyncio.timeout(REQUEST_S):
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # no request, no answer
        finally:
            self._open -= 1
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def _page(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return page("400 Bad Request", "not a request of HTTP/1\n")
        if words[0] not in (b"GET", b"HEAD"):
            return page("405 Method Not Allowed", "only GET\n")
        try:
            return self._answer_of(words)
        except Exception as error:
            traceback.print_exception(error)  # a bug of ours: logged, and no reason to end
            return page("500 Internal Server Error", f"{type(error).__name__}: {error}\n")

    def _answer_of(self, words: list[bytes]) -> bytes:
        path = words[1].split(b"?")[0]
        if path == b"/metrics":
            made = page("200 OK", self._metrics(), PROMETHEUS)
        elif path == b"/healthz":
            trouble = self._health()
            made = page("503 Service Unavailable", f"{trouble}\n") if trouble else page("200 OK", "ok\n")
        else:
            made = page("404 Not Found", "there are /metrics and /healthz\n")
        return made[: made.index(b"\r\n\r\n") + 4] if words[0] == b"HEAD" else made


def page(status: str, text: str, kind: str = TEXT) -> bytes:
    """An answer of HTTP/1.1, whole."""
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def exposition(families: Iterator[Family]) -> str:
    """Prometheus' text format, version 0.0.4. Families without a sample are left out."""
    lines: list[str] = []
    for name, description, samples in families:
        if samples:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    text = value.encode("utf-8", "replace").decode()
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


def health(host: Host) -> str:
    """ "" if the agent is healthy, else a line for each problem."""
    if host.single_instance.rival is not None:
        return "another process with this agent's key is running"
    if not host.node.overlay.joined:
        return "not in the mesh yet: no seed has answered"
    if host.store.is_refused or host.node.is_aside:
        return "disk writes fail"
    if host.sinks is not None and host.sinks.is_refused:
        return "writes to a sink fail"
    troubles = [f"{host.config.agent.name}: {each}" for each in unparsed_sources(host.sources)]
    return "\n".join(troubles)


def unparsed_sources(sources: Mapping[str, Any]) -> list[str]:
    """A problem for each source that rejects most of its lines, with a sample of these."""
    return [source.unparsed.trouble for source in sources.values() if source.unparsed.trouble]


def metrics(host: Host, version: str) -> str:
    """All of an agent's figures. O(jobs + neighbours + files)."""
    return exposition(_families(host, version))


def _families(host: Host, version: str) -> Iterator[Family]:
    yield "elf_build_info", "The version that runs.", [({"version": version}, 1)]
    yield "elf_start_time_seconds", "When this life began, since 1970.", [({}, host.started_s)]
    yield from _sources(host)
    yield from _jobs(host)
    yield from _failing(host)
    yield from _memory(host)
    yield from _network(host)
    yield from _links(host)
    yield from _disk(host)


def _by(label: str, figures: Iterable[tuple[str, float]]) -> list[Sample]:
    """A sample for each value of one label."""
    return [({label: value}, figure) for value, figure in figures]


def _sources(host: Host) -> Iterator[Family]:
    lag: list[Sample] = []
    lines: list[Sample] = []
    rejects: list[Sample] = []
    read: list[Sample] = []
    lost: list[Sample] = []
    samples: list[Sample] = []
    for name, source in host.sources.items():
        own = {"source": name}
        lag += [(own | {"file": file}, nbytes) for file, nbytes in source.lag_bytes.items()]
        totals, counters, unparsed = source.totals, source.counters, source.unparsed
        lines += [
            (own | {"outcome": "parsed"}, totals.parsed),
            (own | {"outcome": "rejected"}, totals.rejected),
        ]
        rejects += [
            (own | {"reason": reason.value}, count) for reason, count in sorted(totals.rejects.items())
        ]
        lost += [(own | {"column": column}, count) for column, count in sorted(totals.lost.items())]
        read += [
            (own | {"way": "front"}, counters.front_bytes),
            (own | {"way": "again"}, counters.again_bytes),
        ]
        if unparsed.trouble:
            labels = {"agent": host.config.agent.name, "reason": unparsed.reason, "sample": unparsed.sample}
            samples.append((own | labels, 1))
    sources = list(host.sources.items())
    share = _by("source", ((name, source.unparsed.share) for name, source in sources))
    gaps = _by("source", ((name, source.counters.gaps) for name, source in sources))
    beyond = _by("source", ((name, source.counters.beyond) for name, source in sources))
    yield "elf_source_lag_bytes", "Bytes of a log file that are not read yet.", lag
    yield "elf_source_lines_total", "Lines read, by outcome.", lines
    yield "elf_source_rejected_lines_total", "Lines that could not be parsed, by reason.", rejects
    text = "Values that did not convert to the type that a job expects, by column: they are NULL."
    yield "elf_source_not_converted_total", text, lost
    yield "elf_source_rejected_share", "Fraction of the recent lines that could not be parsed.", share
    yield "elf_source_rejected_sample", "1 while most lines are rejected, with one such line.", samples
    text = "Bytes read: once for all jobs, or again for one that was behind."
    yield "elf_source_read_bytes_total", text, read
    yield "elf_source_gaps_total", "Gaps: parts of files that were lost before they were read.", gaps
    text = "Positions in the mesh past the end of their file: it was cut short, or another agent reports it."
    yield "elf_source_beyond_total", text, beyond


def _jobs(host: Host) -> Iterator[Family]:
    seats = [(seat.spec.name, seat) for seat in host.node.seats.values() if not seat.is_stopped]
    role: list[Sample] = []
    for name, seat in seats:
        job = {"job": name}
        role += [
            (job | {"role": "master"}, int(seat.master is not None)),
            (job | {"role": "replica"}, int(seat.is_replica)),
            (job | {"role": "reducer"}, int(bool(seat.tree.children))),
            (job | {"role": "worker"}, int(seat.worker is not None)),
        ]
    yield "elf_job_role", "1 where this agent has that role for the job.", role
    takeovers = _by("job", ((name, seat.takeovers) for name, seat in seats))
    yield "elf_job_takeovers_total", "How often this agent became the job's master.", takeovers
    epochs = _by("job", ((name, seat.succession.highest[0]) for name, seat in seats))
    yield "elf_job_epoch", "Epoch of the highest known ballot: one more with each master.", epochs
    served = [(name, seat.master) for name, seat in seats if seat.master is not None]
    late = _by("job", ((name, master.state.late) for name, master in served))
    text = "Lines that came after their panes were dropped, at the job's master."
    yield "elf_job_late_lines_total", text, late
    yield (
        "elf_job_untimed_lines_total",
        "Rejected lines that are in no window, since no line of their file was parsed before them, at the job's master.",
        [
            ({"job": name, "agent": host.peers.name_of(worker)}, count)
            for name, master in served
            for worker, count in sorted(master.state.untimed.items())
        ],
    )
    yield from _lags([(name, master.outbox.lags) for name, master in served], host.clock_us())
    yield from _costs(host, seats)
    watchers = _by("job", ((name, len(master.watchers)) for name, master in served))
    yield "elf_job_watchers", "Watchers of the job's windows, at its master.", watchers


def _costs(host: Host, seats: Iterable[tuple[str, Any]]) -> Iterator[Family]:
    names = {seat.job: name for name, seat in seats}
    cpu = _by("job", ((name, host.costs.cpu_ns[job] / 1e9) for job, name in names.items()))
    text = "Processor time of a job at this agent: its seat, and its part of reading the logs."
    yield "elf_job_cpu_seconds_total", text, cpu
    sent = _by("job", ((name, host.node.sent_bytes[job]) for job, name in names.items()))
    yield "elf_job_sent_bytes_total", "Bytes of rows sent up the job's tree.", sent
    costs = host.costs.of(host.node.seats.values())
    groups = _by("job", ((names[cost.job], cost.groups) for cost in costs))
    yield "elf_job_groups", "The most groups in one pane of a cut of the log, in the last seconds.", groups
    held = _by("job", ((names[cost.job], cost.held_bytes) for cost in costs))
    yield "elf_job_memory_bytes", "Memory of the job at this agent, its rows unpacked.", held


def _failing(host: Host) -> Iterator[Family]:
    """Labels have the job's name; reasons are one line of at most 300 characters."""
    jobs = {spec.id: spec.name for spec in host.node.known_jobs()}
    failing = host.failing()
    yield (
        "elf_job_failing",
        "1 while a job fails here, or has within the last minutes, with the reason of its last failure.",
        [({"job": jobs.get(each.job, each.job.hex()), "reason": each.reason}, 1) for each in failing],
    )
    failures = _by("job", sorted(host.node.failures.items()))
    yield "elf_job_failures_total", "Failures of jobs here; the job restarted after each.", failures


def _memory(host: Host) -> Iterator[Family]:
    memory = host.memory
    yield "elf_memory_bytes", "Memory of the process beyond the bare one.", [({}, memory.grown)]
    yield "elf_memory_max_bytes", "The cap on elf_memory_bytes.", [({}, memory.memory_max)]
    yield (
        "elf_memory_bare_bytes",
        "Memory that does not count: what it had before it read its journal, and pages of files.",
        [({}, memory.bare)],
    )
    owners = _by("owner", sorted(memory.by_owner(host, host.budget).items()))
    yield "elf_memory_owner_bytes", "Memory beyond the bare process, by owner.", owners


def _network(host: Host) -> Iterator[Family]:
    counters = host.transport.counters
    messages = _by("direction", [("in", counters.messages_in), ("out", counters.messages_out)])
    nbytes = _by("direction", [("in", counters.bytes_in), ("out", counters.bytes_out)])
    connections = _by("direction", [("in", counters.connections_in), ("out", counters.connections_out)])
    yield "elf_messages_total", "Messages with other agents.", messages
    yield "elf_network_bytes_total", "Bytes of messages with other agents.", nbytes
    yield "elf_connections", "Connections with other agents.", connections
    refused = _by("reason", sorted(counters.refused.items()))
    yield "elf_messages_refused_total", "Messages and connections refused.", refused
    dropped = _by("reason", sorted(counters.dropped.items()))
    yield "elf_messages_dropped_total", "Messages that could not be sent.", dropped
    items = _by("reason", sorted(host.notary.refused.items())) if host.notary is not None else []
    yield "elf_items_refused_total", "Directory items that failed verification.", items
    near = len(host.node.overlay.acquaintances())
    yield "elf_neighbours", "Other agents that this agent knows to be alive.", [({}, near)]
    notices = _by("kind", sorted(host.notice_log.counts.items()))
    yield "elf_notices_total", "Notices for the operator, by kind.", notices


def _links(host: Host) -> Iterator[Family]:
    links = [(host.peers.name_of(peer), link) for peer, link in host.node.links.items()]
    repeated, stale = sum(link.repeated for _, link in links), sum(link.stale for _, link in links)
    ignored = _by("reason", [("repeated", repeated), ("earlier life", stale)])
    text = "Frames of links that were repeated, or belong to an earlier life."
    yield "elf_frames_ignored_total", text, ignored
    queued = host.transport.queued_bytes.items()
    waiting = _by("peer", ((host.peers.name_of(peer), nbytes) for peer, nbytes in queued))
    yield "elf_queue_bytes", "Bytes that wait for a neighbour's connection.", waiting
    credit = _by("peer", ((peer, link.credit_left) for peer, link in links))
    yield "elf_link_credit_bytes", "Bytes that a neighbour accepts before it acknowledges.", credit
    held = _by("peer", ((peer, link.queued_bytes) for peer, link in links))
    yield "elf_link_queued_bytes", "Bytes that wait for a neighbour's credit.", held


def _disk(host: Host) -> Iterator[Family]:
    store, sinks = host.store, host.sinks
    yield "elf_disk_writes_total", "Records written to state_dir.", [({}, store.writes)]
    yield "elf_disk_syncs_total", "Syncs of these, each for a group of records.", [({}, store.syncs)]
    text = "1 while other agents serve in its place, since its disk writes fail."
    yield "elf_disk_aside", text, [({}, int(host.node.is_aside))]
    yield "elf_disk_refused", "1 while disk writes fail.", [({}, int(store.is_refused))]
    if sinks is not None:
        yield "elf_sink_windows_total", "Windows stored in this agent's sinks.", [({}, sinks.stored)]
        yield "elf_sink_refused", "1 while writes to a sink fail.", [({}, int(sinks.is_refused))]
        yield from _delivering(sinks.delivering(host.clock_us()))
        yield from sinks.families()


def _lags(jobs: Sequence[tuple[str, Sequence[Lag]]], now: int) -> Iterator[Family]:
    """What waits at masters for each sink of their jobs."""
    each = [({"job": job, "sink": lag.target.name}, lag) for job, lags in jobs for lag in lags]

    def of(value: Callable[[Lag], float]) -> list[tuple[Mapping[str, str], float]]:
        return [(labels, value(lag)) for labels, lag in each]

    text = "Windows that a sink has not acknowledged, at the job's master."
    yield "elf_job_unsent_windows", text, of(lambda lag: lag.waiting)
    text = "How long the oldest of these has waited."
    yield "elf_job_unsent_oldest_seconds", text, of(lambda lag: max(0, now - (lag.since or now)) / 1e6)
    text = "Windows that a sink has acknowledged to this master."
    yield "elf_job_delivered_windows_total", text, of(lambda lag: lag.delivered)
    text = "Windows that a sink did not take while they were retained."
    yield "elf_job_lost_windows_total", text, of(lambda lag: lag.lost)


def _delivering(states: Sequence[SinkState]) -> Iterator[Family]:
    """Of the sinks here."""
    if not states:
        return
    counts = _by("sink", ((each.name, each.delivered) for each in states))
    yield "elf_sink_delivered_total", "Windows that the sink acknowledged.", counts
    waiting = _by("sink", ((each.name, each.waiting) for each in states))
    yield "elf_sink_waiting_windows", "Windows here that the sink has not acknowledged.", waiting
    ages = _by("sink", ((each.name, each.oldest_us / 1e6) for each in states))
    yield "elf_sink_oldest_seconds", "How long the oldest of these has waited.", ages
    refusals = _by("sink", ((each.name, each.refusals) for each in states))
    yield "elf_sink_refusals_total", "Windows that the sink refused.", refusals
    failures = _by("sink", ((each.name, each.failures) for each in states))
    yield "elf_sink_failures_total", "Connections to the sink that failed.", failures
