"""One process for each key: if another process has this agent's key, this one checks whether it lives, and waits or restarts.

    known from                               the other process lives                    it is gone
    ---------------------------------------  -----------------------------------------  ---------------------------------------
    at the start, a refusal by a neighbour   waits until it has ended                   joins the mesh
    later, a refusal by a neighbour          gives way: restarts, and waits; unless     continues
                                             neighbours have admitted this process,
                                             and its instance is the higher one
    later, a refusal by the other process    the same, if its instance is the higher    continues
                                             one and no neighbour has admitted this
                                             process; else continues
    an advert of a later life than the       the same                                   restarts above that life, with its state
    folder's, signed with the own key                                                   folder counted as lost
    a claim of a later life than this        the same                                   restarts above that life

So a process that was stopped, taken for dead and replaced gives way; and of two that were admitted on two sides of a partition,
one gives way. A process that waits represents no node: it answers no challenge and admits no neighbour, so no two wait for each
other. A restart here is one within the process: a new `Host`, a new instance, and a higher life.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Protocol

import msgspec

from elf.agent.disk.state_dir import JOURNAL
from elf.agent.host.memory import Memory
from elf.agent.node.mesh_node import MeshNode
from elf.agent.node.rivals import HEARSAY_S, Rival, is_above
from elf.srt.messages.messages import Contact
from elf.srt.transport.admission import both
from elf.srt.transport.alone import NoTransport

if TYPE_CHECKING:
    from elf.srt.transport.transport import Transport

CHECK_S = 1.0
"""How often a waiting process checks whether the other one lives."""


class Restart(msgspec.Struct, frozen=True):
    """How the next host of this process starts. above: its life is higher than this. last: the latest life of which the folder
    has all records. is_lost: the folder is older than what the mesh knows. rival: the process that has to end first. begun_s: the
    time of the last restart because of a neighbour's claim. memory: of the process."""

    above: int
    last: int
    is_lost: bool
    rival: Contact | None
    begun_s: float
    memory: Memory


class Host(Protocol):
    """What `SingleInstance` needs of the process around a node."""

    node: MeshNode
    transport: Transport | NoTransport
    instance: int
    is_started: bool
    last_life: int
    memory: Memory

    def notices(self, text: str) -> None: ...

    def restart(self, how: Restart) -> None:
        """End this host, so that the next one starts as `how` states."""


class SingleInstance:
    """The other process with this key, if there is one, for one host."""

    def __init__(self, host: Host, former: Restart | None) -> None:
        self._host = host
        self.rival = former.rival if former is not None else None
        """The process that lives instead of this one, which waits."""
        self._begun_s = former.begun_s if former is not None else -HEARSAY_S
        self._task: Task[None] | None = None
        self._is_over = False

    @property
    def problem(self) -> str:
        """For `elf mesh status`; "" if there is no rival."""
        return "" if self.rival is None else self._text(self.rival)

    def _text(self, rival: Contact) -> str:
        return both(rival.address, self._host.transport.address)

    async def wait(self) -> None:
        """Wait until no other process lives instead of this one."""
        is_reported = False
        while self.rival is not None:
            if not await self._lives(self.rival):
                self.rival = None
                return
            if not is_reported:
                is_reported = True
                self._host.notices(f"{self._text(self.rival)}; this one waits until the other has ended")
            await asyncio.sleep(CHECK_S)

    def refused_for(self, address: str, instance: int, is_itself: bool) -> None:
        """Handle a refusal of this process because another one lives. is_itself: the other process itself refused, which proves
        only that it lives."""
        rival = Contact(self._host.transport.id, 0, address, 0, instance)
        if self._host.is_started:
            if not (is_itself and (self._is_admitted or self._host.instance > instance)):
                self.check_rival(Rival(rival, is_lost=False))
        elif self.rival is None:
            self.rival = rival

    def check_rival(self, rival: Rival) -> None:
        """Check a rival, one at a time: claims that arrive meanwhile are repeated."""
        if not self._is_over and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._resolve(rival))

    async def _resolve(self, rival: Rival) -> None:
        host, contact = self._host, rival.contact
        if await self._lives(contact):
            if not self._is_admitted or host.instance < contact.instance:
                self._restart(rival, contact)
        elif rival.is_lost:
            host.notices(
                "another process used this agent's key later than its state_dir knows; is state_dir a backup or a copy? Its "
                "content counts as lost, and the logs are read again"
            )
            self._restart(rival, None)
        elif is_above(rival, host.node.life, time()) and monotonic() - self._begun_s >= HEARSAY_S:
            self._begun_s = monotonic()
            self._restart(rival, None)

    @property
    def _is_admitted(self) -> bool:
        """Whether neighbours have admitted this process."""
        return self._host.transport.counters.connections_out > 0

    async def _lives(self, rival: Contact) -> bool:
        return rival.instance != 0 and await self._host.transport.instance_at(rival.address) == rival.instance

    def _restart(self, rival: Rival, instead: Contact | None) -> None:
        host = self._host
        above = max(rival.contact.incarnation, host.node.life)
        how = Restart(above, host.last_life, rival.is_lost, instead, self._begun_s, host.memory)
        self._is_over = True
        host.restart(how)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


def forget(folder: Path) -> None:
    """Delete the agent's progress from the folder, as if the disk were lost: the mesh knows a later life. The id and the claim
    stay."""
    for path in (folder / JOURNAL, *folder.glob("source-*")):
        path.unlink(missing_ok=True)
