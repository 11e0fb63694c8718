"""Windows as CloudEvents 1.0 to a webhook: one POST each, signed as Standard Webhooks says.

    POST /PATH                                        body: {"specversion":"1.0","id":…,"source":…,"type":…,"data":{window}}
    webhook-id: the hash of job, version, window and revision, the same at each repetition
    webhook-timestamp: seconds since 1970, of this attempt
    webhook-signature: v1,BASE64(HMAC-SHA256(secret, "ID.TIMESTAMP.BODY"))

One connection, and one request at a time, so that windows arrive in order. 2xx acknowledges. A status that is about the one
message refuses that message; any other is about the endpoint, and all windows wait.

The endpoint is the operator's, but its name is resolved by others: addresses of the link are refused (there, clouds keep their
metadata and credentials), private ones unless the file allows them, and the connection goes to the address that was examined.
Redirects are not followed. Of an answer at most `HEAD_BYTES_MAX` and `BODY_BYTES_MAX` are read.

Sources: https://www.standardwebhooks.com and https://github.com/cloudevents/spec (JSON format, structured mode).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import socket
import ssl
import time
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from contextlib import suppress
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import quote

import msgspec

from elf.sinks.delivery.contract import CONTENT_TYPE, DeliveryError, RefusedError, WindowMessage
from elf.sinks.spec import Hook

ANSWER_S = 20.0
"""How long the endpoint may take to answer a connection, and a request."""
HEAD_BYTES_MAX = 16 << 10
BODY_BYTES_MAX = 64 << 10
"""Of an answer; after a longer one the connection is closed."""
WAIT_S_MAX = 600.0
"""Of what an endpoint asks for by Retry-After."""
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
ABOUT_MESSAGE = {400, 409, 411, 413, 414, 415, 422, 431}
"""Statuses that refuse the one message. All others but 2xx say that the endpoint takes none now."""


class WebhookCarrier:
    """One connection to an endpoint. See `Carrier`."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

    async def connect(self) -> None:
        _secrets(self._hook.secret)
        await self._open()

    async def deliver(self, message: WindowMessage) -> None:
        async with self._turn:
            body = self._body(message)
            request = self._request(message.id, body)
            try:
                status, waits_s = await asyncio.wait_for(self._exchange(request), ANSWER_S)
            except TimeoutError:
                self._drop()
                raise DeliveryError(f"no answer within {ANSWER_S:.0f} s") from None
            except DeliveryError:
                self._drop()
                raise
        if 200 <= status < 300:
            return
        if status in ABOUT_MESSAGE:
            raise RefusedError(
                f"{self._hook} answered {_status(status)} to {_what(message)} of {len(body):,} bytes"
            )
        if 300 <= status < 400:
            raise DeliveryError(
                f"it answered {_status(status)}; redirects are not followed: name the new address"
            )
        raise DeliveryError(f"it answered {_status(status)}", waits_s)

    def _body(self, message: WindowMessage) -> bytes:
        return event_of(message, self._hook.mesh)

    async def gone(self) -> None:
        """An endpoint may close an idle connection: that is no failure."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        self._drop()

    def _drop(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
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
                self._streams = await asyncio.wait_for(opening, ANSWER_S)
                return self._streams
            except TimeoutError:
                problem = f"no connection within {ANSWER_S:.0f} s"
            except (OSError, ValueError) as error:
                problem = _text(error)
        raise DeliveryError(problem)

    async def _exchange(self, request: bytes) -> tuple[int, float]:
        """Send a request. Returns the answer's status and Retry-After in seconds. Raises DeliveryError.

        A connection that has been idle may be closed by the other end at this moment: then once more, on a new one.
        """
        if (streams := self._streams) is not None and not streams[0].at_eof():
            try:
                return await self._ask(*streams, request)
            except (OSError, asyncio.IncompleteReadError):
                pass
        self._drop()
        try:
            return await self._ask(*await self._open(), request)
        except asyncio.IncompleteReadError:
            raise DeliveryError("it ended the connection without an answer") from None
        except OSError as error:
            raise DeliveryError(_text(error)) from None

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
    ) -> tuple[int, float]:
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
        if not await _skip_body(reader, status, fields) or fields.get("connection", "").lower() == "close":
            self._drop()
        return status, _waits_s(fields.get("retry-after", ""))

    def _request(self, identifier: str, body: bytes) -> bytes:
        hook, at = self._hook, int(time.time())
        signed = b".".join((identifier.encode(), b"%d" % at, body))
        signatures = " ".join(
            "v1," + b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
            for secret in _secrets(hook.secret)
        )
        head = (
            f"POST {hook.path} HTTP/1.1",
            f"host: {hook.authority}",
            "content-type: application/cloudevents+json; charset=utf-8",
            f"content-length: {len(body)}",
            "user-agent: elf",
            f"webhook-id: {identifier}",
            f"webhook-timestamp: {at}",
            f"webhook-signature: {signatures}",
        )
        return "\r\n".join((*head, "", "")).encode("ascii") + body


def event_of(message: WindowMessage, mesh: str) -> bytes:
    """The window as a CloudEvent, in JSON. `source` and `id` together identify it."""
    about = {
        "specversion": "1.0",
        "id": message.id,
        "source": f"/elf/v1/{quote(mesh, safe='')}/{quote(message.job, safe='')}",
        "type": f"elf.{message.kind}",
        "datacontenttype": CONTENT_TYPE,
        "jobversion": message.version,
        "status": message.status,
        "revision": message.revision,
    }
    return msgspec.json.encode(about)[:-1] + b',"data":' + message.body + b"}"


def _what(message: WindowMessage) -> str:
    return "a window" if message.kind == "window" else "an alert"


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


def _secrets(path: Path) -> list[bytes]:
    """The secrets of the file, one on each line: a receiver that knows any of them accepts a signature. Raises DeliveryError,
    whose text contains none of them."""
    try:
        if os.stat(path).st_mode & 0o007:
            raise DeliveryError(f"{path}: other users may read it; chmod 600 {path}")
        lines = path.read_text("ascii").split()
    except OSError as error:
        raise DeliveryError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        lines = [""]
    secrets = []
    for line in lines or [""]:
        with suppress(Base64Error):
            secrets.append(b64decode(line.removeprefix("whsec_"), validate=True))
    if len(secrets) < max(1, len(lines)) or not all(
        SECRET_BYTES_MIN <= len(each) <= SECRET_BYTES_MAX for each in secrets
    ):
        raise DeliveryError(
            f"{path}: expected whsec_BASE64 of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, one on each line"
        )
    return secrets


def _fields(head: bytes) -> dict[str, str]:
    """The header fields of an answer, with names in lower case. The last of several counts."""
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _skip_body(reader: asyncio.StreamReader, status: int, fields: dict[str, str]) -> bool:
    """Read the body of an answer. False if the connection cannot be used again: the body is long, or of unknown length."""
    if status in {204, 304}:
        return True
    length = fields.get("content-length", "")
    if "transfer-encoding" in fields or not re.fullmatch(r"\d{1,9}", length) or int(length) > BODY_BYTES_MAX:
        return False
    try:
        await reader.readexactly(int(length))
    except (OSError, asyncio.IncompleteReadError):
        return False
    return True


def _waits_s(text: str) -> float:
    """Of Retry-After, which holds seconds or a date; 0 for anything else."""
    if re.fullmatch(r"\d{1,9}", text):
        return min(float(text), WAIT_S_MAX)
    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time.time()), WAIT_S_MAX)
    except (ValueError, OverflowError):
        return 0.0


def _status(status: int) -> str:
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
