"""Whether the process behind a connection that was lost is gone: what the kernel of its host says.

A kernel closes the sockets of a process that ends, however it ends, and refuses whoever connects to where it listened. So this
is known in milliseconds, while a host or a network that is gone can only be told by silence.

    a connection to a neighbour that had proven who it is was lost, and a plain TCP connect to the same address
    -----------------------------------------------------------------------------------------------------------
    is refused, and nothing it opened to here stands   the process is gone
    is refused, and a connection of it stands          asked again, for `PATIENCE_S`: a process that ends closes its sockets one
                                                       by one
    is accepted                                        dialled again, and asked again until that is answered. A later life is a
                                                       restart; a stopped process, or another program there, does not answer
    is not answered                                    nothing is known

All of these were proven by the neighbour's key before; so nobody but who stands at the address or on the way there can
have a process taken for gone, and only here: other nodes look for themselves.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from elf.srt.messages.addresses import Address

CONNECT_S = 1.0
"""An answer takes a round trip; without one for so long there is none."""
AGAIN_S_MIN, AGAIN_S_MAX = 0.01, 0.08
"""Doubled each time."""
PATIENCE_S = 2.0
"""On a busy host a process that ends takes a while to close all its sockets."""


async def is_refused(address: Address) -> bool | None:
    """Whether nobody listens there: wherever the name leads, the connection is refused. None: that is not known."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, at in found:
                with socket.socket(family, kind, protocol) as plain:
                    plain.setblocking(False)
                    try:
                        await loop.sock_connect(plain, at)
                    except ConnectionRefusedError:
                        continue
                    return False
    except OSError:  # TimeoutError too
        return None
    return bool(found)


async def is_gone(address: Address, is_connected: Callable[[], bool], dial: Callable[[], bool]) -> bool:
    """Whether nobody listens there, and nothing `stands` that the process had opened to here. `dial` connects again, unless that
    is under way, and tells whether somebody has proven who it is: then this is over."""
    wait_s, waited_s = AGAIN_S_MIN, 0.0
    while waited_s < PATIENCE_S:
        refused = await is_refused(address)
        if refused is None or (not refused and dial()):
            return False
        if refused and not is_connected():
            return True
        await asyncio.sleep(wait_s)
        waited_s += wait_s
        wait_s = min(2 * wait_s, AGAIN_S_MAX)
    return False
