"""The configured seeds of the mesh: the agent asks each one repeatedly, at growing intervals, until it has answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from elf.errors import PeerError
from elf.srt.messages.addresses import Address
from elf.srt.messages.ids import NodeId, node_id
from elf.srt.messages.messages import Contact

FIRST_S = 1.0
"""Time for which a start waits for answers, so that it joins an existing mesh instead of founding another one."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.5, 30.0

Ask = Callable[[str], Awaitable[Contact]]


class Seed(msgspec.Struct):
    """contact: the node that answered, or the one expected by its key. problem: why there is no answer yet."""

    address: Address
    contact: Contact | None
    has_answered: bool = False
    problem: str = ""


class Seeds:
    """Asks the seeds. ask: may raise PeerError. found: called for each seed that answers after `first` has ended."""

    def __init__(self, addresses: Sequence[Address], me: NodeId, ask: Ask, found: Callable[[], None]) -> None:
        self.all = [
            Seed(address, Contact(address.id, 0, str(address)) if address.id is not None else None)
            for address in addresses
        ]
        self._me, self._ask, self._found = me, ask, found
        self._tasks: list[asyncio.Task[None]] = []
        self._is_first = True

    async def first(self) -> None:
        """Start asking all seeds, and wait `FIRST_S` for their answers."""
        tries = [asyncio.Event() for _ in self.all]
        self._tasks = [
            asyncio.create_task(self._pursue(seed, tried))
            for seed, tried in zip(self.all, tries, strict=True)
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                await asyncio.gather(*(tried.wait() for tried in tries))
        self._is_first = False

    def contacts(self) -> list[Contact]:
        """The contacts of all seeds but this node. An unknown seed has a placeholder without an address, so that a node with
        seeds does not consider itself the first of its mesh."""
        return [
            seed.contact or Contact(node_id(seed.address.endpoint.encode()), 0)
            for seed in self.all
            if seed.contact is None or seed.contact.id != self._me
        ]

    def problems(self, is_member: Callable[[NodeId], bool]) -> list[str]:
        """Problems of seeds that have not answered, a line each. A seed that became a member otherwise, for it dialed this agent,
        has none, although its next answer may be half a minute away."""
        return [
            f"seed {seed.problem or f'{seed.address.endpoint}: no answer yet'}"
            for seed in self.all
            if not seed.has_answered
            and not (seed.contact is not None and (seed.contact.id == self._me or is_member(seed.contact.id)))
        ]

    async def _pursue(self, seed: Seed, tried: asyncio.Event) -> None:
        pause_s = PAUSE_S_MIN
        while not seed.has_answered:
            try:
                seed.contact = await self._ask(str(seed.address))
                seed.has_answered, seed.problem = True, ""
                tried.set()
            except (PeerError, TimeoutError) as error:
                seed.problem = str(error) or f"{seed.address.endpoint}: it does not answer"
                tried.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        if not self._is_first:
            self._found()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
