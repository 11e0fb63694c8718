"""A small web server for machines without nginx: it serves the demo's site and writes the same access log.

    python -m elf.agent.demo.origin PORT FOLDER LOG

SIGUSR1 reopens the log, as with nginx; SIGTERM ends it. Loopback only, GET and POST, HTTP/1.1 with keep-alive.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs

import msgspec

HEAD_MAX = 16 << 10
BODY_MAX = 64 << 10
PHRASES = {
    200: "OK",
    201: "Created",
    301: "Moved Permanently",
    304: "Not Modified",
    404: "Not Found",
    503: "Busy",
}


class Request(msgspec.Struct, frozen=True):
    """line: the request line as it came. headers: by lower-case name."""

    line: str
    headers: Mapping[str, str]

    @property
    def target(self) -> tuple[str, str]:
        """(path, query)."""
        parts = self.line.split(" ")
        path, _, query = (parts[1] if len(parts) == 3 else "/").partition("?")
        return path, query


class Origin:
    """The server and its log. clock: seconds, for durations; wall: unix seconds, for times in the log."""

    def __init__(
        self,
        folder: Path,
        log: Path,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._log_path, self._clock, self._wall = folder.resolve(), log, clock, wall
        self._log: BinaryIO = log.open("ab", buffering=0)

    def reopen(self) -> None:
        """Open a new file under the log's name, after it was renamed."""
        self._log.close()
        self._log = self._log_path.open("ab", buffering=0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the other side closes it or breaks the protocol."""
        try:
            while request := await read_request(reader):
                began = self._clock()
                status, body = self.answer(request)
                writer.write(response(status, body))
                await writer.drain()
                self._note(request, status, len(body), self._clock() - began)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # the visitor disconnected or sent no HTTP: nothing to answer
        finally:
            writer.close()

    def answer(self, request: Request) -> tuple[int, bytes]:
        """Status and body, as nginx gives them with the demo's configuration."""
        path, query = request.target
        if path == "/api/pay":
            return (503, b"declined\n") if "declined" in parse_qs(query) else (201, b"{}\n")
        if path == "/search":
            return 200, b"no luck\n" * (1 + len(query))
        if path == "/old":
            return 301, b""
        name = "index.html" if path == "/" else path.lstrip("/")
        name += ".html" if name.startswith(("products/", "cart")) else ""
        file = (self._folder / name).resolve()
        if not file.is_relative_to(self._folder) or not file.is_file():
            return 404, b"not found\n"
        return (304, b"") if "if-modified-since" in request.headers else (200, file.read_bytes())

    def _note(self, request: Request, status: int, size: int, seconds: float) -> None:
        headers = request.headers
        at = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(self._wall()))
        fields = [quoted(headers.get(name, "-")) for name in ("x-forwarded-for", "referer", "user-agent")]
        line = f'{fields[0]} - - [{at}] "{quoted(request.line)}" {status} {size} "{fields[1]}" "{fields[2]}" {seconds:.3f}\n'
        self._log.write(line.encode("latin-1", "replace"))


def quoted(text: str) -> str:
    """`text` as nginx logs it: quotes, backslashes and unprintable characters as \\xHH."""
    return "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\x{ord(c):02X}" for c in text)


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection; None at its end. Raises ValueError for one that is too large or malformed."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *rest = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    headers = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(line)
        headers[name.strip().lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    if not 0 <= length <= BODY_MAX:
        raise ValueError("body too large")
    await reader.readexactly(length)
    return Request(first, headers)


def response(status: int, body: bytes) -> bytes:
    length = "" if status == 304 else f"Content-Length: {len(body)}\r\n"
    place = "Location: /\r\n" if status == 301 else ""
    return f"HTTP/1.1 {status} {PHRASES[status]}\r\n{length}{place}\r\n".encode() + body


async def run(port: int, folder: Path, log: Path) -> None:
    """Serve on loopback until SIGTERM."""
    origin = Origin(folder, log)
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, origin.reopen)
    loop.add_signal_handler(signal.SIGTERM, done.set)
    async with await asyncio.start_server(origin.serve, "127.0.0.1", port, limit=HEAD_MAX):
        await done.wait()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])))
