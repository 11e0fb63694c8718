"""Signed items of jobs that come as messages, as from a broker's command topic.

    message -> decode -> old? -> start, stop: into the directory          -> answer
                              -> change: to the job's master (rule Order*)

A message is an item of the directory, exactly as an operator's command signs it (`elf job … --message FILE`); whoever brings it
needs no rights. An item that comes twice changes nothing: a change names the version and the term that it changes, and a job's
numbers only grow. Only a start is judged by its age too, since agents forget a job that has ended.
"""

from __future__ import annotations

import traceback
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from elf.agent.config.units import duration_text
from elf.agent.control import protocol as w
from elf.agent.control.audit import what_of
from elf.errors import ElfError, PeerError, UsageError
from elf.jobmaster.directory.changes import rank_of
from elf.jobmaster.directory.job_spec import JobSpec, decode_job
from elf.jobmaster.directory.versions import has_change
from elf.srt.messages.messages import Item, Micros

if TYPE_CHECKING:
    from elf.agent.node.mesh_node import MeshNode

BYTES_MAX = 1 << 20
"""Of a message; a frame between agents is as long."""
FRESH_US = 300_000_000
"""A start comes this long after it was signed at most. Clocks differ, so it may come as long before."""
UNREADABLE = "it is no signed item of a job"
TAKEN = {"outcome": "taken"}


class Service(Protocol):
    """What answers requests at this agent."""

    def serve(self, request: w.AnyRequest) -> AsyncGenerator[w.Answer, None]: ...

    def refuse(self, item: Item, reason: str) -> None:
        """Enter a signed request into the audit list as refused. Raises UsageError, always."""


def encode_item(item: Item) -> bytes:
    """The message of an item."""
    return msgspec.msgpack.encode(item)


def message_id(message: bytes) -> str:
    """32 hexadecimal digits, by which an answer names its message."""
    return blake2b(message, digest_size=16).hexdigest()


class Host(Protocol):
    """The process around a node."""

    notices: Callable[[str], None]

    @property
    def node(self) -> MeshNode: ...

    def clock_us(self) -> Micros: ...


class SignedMessages:
    """Takes the messages that come to this agent, one after another, so that the commands of one operator keep their order."""

    def __init__(self, service: Service, host: Host) -> None:
        self._service, self._host = service, host

    async def take(self, message: bytes) -> dict[str, Any]:
        """Do what a message asks for. Returns the answer, for JSON: its `outcome` is "taken", "refused" or "unknown"."""
        answer = await self._answer(message)
        if answer["outcome"] != "taken":
            what = f"the {answer['command']} of job {answer['job']}" if "job" in answer else "a message"
            self._host.notices(f"command topic: {what} was not taken: {answer['reason']}")
        return answer

    async def _answer(self, message: bytes) -> dict[str, Any]:
        answer: dict[str, Any] = {"id": message_id(message), "agent": self._host.node.name}
        try:
            item, spec = _decoded(message)
            what = what_of(spec, self._host.node.directory)
            answer |= {"job": spec.name, "command": what, "version": spec.versions[-1].digest}
            return answer | await self._done(item, spec)
        except UsageError as error:
            return answer | {"outcome": "refused", "reason": str(error)}
        except ElfError as error:  # no master answered
            return answer | {"outcome": "unknown", "reason": str(error)}
        except Exception as error:  # a bug here: the commands after this one go on
            traceback.print_exception(error)
            return answer | {"outcome": "unknown", "reason": f"{type(error).__name__}: {error}"}

    async def _done(self, item: Item, spec: JobSpec) -> dict[str, Any]:
        """Raises ElfError."""
        former = self._host.node.directory.get("job", item.name)
        held = decode_job(former) if former is not None else None
        if former is not None and former.body == item.body:
            return TAKEN  # it came here by another agent, or twice
        is_change = held is not None and not (held.stopped or spec.stopped)
        if reason := self._too_late(spec, held, is_change):
            self._service.refuse(item, reason)
        answer = await anext(self._service.serve(w.JobChange(item) if is_change else w.JobPut(item)))
        if isinstance(answer, w.Refused):
            raise UsageError(f"another change came first: the job has version {answer.version}")
        if isinstance(answer, w.Changed) and not answer.waits:
            return TAKEN | {"from_us": answer.from_us, "took_us": answer.took_us}
        return TAKEN

    def _too_late(self, spec: JobSpec, held: JobSpec | None, is_change: bool) -> str:
        """Why a spec is not taken now, or not any more; "" if it may be. held: the job's present one."""
        if held is None and spec.stopped:
            return f"there is no job {spec.name}"
        if held is not None and rank_of(spec) < rank_of(held):
            if not is_change:
                return f"job {spec.name} was started or stopped since it was signed"
            if spec.changes and has_change(held, spec.changes[-1]):
                return f"it was taken before, and job {spec.name} was changed since"
        if is_change or spec.stopped:
            return ""
        age_us = self._host.clock_us() - (spec.changes[-1].asked_us if spec.changes else spec.since_us)
        age = timedelta(seconds=abs(age_us) // 1_000_000)
        if age_us > FRESH_US:
            return f"signed {age} ago; a start comes {duration_text(FRESH_US)} later at most; sign it again"
        if age_us < -FRESH_US:
            return f"signed by a clock that is {age} ahead of this agent's; sign it again"
        return ""


def _decoded(message: bytes) -> tuple[Item, JobSpec]:
    """Raises UsageError."""
    if len(message) > BYTES_MAX:
        raise UsageError(f"it has {len(message):,} bytes, and may have {BYTES_MAX:,}")
    try:
        item = msgspec.msgpack.decode(message, type=Item)
        spec = decode_job(item)
    except (msgspec.MsgspecError, PeerError) as error:
        raise UsageError(UNREADABLE) from error
    if item.kind != "job" or item.name != spec.id:
        raise UsageError(UNREADABLE)
    if spec.trial is not None:
        raise UsageError("trials are started, promoted and aborted at an agent")
    return item, spec
