"""What an agent lives for that `elf run --follow` runs: one job, and how its windows are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.windows.result import Sink

NewSink = Callable[[BinaryIO | None], Sink]
"""Makes a sink that writes on this stream; None: on standard output."""


class OnlyJob(NamedTuple):
    """spec: submitted as the agent begins. new_sink: makes what draws its windows, instead of the agent's usual streams. Such an
    agent says nothing of itself: its user asked for windows, and knows of no agent."""

    spec: JobSpec
    new_sink: NewSink
