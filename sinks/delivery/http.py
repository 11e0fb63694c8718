"""A connection to an HTTP endpoint that a file names: one request at a time.

The endpoint is the operator's, but its name is resolved by others: addresses of the link are refused (there, clouds keep their
metadata and credentials), private ones unless the file allows them, and the connection goes to the address that was examined.
Redirects are not followed. Of an answer at most `HEAD_BYTES_MAX` and `BODY_BYTES_MAX` are read.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from elf.sinks.delivery.contract import DeliveryError
from elf.sinks.spec import Hook

ANSWER_S = 20.0
"""How long the endpoint may take to answer a connection, and a request."""
HEAD_BYTES_MAX = 16 << 10
BODY_BYTES_MAX = 64 << 10
"""Of an answer; after a longer one the connection is closed."""
WAIT_S_MAX = 600.0
"""Of what an endpoint asks for by Retry-After."""


class Answer(NamedTuple):
    """waits_s: of Retry-After. text: the body, or b"" if it is long."""

    status: int
    waits_s: float
    text: bytes


class Endpoint:
    """The connection, which is made again where it has ended."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

    async def ask(self, make: Callable[[], bytes]) -> Answer:
        """Send the request that is made when it is its turn. Raises DeliveryError."""
        async with self._turn:
            try:
                async with asyncio.timeout(ANSWER_S):
                    return await self._exchange(make())
            except TimeoutError:
                self.drop()
                raise DeliveryError(f"no answer within {ANSWER_S:.0f} s") from None
            except DeliveryError:
                self.drop()
                raise

    def drop(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first address that accepts. Raises DeliveryError."""
        hook, problem = self._hook, "no address"
        for address in await _addresses(hook):
            try:
                tls = (
                    ssl.create_default_context(cafile=str(hook.ca) if hook.ca else None) if hook.tls else None
                )
                opening = asyncio.open_connection(
                    address,
                    hook.port,
                    ssl=tls,
                    server_hostname=hook.host if hook.tls else None,
                    limit=HEAD_BYTES_MAX,
                )
                async with asyncio.timeout(ANSWER_S):
                    self._streams = await opening
                return self._streams
            except TimeoutError:
                problem = f"no connection within {ANSWER_S:.0f} s"
            except (OSError, ValueError) as error:
                problem = _text(error)
        raise DeliveryError(problem)

    async def _exchange(self, request: bytes) -> Answer:
        """Raises DeliveryError.

        A connection that has been idle may be closed by the other end at this moment: then once more, on a new one.
        """
        if (streams := self._streams) is not None and not streams[0].at_eof():
            try:
                return await self._ask(*streams, request)
            except (OSError, asyncio.IncompleteReadError):
                pass
        self.drop()
        try:
            return await self._ask(*await self.open(), request)
        except asyncio.IncompleteReadError:
            raise DeliveryError("it ended the connection without an answer") from None
        except OSError as error:
            raise DeliveryError(_text(error)) from None

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
    ) -> Answer:
        """Raises DeliveryError, OSError, IncompleteReadError."""
        writer.write(request)
        await writer.drain()
        status = 0
        while status // 100 in (0, 1):  # 1xx comes before the answer
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                raise DeliveryError("its answer is no HTTP/1.1") from None
            found = re.match(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?\r\n", head)
            if found is None:
                raise DeliveryError("its answer is no HTTP/1.1")
            status = int(found[1])
        fields = _fields(head)
        text = await _body(reader, status, fields)
        if text is None or fields.get("connection", "").lower() == "close":
            self.drop()
        return Answer(status, _waits_s(fields.get("retry-after", "")), text or b"")


def check(answer: Answer) -> None:
    """Raises DeliveryError for an answer that is about the endpoint, and not 2xx."""
    if 200 <= answer.status < 300:
        return
    problem = f"it answered {status_text(answer.status)}"
    if 300 <= answer.status < 400:
        raise DeliveryError(f"{problem}; redirects are not followed: name the new address")
    raise DeliveryError(problem, answer.waits_s)


async def _addresses(hook: Hook) -> list[str]:
    """The addresses of an endpoint to which windows may go. Raises DeliveryError."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(hook.host, hook.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DeliveryError(f"{hook.host}: {_text(error)}") from None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    reasons = [reason for each in addresses if (reason := refusal_of(each, hook.is_private))]
    if reasons:  # a name with one such address is not to be trusted with the others
        raise DeliveryError(f"{hook.host}: {reasons[0]}")
    return addresses


def refusal_of(address: str, is_private: bool) -> str:
    """Why no window goes to that address; "" if it may. is_private: the file allows addresses of the operator's own networks."""
    ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return f"{address} is an address of the link, or of no host: refused"
    if not (ip.is_global or is_private):
        return f"{address} is a private address; private = true allows it"
    return ""


def _fields(head: bytes) -> dict[str, str]:
    """The header fields of an answer, with names in lower case. The last of several counts."""
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, status: int, fields: dict[str, str]) -> bytes | None:
    """The body of an answer. None if the connection cannot be used again: the body is long, or of unknown length."""
    if status in {204, 304}:
        return b""
    length = fields.get("content-length", "")
    if "transfer-encoding" in fields or not re.fullmatch(r"\d{1,9}", length) or int(length) > BODY_BYTES_MAX:
        return None
    try:
        return await reader.readexactly(int(length))
    except (OSError, asyncio.IncompleteReadError):
        return None


def _waits_s(text: str) -> float:
    """Of Retry-After, which holds seconds or a date; 0 for anything else."""
    if re.fullmatch(r"\d{1,9}", text):
        return min(float(text), WAIT_S_MAX)
    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time.time()), WAIT_S_MAX)
    except (ValueError, OverflowError):
        return 0.0


def status_text(status: int) -> str:
    import http

    try:
        return f"{status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _text(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, socket.gaierror) or not isinstance(error, OSError) or error.errno is None:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{error.filename}: {error.strerror}" if error.filename else os.strerror(error.errno)


def authorization(path: Path | None) -> list[str]:
    """The header line, or none. The file is read at each request. Raises DeliveryError, whose text contains no secret."""
    if path is None:
        return []
    try:
        if os.stat(path).st_mode & 0o007:
            raise DeliveryError(f"{path}: other users may read it; chmod 600 {path}")
        pair = path.read_bytes().strip(b"\r\n")
    except OSError as error:
        raise DeliveryError(f"{path}: {error.strerror}") from None
    if not pair.partition(b":")[1] or b"\n" in pair:
        raise DeliveryError(f"{path}: expected one line, USER:PASSWORD")
    return [f"authorization: Basic {b64encode(pair).decode()}"]
