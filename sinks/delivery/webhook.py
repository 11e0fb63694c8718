"""Windows as CloudEvents 1.0 to a webhook: one POST each, signed as Standard Webhooks says.

    POST /PATH                                        body: {"specversion":"1.0","id":…,"source":…,"type":…,"data":{window}}
    webhook-id: the hash of job, version, window and revision, the same at each repetition
    webhook-timestamp: seconds since 1970, of this attempt
    webhook-signature: v1,BASE64(HMAC-SHA256(secret, "ID.TIMESTAMP.BODY"))

One connection, and one request at a time, so that windows arrive in order. 2xx acknowledges. A status that is about the one
message refuses that message; any other is about the endpoint, and all windows wait.

Sources: https://www.standardwebhooks.com and https://github.com/cloudevents/spec (JSON format, structured mode).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import time
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from elf.sinks.delivery.contract import CONTENT_TYPE, DeliveryError, RefusedError, WindowMessage
from elf.sinks.delivery.http import Endpoint, check, status_text
from elf.sinks.spec import Hook

SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
ABOUT_MESSAGE = {400, 409, 411, 413, 414, 415, 422, 431}
"""Statuses that refuse the one message. All others but 2xx say that the endpoint takes none now."""


class WebhookCarrier:
    """One connection to an endpoint. See `Carrier`."""

    def __init__(self, hook: Hook) -> None:
        self._hook, self._endpoint = hook, Endpoint(hook)

    async def connect(self) -> None:
        _secrets(self._hook.secret)
        await self._endpoint.open()

    async def deliver(self, message: WindowMessage) -> None:
        body = self._body(message)
        answer = await self._endpoint.ask(lambda: self._request(message.id, body))
        if answer.status in ABOUT_MESSAGE:
            status, what = status_text(answer.status), "a window" if message.kind == "window" else "an alert"
            raise RefusedError(f"{self._hook} answered {status} to {what} of {len(body):,} bytes")
        check(answer)

    def _body(self, message: WindowMessage) -> bytes:
        return event_of(message, self._hook.mesh)

    async def gone(self) -> None:
        """An endpoint may close an idle connection: that is no failure."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        self._endpoint.drop()

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
