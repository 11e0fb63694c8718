"""Whether the process behind a lost connection is gone, as the kernel of its host shows.

A kernel closes the sockets of a process that ends, however it ends, and refuses connections to the ports where it listened. So
the end of a process is known in milliseconds, while a lost host or network shows only by a timeout.

    a connection to a neighbour that had proven its identity was lost, and a plain TCP connect to the same address
    ---------------------------------------------------------------------------------------------------------------
    is refused; no connection that it opened is open   the process is gone
    is refused; such a connection is open              repeat, for `PATIENCE_S`: a process that ends closes its sockets one by one
    is accepted                                        dial, and repeat until the neighbour has proven its identity. A later life
                                                       is a restart; a stopped process, or another program there, does not answer
    is not answered                                    nothing is known

The neighbour's key had authenticated the lost connection. So only a host at that address or on the way to it can make a process
look gone, and only to this node: other nodes check for themselves.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from elf.srt.messages.addresses import Address

CONNECT_S = 1.0
"""Timeout of a connect, which takes a round trip."""
AGAIN_S_MIN, AGAIN_S_MAX = 0.01, 0.08
"""Between attempts; doubled each time."""
PATIENCE_S = 2.0
"""How long to repeat: on a busy host a process that ends takes a while to close all its sockets."""


async def is_refused(address: Address) -> bool | None:
    """Whether nothing listens there: each address of that name refuses the connection. None: unknown."""
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
    """Whether nothing listens there, and no connection that the process had opened to this node `is_connected`. `dial` connects
    again, unless it is connecting already, and returns whether the neighbour has proven its identity: then the process lives."""
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
