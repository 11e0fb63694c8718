"""`elf job stop`: a job ends when its last windows are final, or at once."""

from __future__ import annotations

import time
from pathlib import Path

import typer
from msgspec.structs import replace

from elf.agent.commands.jobs.change import GOSSIP_S, PATIENCE, TRIES_MAX, running_job, send_change
from elf.agent.commands.jobs.job import put_job, signed
from elf.agent.commands.jobs.trial.trial import end_trial
from elf.agent.commands.mesh_text import time_text
from elf.agent.commands.process.signals import stop_on_signals
from elf.agent.commands.process.streams import say
from elf.agent.config import units
from elf.agent.control import protocol as w
from elf.errors import ElfError
from elf.jobmaster.directory.ending import finishing, stopped
from elf.jobmaster.directory.job_spec import END, JobSpec, decode_job
from elf.srt.messages.messages import Item

LOOK_S = 0.3


def stop_command(
    name: str, now: bool, keys: Path | None, agent: Path | None, message: Path | None = None
) -> int:
    """Stop a job everywhere, and wait until it has ended; or write the signed message that stops it. Returns the exit code.
    Raises `ElfError`."""
    spec, held = running_job(name, agent)
    if spec.stopped:
        typer.echo(f"job {name} was stopped before; nothing was changed")
        return 0
    if message is not None:
        from elf.agent.commands.jobs.message import write_message

        end = signed(stopped(spec, held.next), keys, held.signed, "stop")
        write_message(end if now else _finishing(spec, held, None, keys), message, name)
        return 0
    if now or spec.trial is not None:
        put_job(agent, signed(stopped(spec, held.next), keys, held.signed, "stop"))
    elif spec.is_finishing:
        say(f"job {name} was asked to stop before")
    else:
        finish(name, keys, agent)
    end_trial(name, keys, agent)
    if now or spec.trial is not None or _has_ended(name, agent):
        typer.echo(f"job {name} was stopped")
        return 0
    return 130


def finish(name: str, keys: Path | None, agent: Path | None, number: int | None = None) -> w.Changed | None:
    """Have a job end when its windows are final. Returns the answer to that change; None if another command came first. number:
    that the job's spec must have. Raises `ElfError`."""
    refused: w.Refused | None = None
    for attempt in range(TRIES_MAX):
        spec, held = running_job(name, agent)
        if spec.stopped or spec.is_finishing or number not in (None, spec.number):
            return None
        if refused is not None and refused.version != spec.versions[-1].digest and attempt < PATIENCE:
            time.sleep(GOSSIP_S)  # the master's log has a change whose item has yet to arrive
            continue
        answer = send_change(_finishing(spec, held, refused, keys), agent)
        if isinstance(answer, w.Changed):
            return answer
        refused = answer
    raise ElfError(
        f"job {name} was changed {TRIES_MAX} times by other commands meanwhile; it runs on; try again"
    )


def _finishing(spec: JobSpec, held: w.JobHeld, refused: w.Refused | None, keys: Path | None) -> Item:
    """The change that ends the job, and in it the signature of its end. Raises UsageError."""
    number = max(held.next, refused.next if refused is not None else 0)
    former = refused.version if refused is not None else spec.versions[-1].digest
    last = finishing(spec, held.now_us, held.schedule, number, former)
    last = decode_job(signed(last, keys, held.signed, "stop"))  # it names its signer, and so does the end
    end = signed(stopped(last, last.number), keys, held.signed, "stop")
    return signed(replace(last, end=end.signature), keys, held.signed, "stop")


def _has_ended(name: str, agent: Path | None) -> bool:
    """Wait for the job's end. Returns False at Ctrl-C. Raises ElfError if it runs on."""
    asked: JobSpec | None = None
    with stop_on_signals() as stop:
        while not stop.event.is_set():
            spec, held = running_job(name, agent)
            if spec.stopped or (asked is not None and spec.since_us > asked.since_us):
                return True
            if not spec.is_finishing:
                raise ElfError(
                    f"job {name} runs on: its stop was lost to another change; see elf job history {name}"
                )
            if asked is None:
                say(waits_for(spec, held))
            asked = spec
            stop.event.wait(LOOK_S)
    say(f"job {name} ends when that is done; wait for it again with elf job stop {name}")
    return False


def waits_for(spec: JobSpec, held: w.JobHeld) -> str:
    """What a job that is finishing waits for."""
    known = held.schedule
    has_line = known is not None and known.lines[-1].version == END
    line = (
        f"from {time_text(known.lines[-1].from_us)} UTC on"
        if known is not None and has_line
        else "from now on"
    )
    late, most = units.duration_text(spec.lateness_us), units.duration_text(spec.lateness_us + spec.keep_us)
    return (
        f"job {spec.name}: lines {line} do not count; it ends when its windows up to there are final (their lateness is {late})"
        f"{' and its sinks have them' if spec.sinks else ''}; it waits {most} at most, if an agent or a sink does not answer; "
        f"Ctrl-C ends only this waiting, elf job stop {spec.name} --now ends the job"
    )
