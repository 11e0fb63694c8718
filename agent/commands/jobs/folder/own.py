"""The jobs of an agent's own file. The agent submits them to itself through a process of this module, since the compiler's memory
would stay with it for good.

    standard input: an `Order`  ->  the changes that make the agent's jobs those of its file  ->  standard output: what was done

Exit codes: 0; 78 for an error in the file, which standard error names, and then nothing is done; others for failures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from elf.agent.commands.jobs.folder.apply import Apply, Outcome, all_jobs, outcomes_of, steps_of
from elf.agent.commands.jobs.job import NewJob, job_of_file
from elf.agent.config.job_file import JobFile
from elf.agent.control.protocol import JobLine
from elf.agent.host.own_jobs import LABEL
from elf.errors import ConfigError, ElfError, UsageError
from elf.jobmaster.directory.job_spec import ALL_TIME


class Order(msgspec.Struct, frozen=True):
    """The agent's control socket, its configuration, and the jobs of it. shown: its sinks that show open windows too."""

    socket: Path
    config: Path
    jobs: list[JobFile]
    shown: tuple[str, ...] = ()


def submit(order: Order) -> Iterator[str]:
    """Submit the jobs. Yields notices. Raises UsageError for errors in the file, ElfError if the agent cannot be asked."""
    known = all_jobs(order.socket)
    asked = [replace(job_of_file(file, str(file.name), LABEL), shown=order.shown) for file in order.jobs]
    if not any(line.label == LABEL for line in known):
        # As the agent begins with its file, its jobs count all lines that it has.
        asked = [replace(job, since_us=ALL_TIME) for job in asked]
    refused = {job.name: reason for job in asked if (reason := _refusal(job, known))}
    yield from refused.values()
    jobs = [job for job in asked if job.name not in refused]
    apply = Apply(order.config, LABEL, prune=True, yes=True)
    todo = steps_of(apply, LABEL, jobs, [], order.socket, kept={job.name for job in asked})
    for outcome in outcomes_of(apply, todo.steps, order.socket):
        yield from _told(outcome, order.config)


def _refusal(job: NewJob, known: Sequence[JobLine]) -> str:
    """Why the job is not submitted; "" if it is."""
    line = next((line for line in known if line.name == job.name and line.state != "stopped"), None)
    if line is None or (line.label == LABEL and line.state != "finishing"):
        return ""
    place = job.place("name")
    if line.label == LABEL:
        return f"{place}: job {job.name} is being stopped since the file had lost it; once it has ended, send SIGHUP"
    return (
        f"{place}: a command started a job {job.name}, which runs on, and this one does not start: stop that one with elf job "
        f"stop {job.name} and send SIGHUP, or give this one another name"
    )


def _told(outcome: Outcome, config: Path) -> Iterator[str]:
    step = outcome.step
    if outcome.error:
        yield f"job {step.name}: it is not as {config} says: {outcome.error}; send SIGHUP to try again"
    elif step.action == "start":
        yield f"job {step.name}: started, from {config}"
    elif step.action == "update":
        yield f"job {step.name}: changed, as {config} says: {'; '.join(map(str, step.differences))}"
    elif step.action == "stop":
        yield f"job {step.name}: is being stopped, since {config} has it no more"


def main() -> int:
    order = msgspec.msgpack.decode(
        sys.stdin.buffer.read(), type=Order, dec_hook=lambda kind, value: kind(value)
    )
    try:
        for text in submit(order):
            print(text, flush=True)
    except UsageError as error:
        print(error, file=sys.stderr)
        return ConfigError.exit_code
    except ElfError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
