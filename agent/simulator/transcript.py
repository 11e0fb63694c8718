"""A transcript of a simulation for readers: virtual time, host, and event, with messages in a few words.

It contains all faults, starts and ends of agents, and the messages and publications of one job, the one that the violation names,
without pings and acknowledgements. The violation comes last, first with the transcript's names and then as found.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any

from elf.agent.simulator.run import Outcome, Run, simulate
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.scenario.fault_text import Naming, fault_text
from elf.agent.simulator.world.places import EPOCH_US, Actor
from elf.jobmaster.log.schedule import number_of
from elf.srt.messages import messages as m
from elf.srt.messages import results as r
from elf.srt.messages.effects import Notice
from elf.srt.messages.ids import JobId, NodeId, job_id, short

LINES_MAX = 4_000
"""The last lines that a transcript keeps; a violation is near the end."""
SPANS_MAX = 4

_DULL = (
    m.Ping,
    m.Pong,
    m.ProbeFor,
    m.LeavesRequest,
    m.LeavesReport,
    m.GossipDigest,
    m.GossipItems,
    m.Size,
    m.Path,
)


def transcript(scenario: s.Scenario, lines_max: int = LINES_MAX) -> tuple[Outcome, str]:
    """Run a scenario. Returns the last part of the transcript of the job that the violation names, or else of the first one. The
    same scenario gives the same text."""
    lines = {job_id(f"job{at}"): deque[str](maxlen=lines_max) for at in range(max(1, len(scenario.jobs)))}

    terms = Terms()

    def prepare(run: Run) -> None:
        terms.learn(run)
        event_text = EventText(terms.name, terms.numbered)

        def observe(now_us: int, what: str, who: Actor | None, about: Any) -> None:
            job, text = event_text.line(what, about, run.world.taking)
            text = terms.plain(text) if what == "notice" else text
            for each in (job,) if job is not None else lines:
                if text and each in lines:
                    lines[each].append(f"{now_us / 1e6:10.4f}  {who.name if who else '':6} {text}")

        run.world.observers.append(observe)

    outcome = simulate(scenario, prepare=prepare)
    verdict = terms.plain(outcome.violation) or "every window is exact"
    named = [job for job in lines if terms.name(job) in re.findall(r"\w+", verdict)]
    shown = lines[(named or list(lines))[0]]
    shown.append(f"{outcome.at_us / 1e6:10.4f}  {verdict}")
    if outcome.violation not in ("", verdict):
        shown.append(f"{'as found':>10}  {outcome.violation}")
    return outcome, "\n".join(shown) + "\n"


_ID = re.compile(r"\b[0-9a-f]{6}\b")
_TIME = re.compile(r"(window )?\b(1[67]\d{14})\b")
"""Microseconds since 1970, of the years around the virtual epoch; a window's start among them."""


