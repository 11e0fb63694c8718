"""Visitors: the schedule of `site.visits` sent as real HTTP requests over loopback, on time, a bounded number at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from elf.agent.demo.site import Visit

CONNECTIONS = 24
WAITING = 512
"""Requests that may wait for a connection: a server slower than the schedule slows the visitors down."""


class Sent(msgspec.Struct):
    """The results: answers by status, and failed requests."""

    statuses: dict[int, int] = msgspec.field(default_factory=dict)
    failed: int = 0

    @property
    def answered(self) -> int:
        return sum(self.statuses.values())


async def send(port: int, visits: Iterable[Visit], each: Callable[[Visit], None] = lambda _: None) -> Sent:
    """Send every visit at its time; `each` is called for each one sent. Returns when all are answered."""
    sent = Sent()
    queue: asyncio.Queue[Visit | None] = asyncio.Queue(WAITING)
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(_visitor(port, queue, sent))
        began = asyncio.get_running_loop().time()
        for visit in visits:
            wait = began + visit.at - asyncio.get_running_loop().time()
            if wait > 0.002:  # shorter waits are not worth a round of the loop
                await asyncio.sleep(wait)
            each(visit)
            await queue.put(visit)
        for _ in range(CONNECTIONS):
            await queue.put(None)
    return sent


async def _visitor(port: int, queue: asyncio.Queue[Visit | None], sent: Sent) -> None:
    """One connection, opened again when the server closes it."""
    stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    while visit := await queue.get():
        try:
            if stream is None:
                stream = await asyncio.open_connection("127.0.0.1", port)
            status, stays = await _ask(*stream, visit)
            sent.statuses[status] = sent.statuses.get(status, 0) + 1
        except (OSError, asyncio.IncompleteReadError, ValueError):
            sent.failed += 1
            stays = False
        if not stays and stream is not None:
            stream[1].close()
            stream = None
    if stream is not None:
        stream[1].close()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visit: Visit) -> tuple[int, bool]:
    """Send one request and read its answer: (status, whether the connection stays open)."""
    writer.write(request(visit))
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status = int(head.split(" ", 2)[1])
    fields = dict(line.lower().split(":", 1) for line in head.split("\r\n")[1:] if ":" in line)
    await reader.readexactly(int(fields.get("content-length", "0")))
    return status, fields.get("connection", "").strip() != "close"


def request(visit: Visit) -> bytes:
    """The bytes of one request."""
    lines = [
        f"{visit.method} {visit.target} HTTP/1.1",
        "Host: shop.example",
        f"User-Agent: {visit.agent}",
        f"X-Forwarded-For: {visit.client}",
    ]
    if visit.referer != "-":
        lines.append(f"Referer: {visit.referer}")
    if visit.known:
        lines.append("If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT")
    body = b"card=1" if visit.method == "POST" else b""
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
