"""The control socket of an agent: how commands on this host reach it (`elf.agent.control.client` is their end).

A unix socket, with mode 0600 from the start, so only users who can read the agent's keys can connect. A socket for a group too
has mode 0660. The kernel reports which user connects: root and the agent's own user may do all, others only read (`Reading`).

A connection carries one request (`elf.agent.control.protocol`) and ends with the last answer or when the command disconnects. All
is bounded: at most `CONNECTIONS_MAX` connections, `READERS_MAX` of them of others, whose requests are small; a request must
arrive within `REQUEST_S`, and no further answers are made while a command does not read.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from pathlib import Path

import msgspec

from elf.agent.control.client import address_of
from elf.agent.control.protocol import (
    LENGTH,
    REQUEST_BYTES_MAX,
    Answer,
    AnyRequest,
    Failed,
    Reading,
    frame,
    request_of,
)
from elf.errors import ElfError, PeerError, UsageError

CONNECTIONS_MAX = 32
READERS_MAX = 16
BUFFER_BYTES = 16 << 10
"""Read-ahead of a connection, and the size above which a request is large; twice that for each connection is 1 MiB."""
LARGE_MAX = 2
"""Large requests that are read at a time, 2 MiB each."""
REQUEST_S = 5.0

PEER = struct.Struct("iII")
"""What SO_PEERCRED reports of the peer: process, user, group."""
READ_ONLY = (
    "only root and the user that runs this agent may change anything; as another member of its control_group you may read: "
    "elf job list, show, history and watch, elf mesh status, tree and audit. Run this command as that user (sudo -u …)"
)

Serve = Callable[[AnyRequest], AsyncGenerator[Answer, None]]
"""The answers to one request, in order. An ElfError that it raises becomes `Failed`."""


class ControlServer:
    """The agent's end, on the running loop."""

    def __init__(self, path: Path, serve: Serve, group: int | None = None) -> None:
        """group: whose members may read."""
        self.path, self._serve, self._group = path, serve, group
        self._readers = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._large = asyncio.Semaphore(LARGE_MAX)

    async def start(self) -> None:
        """Listen. Replaces a socket that an earlier agent left, since this one holds the lock of state_dir. Raises OSError."""
        with suppress(FileNotFoundError):
            self.path.unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)  # the socket never has another mode
        try:
            with address_of(self.path) as address:
                listening.bind(address)
            if self._group is not None:
                self._open_to(self._group)
        except BaseException:
            listening.close()
            raise
        finally:
            os.umask(before)
        self._server = await asyncio.start_unix_server(self._connected, sock=listening, limit=BUFFER_BYTES)

    def _open_to(self, group: int) -> None:
        """Raises OSError."""
        try:
            os.chown(self.path, -1, group)
        except PermissionError as error:
            raise PermissionError(
                error.errno,
                "the user that runs the agent is no member of its control_group; add it (in a systemd unit: "
                "SupplementaryGroups=), or name another group",
            ) from error
        os.chmod(self.path, 0o660)

    async def close(self) -> None:
        """Close all connections and remove the socket."""
        if self._server is None:
            return
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        with suppress(FileNotFoundError):
            self.path.unlink()
        self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        is_reader = not _may_change(writer)
        self._connections.add(task)
        self._readers += is_reader
        try:
            if len(self._connections) > CONNECTIONS_MAX or (is_reader and self._readers > READERS_MAX):
                text = f"{READERS_MAX if is_reader else CONNECTIONS_MAX} commands are connected to this agent already; end one"
                await _send(writer, Failed(text))
                return
            await self._answer(reader, writer, is_reader)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the command, or the agent, has ended
        finally:
            self._connections.discard(task)
            self._readers -= is_reader
            writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_reader: bool
    ) -> None:
        try:
            # Not `wait_for`: its task and the exception that ended it refer to each other, and keep the bytes read alive.
            async with asyncio.timeout(REQUEST_S):
                request = request_of(
                    await self._read(reader, BUFFER_BYTES if is_reader else REQUEST_BYTES_MAX)
                )
        except (msgspec.MsgspecError, UnicodeDecodeError, PeerError):
            text = "the agent does not know this request; is it of another version of elf?"
            await _send(writer, Failed(text))
            return
        except (TimeoutError, asyncio.IncompleteReadError):
            return
        if is_reader and not isinstance(request, Reading):
            await _send(writer, Failed(READ_ONLY))
            return
        answers = asyncio.create_task(self._send_answers(request, writer))
        hung_up = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait((answers, hung_up), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answers, hung_up):
                task.cancel()
            await asyncio.gather(answers, hung_up, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader, bytes_max: int) -> bytes:
        """Read a request. Raises PeerError if it is too large."""
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if length > bytes_max:
            raise PeerError(f"control socket: a request of {length} bytes")
        if length <= BUFFER_BYTES:
            return await reader.readexactly(length)
        async with self._large:
            return await reader.readexactly(length)

    async def _send_answers(self, request: AnyRequest, writer: asyncio.StreamWriter) -> None:
        try:
            async with aclosing(self._serve(request)) as answers:
                async for answer in answers:
                    await _send(writer, answer)
        except ElfError as error:
            await _send(writer, Failed(str(error), isinstance(error, UsageError)))
        except (OSError, asyncio.CancelledError):
            raise
        except Exception as error:
            traceback.print_exception(error)  # a bug of ours: logged, not swallowed
            text = f"an error of elf in the agent ({type(error).__name__}: {error}); its log says where"
            await _send(writer, Failed(text))


def _may_change(writer: asyncio.StreamWriter) -> bool:
    """Whether root, or the user that runs this agent, has connected."""
    peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    return PEER.unpack(peer)[1] in (0, os.geteuid())


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    writer.write(frame(answer))
    await writer.drain()