class Terms:
    """The names of hosts, sinks and jobs in a transcript."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._shorts: dict[str, str] = {}
        self._hosts: list[str] = []
        self._sinks: list[str] = []

    def learn(self, run: Run) -> None:
        self._hosts = [actor.name for actor in run.hosts]
        self._sinks = [f"sink{n}" for n in range(len(run.sinks))] if len(run.sinks) > 1 else ["sink"]
        self._names = {actor.id: actor.name for actor in run.hosts}
        self._names |= dict(zip(run.sinks, self._sinks, strict=True))
        self._names |= {spec.id: spec.name for spec in run.specs}
        self._shorts = {short(id): name for id, name in self._names.items()}

    def name(self, id: NodeId | JobId) -> str:
        return self._names.get(id, short(id))

    def numbered(self, number: int) -> str:
        """A host by its number; sinks are -1, -2, …"""
        names, at = (self._hosts, number) if number >= 0 else (self._sinks, s.SINK - number)
        return names[at] if at < len(names) else "no host"

    def plain(self, text: str) -> str:
        """The text with names for short ids, and seconds for microseconds since 1970, where they can be recognised."""
        named = _ID.sub(lambda found: self._shorts.get(found[0], found[0]), text)
        return _TIME.sub(
            lambda found: f"window [{seconds(int(found[2]))}, …)" if found[1] else seconds(int(found[2])),
            named,
        )


class EventText:
    """Makes the text of events. name: of a node or sink by its id; numbered: by its number in a scenario."""

    def __init__(self, name: Callable[[NodeId], str], numbered: Naming = str) -> None:
        self._name, self._numbered = name, numbered

    def line(self, what: str, about: Any, taking: NodeId = b"") -> tuple[JobId | None, str]:
        """(the job of an event, None for all jobs; its text, "" if it gets no line). taking: the sink that takes a window, if the
        event is one."""
        if what == "deliver":
            source, message = about
            return self._delivered(source, message)
        if what == "put":
            assert isinstance(about, r.Put)
            return about.job, f"{self._name(taking)} takes {self.text(about)}"
        if isinstance(about, Notice):
            return None, f"notice {about.kind}: {about.text}"
        if what == "job":
            return None, f"job {about.name} number {about.number}, {about.mode}"
        return None, fault_text(what, about, self._numbered) or what

    def _delivered(self, source: NodeId, message: m.Message) -> tuple[JobId | None, str]:
        inner: Any = message
        if isinstance(inner, m.Frame):
            inner = inner.message
        if isinstance(inner, m.Routed):
            inner = inner.message
        job: JobId | None = getattr(inner, "job", None)
        if job is None or isinstance(inner, _DULL):
            return None, ""
        repeated = f" #{message.sequence}" if isinstance(message, m.Frame) else ""
        return job, f"<- {self._name(source)}{repeated} {self.text(inner)}"

    def text(self, message: Any) -> str:
        """A message in a few words."""
        kind = type(message).__name__
        describe = _TEXTS.get(type(message))
        return f"{kind} {describe(self, message)}".rstrip() if describe else kind

    def ballot(self, ballot: m.Ballot) -> str:
        return f"{ballot[0]}.{self._name(m.node_of(ballot))}" if ballot[1] else "-"

    def bundle_id(self, id: m.BundleId) -> str:
        return f"{self._name(id[0])}/{id[1]}/{id[2]}"

    def spans(self, spans: dict[m.Slot, m.Span]) -> str:
        shown = [
            f"{self._name(worker)}:{file & 0xFFF:03x}{f'/{lane & 0xFFFF}' if lane else ''}[{start},{end})"
            f"{''.join(letter for bit, letter in ((m.FIRST, 'F'), (m.CLOSED, 'C'), (m.GAP, 'G')) if flags & bit)}"
            for (worker, file, lane), (start, end, flags) in list(spans.items())[:SPANS_MAX]
        ]
        more = len(spans) - SPANS_MAX
        return " ".join(shown) + (f" and {more} more" if more > 0 else "")

    def _bundle(self, message: m.Bundle) -> str:
        lines = sum(int(part.rows[1].lanes[0].sum()) for part in message.parts.values())
        again = " again" if message.again else ""
        return (
            f"{self.bundle_id(message.id)}{again} under {self.ballot(message.ballot)} {self.spans(message.contributions)} "
            f"lines {lines} watermark {seconds(message.watermark)}"
        )

    def _put(self, message: r.Put) -> str:
        epoch, by, n = message.revision
        return (
            f"{message.version[:6]} [{seconds(message.start)}, {seconds(message.end)}) {message.status} "
            f"{self.ballot((epoch, by))}.{n} {message.agents_reporting} of {message.agents_expected} agents, "
            f"{message.lines[0]} lines"
        )

    def _log(self, message: m.Append) -> str:
        kinds = " ".join(type(entry).__name__ for entry in message.entries)
        last = message.first + len(message.entries) - 1
        return f"{self.ballot(message.ballot)} {message.first}..{last} committed {message.committed} {kinds}"

    def _state_report(self, message: m.StateReport) -> str:
        serving = " serving" if message.serving else ""
        return f"holds {self.ballot(message.held)} to {message.index}, promised {self.ballot(message.highest)}{serving}"


def seconds(event_us: int) -> str:
    """An event time, in seconds since the virtual epoch."""
    return "none" if event_us == m.NO_WATERMARK else f"{(event_us - EPOCH_US) / 1e6:g}"


_TEXTS: dict[type, Callable[[EventText, Any], str]] = {
    m.Bundle: EventText._bundle,
    r.Put: EventText._put,
    m.Append: EventText._log,
    m.StateReport: EventText._state_report,
    m.Commit: lambda t, x: f"{t.ballot(x.ballot)} {' '.join(map(t.bundle_id, x.ids))}",
    m.Split: lambda t, x: f"{t.ballot(x.ballot)} {t.bundle_id(x.id)} {len(x.positions)} positions",
    m.Hello: lambda t, x: f"of {t._name(x.worker)}",
    m.Welcome: lambda t, x: (
        f"{t.ballot(x.ballot)} since {seconds(x.since_us)}, {len(x.positions)} files, lanes {len(x.lanes)}"
    ),
    m.Goodbye: lambda t, x: f"of {t._name(x.worker)}",
    m.Control: lambda t, x: f"{t.ballot(x.ballot)} schedule {number_of(x.schedule)}",
    m.Install: lambda t, x: f"{t.ballot(x.ballot)} to {x.index} and {len(x.tail)} more",
    m.Held: lambda t, x: f"{t.ballot(x.ballot)} to {x.index}{' refused' if x.refused else ''}",
    m.StateRequest: lambda t, x: f"under {t.ballot(x.ballot)}",
    m.Fetch: lambda t, x: f"under {t.ballot(x.ballot)}",
    m.Handover: lambda t, x: f"{t.ballot(x.ballot)} at {x.index}",
    m.TreeJoin: lambda t, x: f"of {t._name(x.child)}, {x.size} nodes",
    m.Adopt: lambda t, x: f"path {' '.join(map(t._name, x.path))}",
    r.LedgerReport: lambda t, x: f"fence {t.ballot(x.fence)}, {len(x.entries)} windows",
    r.PutReply: lambda t, x: f"holds {x.revision[0]}.{x.revision[2]} of {seconds(x.start)}",
}
