"""What an agent reports about itself, for `elf mesh status` and `elf job list`, and about its log, for `--dry-run`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Count, Digest, Message, Micros, ShortText


class StatusRequest(Message, frozen=True, array_like=True, gc=False):
    """Requests a node's `StatusReport`."""

    number: Count


class Failing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job that fails at some agent. reason: of the last failure. failures: in a row. again_us: until the agent starts it again;
    0: it runs again."""

    job: JobId
    reason: Annotated[str, Meta(max_length=300)]
    failures: Count
    again_us: Count


ENDED_MAX = 64
"""Neighbours whose processes are known to have ended: all in one rack."""


FILES_MAX = 32
"""Files that a status report names; 10 KB."""
FileMark = tuple[Digest, Annotated[str, Meta(max_length=200)], Annotated[str, Meta(max_length=300)]]
"""(number that identifies a file among those of its host, source, path)."""


COSTS_MAX = 64
"""Jobs whose costs a status report names; 3 KB."""


class JobCost(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a job costs an agent. cpu_us: microseconds of a processor in a second. sent_bytes: up its tree, in a second. groups:
    the most in one pane of a cut. held_bytes: of memory, with rows unpacked."""

    job: JobId
    cpu_us: Count
    sent_bytes: Count
    groups: Count
    held_bytes: Count


SINKS_MAX = 64


class SinkState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sink at the agent that serves it. waiting: windows that wait for its acknowledgement. oldest_us: for how long the oldest
    has waited. delivered, refusals, failures: windows delivered and refused, and connections or writes that failed, since the
    start. problem: the last one, if nothing was delivered since; "": none."""

    name: Annotated[str, Meta(max_length=1000)]
    waiting: Count
    oldest_us: Count
    delivered: Count
    refusals: Count
    failures: Count
    problem: Annotated[str, Meta(max_length=300)] = ""


LAGS_MAX = 64
"""Sinks of jobs that a status report names, those whose windows have waited longest; 5 KB."""


class SinkLag(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What waits at a job's master for one of its sinks. oldest_us: for how long the oldest window has waited. delivered, lost:
    windows since that master began."""

    job: JobId
    sink: Annotated[str, Meta(max_length=1000)]
    waiting: Count
    oldest_us: Count
    delivered: Count
    lost: Count


ALERTS_MAX = 64
ALERTS_BYTES_MAX = 24 << 10
"""Of all alerts in a status report, which has 64 KiB at most."""


class StatusReport(Message, frozen=True, array_like=True, gc=False):
    """clock_us: the agent's clock. memory_bytes: of the process, beyond the `memory_bare` that it had before it read its
    journal; memory: of these, by owner. masters … workers: jobs with that role. problems: what is wrong, a line each. failing:
    jobs whose seat there fails. files: that it follows. ended: neighbours whose processes are known to have ended, and
    microseconds since then. untimed: rejected lines in no window, by job of which it is the master. costs: of the most
    expensive jobs. sinks: that it serves. lags: of the sinks of jobs of which it is the master, if windows wait for them. alerts:
    job, and an instance of its alerts, as its master's log has it (`elf.jobmaster.alerts.book.Transition`); alerts_left_out: how
    many more there are, or had no room. gone: the latest time of lines whose files are gone, by source."""

    number: Count
    clock_us: Micros
    version: ShortText = ""
    up_s: Count = 0
    memory_bytes: Count = 0
    memory_max: Count = 0
    lag_bytes: Count = 0
    masters: Count = 0
    replicas: Count = 0
    reducers: Count = 0
    workers: Count = 0
    problems: tuple[Annotated[str, Meta(max_length=500)], ...] = ()
    memory_bare: Count = 0
    memory: dict[ShortText, Count] = msgspec.field(default_factory=dict)
    failing: tuple[Failing, ...] = ()
    files: tuple[FileMark, ...] = ()
    ended: dict[NodeId, Count] = msgspec.field(default_factory=dict)
    untimed: dict[JobId, Count] = msgspec.field(default_factory=dict)
    costs: Annotated[tuple[JobCost, ...], Meta(max_length=COSTS_MAX)] = ()
    sinks: Annotated[tuple[SinkState, ...], Meta(max_length=SINKS_MAX)] = ()
    lags: Annotated[tuple[SinkLag, ...], Meta(max_length=LAGS_MAX)] = ()
    alerts: Annotated[
        tuple[tuple[JobId, Annotated[bytes, Meta(max_length=8 << 10)]], ...], Meta(max_length=ALERTS_MAX)
    ] = ()
    alerts_left_out: dict[JobId, Count] = msgspec.field(default_factory=dict)
    gone: dict[ShortText, Count] = msgspec.field(default_factory=dict)


PROBLEM_CHARS_MAX = 300


class EstimateRequest(Message, frozen=True, array_like=True, gc=False):
    """Asks an agent what that encoded plan would cost it, by the last lines of its log of that source."""

    number: Count
    source: Annotated[str, Meta(max_length=200)]
    plan: bytes


class AlertTest(Message, frozen=True, array_like=True, gc=False):
    """Asks a node to send one notification that says it is a test, of that alert of a job, to one of its sinks."""

    number: Count
    job: JobId
    alert: Annotated[str, Meta(max_length=64)]
    sink: Annotated[str, Meta(max_length=200)]


class AlertTestReport(Message, frozen=True, array_like=True, gc=False):
    """problem: why it was not delivered; "": it was."""

    number: Count
    problem: Annotated[str, Meta(max_length=PROBLEM_CHARS_MAX)] = ""


class EstimateReport(Message, frozen=True, array_like=True, gc=False):
    """read_bytes, lines, span_us: of the sample. groups: the most in a pane of it. sent_bytes: up the tree, in a second. problem:
    why there is no estimate."""

    number: Count
    read_bytes: Count = 0
    lines: Count = 0
    span_us: Count = 0
    groups: Count = 0
    sent_bytes: Count = 0
    problem: Annotated[str, Meta(max_length=PROBLEM_CHARS_MAX)] = ""


FOR_CONTROL = (StatusReport, EstimateReport, EstimateRequest, AlertTest, AlertTestReport)
"""Messages that a node's control service takes."""
