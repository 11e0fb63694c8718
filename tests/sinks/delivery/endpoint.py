"""An endpoint of webhooks for tests: keeps every request, and answers as it is told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from queue import SimpleQueue
from threading import Event, Thread

import msgspec

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
HANG_UP = b""
"""No answer: the connection ends."""


class Request(msgspec.Struct, frozen=True):
    line: str
    headers: dict[str, str]
    body: bytes


class Endpoint:
    """requests: as they came. answers: to the next requests; `OK` once there are none. silent: these get none until the client
    leaves. connections: how many there were."""

    def __init__(self) -> None:
        self.requests: SimpleQueue[Request] = SimpleQueue()
        self.answers: list[bytes] = []
        self.is_silent = False
        self.connections = self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
                line, *fields = head.rstrip("\r\n").split("\r\n")
                headers = dict(each.split(": ", 1) for each in fields)
                self.requests.put(
                    Request(line, headers, await reader.readexactly(int(headers["content-length"])))
                )
                if self.is_silent:
                    await reader.read()
                answer = self.answers.pop(0) if self.answers else OK
                writer.write(answer)
                await writer.drain()
                if answer == HANG_UP or b"\r\nconnection: close\r\n" in answer:
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # cancelled at the end of the test: a stream would print it
        finally:
            writer.close()


@asynccontextmanager
async def listening(tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[Endpoint]:
    """On a free port of the loopback, in this loop."""
    endpoint = Endpoint()
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", port, ssl=tls)
    endpoint.port = server.sockets[0].getsockname()[1]
    try:
        yield endpoint
    finally:
        server.close()


@contextmanager
def endpoint_in_thread() -> Iterator[Endpoint]:
    """For tests whose agent has a loop of its own."""
    found: list[Endpoint] = []
    ready = Event()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with listening() as endpoint:
            found.append(endpoint)
            ready.set()
            await over.wait()

    thread = Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
