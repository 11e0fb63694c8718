"""One connection to a webhook's endpoint: what it is sent, what its answers mean, and what nobody is sent."""

from __future__ import annotations

import asyncio
import json
import socket
from base64 import b64encode
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_structured_event
from standardwebhooks import Webhook, WebhookVerificationError

from elf.sinks.delivery import http
from elf.sinks.delivery.contract import DeliveryError, RefusedError, WindowMessage
from elf.sinks.delivery.http import refusal_of
from elf.sinks.delivery.webhook import WebhookCarrier
from elf.sinks.spec import HOOK_EXPECTED, Hook, parse_hook
from tests.sinks.delivery.endpoint import HANG_UP, OK, Endpoint, Request, listening

PATIENCE_S = 60.0
SECRET = "whsec_" + b64encode(bytes(range(32))).decode()
BODY = b'{"_elf":{"job":"hits"},"rows":[{"path":"/","n":1},\n{"path":"\xc3\xa9","n":2}]}'
MESSAGE = WindowMessage("0" * 32, "hits/a b", "v1", "final", "1.0.1", "ff", BODY, True, 3600)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "hook.secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def do(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def local(endpoint: Endpoint, secret: Path) -> Hook:
    return Hook("127.0.0.1", endpoint.port, False, "/in?key=1", secret=secret, is_private=True)


def answered(
    secret: Path, *answers: bytes, times: int = 1
) -> tuple[Endpoint, list[Request], list[Exception | None]]:
    """Deliver the message so often, after another to the same connection; returns the requests and what came of each."""

    async def deliver() -> tuple[Endpoint, list[Exception | None]]:
        async with listening() as endpoint:
            carrier = WebhookCarrier(local(endpoint, secret))
            await carrier.connect()
            endpoint.answers = list(answers)
            found: list[Exception | None] = []
            for _ in range(times):
                try:
                    await carrier.deliver(MESSAGE)
                    found.append(None)
                except (DeliveryError, RefusedError) as error:
                    found.append(error)
            await carrier.close()
            return endpoint, found

    endpoint, found = do(deliver())
    return endpoint, [endpoint.requests.get() for _ in range(endpoint.requests.qsize())], found


# What needs no endpoint.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://h.example.com/in/abc", Hook("h.example.com", 443, True, "/in/abc")),
        ("http://10.0.0.1:8080", Hook("10.0.0.1", 8080, False, "/")),
        ("https://[::1]:444/a?b=c&d", Hook("::1", 444, True, "/a?b=c&d")),
    ],
)
def test_addresses_of_endpoints(text: str, expected: Hook) -> None:
    assert parse_hook(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "ftp://h",
        "https://",
        "https://u:p@h/",
        "https://h:0/",
        "https://h:x/",
        "https://h/#f",
        "https://h/a b",
        7,
    ],
)
def test_what_is_no_address_of_an_endpoint(text: object) -> None:
    with pytest.raises(ValueError, match="https://HOST/PATH") as caught:
        parse_hook(text)
    assert str(caught.value) == HOOK_EXPECTED


def test_the_path_is_a_secret_and_not_shown() -> None:
    assert str(parse_hook("https://h.example.com/T0/SECRET?k=v")) == "https://h.example.com"
    assert str(parse_hook("http://[fd00::1]:81/")) == "http://[fd00::1]:81"


@pytest.mark.parametrize(
    ("address", "public", "private"),
    [
        ("93.184.216.34", True, True),
        ("2606:2800:220:1::1", True, True),
        ("10.1.2.3", False, True),
        ("127.0.0.1", False, True),
        ("192.168.0.9", False, True),
        ("::1", False, True),
        ("fd00::1", False, True),
        ("100.64.0.1", False, True),
        ("169.254.169.254", False, False),
        ("fe80::1%eth0", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("::ffff:10.0.0.1", False, True),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("224.0.0.1", False, False),
    ],
)
def test_addresses_to_which_no_window_goes(address: str, public: bool, private: bool) -> None:
    assert (not refusal_of(address, False), not refusal_of(address, True)) == (public, private)


@pytest.mark.parametrize("lines", ["", "whsec_", "short", "whsec_!!!!", SECRET + "\nwhsec_AAAA", "whsec_é"])
def test_a_secret_that_is_none_is_named_and_not_shown(secret: Path, lines: str) -> None:
    secret.write_text(lines)
    with pytest.raises(DeliveryError, match=r"expected whsec_BASE64 of 24 to 64 bytes") as caught:
        do(WebhookCarrier(Hook("127.0.0.1", 1, False, "/", secret=secret)).connect())
    assert SECRET not in str(caught.value)


def test_a_secret_that_others_may_read_is_refused(secret: Path) -> None:
    secret.chmod(0o604)
    with pytest.raises(DeliveryError, match=r"other users may read it; chmod 600"):
        do(WebhookCarrier(Hook("127.0.0.1", 1, False, "/", secret=secret)).connect())
    with pytest.raises(DeliveryError, match=r"none: No such file"):
        do(WebhookCarrier(Hook("127.0.0.1", 1, False, "/", secret=secret.with_name("none"))).connect())


def test_a_name_that_leads_to_the_link_is_refused(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect() -> None:
        async def resolve(*about: Any, **more: Any) -> list[Any]:
            return [(0, 0, 0, "", ("93.184.216.34", 80)), (0, 0, 0, "", ("169.254.169.254", 80))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        await WebhookCarrier(Hook("h.example.com", 80, False, "/", secret=secret, is_private=True)).connect()

    with pytest.raises(DeliveryError, match=r"h.example.com: 169.254.169.254 is an address of the link"):
        do(connect())


def test_a_private_address_needs_the_files_word(secret: Path) -> None:
    with pytest.raises(DeliveryError, match=r"127.0.0.1 is a private address; private = true allows it"):
        do(WebhookCarrier(Hook("127.0.0.1", 1, False, "/", secret=secret)).connect())


@pytest.mark.process
def test_nobody_listens(secret: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        hook = Hook("127.0.0.1", bound.getsockname()[1], False, "/", secret=secret, is_private=True)
        with pytest.raises(DeliveryError, match=r"^Connection refused$"):
            do(WebhookCarrier(hook).connect())


# With an endpoint.


@pytest.mark.process
def test_the_reference_libraries_accept_what_is_sent(secret: Path) -> None:
    _, (request,), outcome = answered(secret)
    assert outcome == [None]
    assert request.line == "POST /in?key=1 HTTP/1.1"
    assert request.headers["host"].startswith("127.0.0.1:")
    assert Webhook(SECRET).verify(request.body, request.headers) == json.loads(request.body)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(request.body.replace(b"final", b"open!"), request.headers)
    event = from_structured_event(HTTPMessage(request.headers, request.body))
    assert (event.get_id(), event.get_source()) == (MESSAGE.id, "/elf/v1/main/hits%2Fa%20b")
    assert (event.get_type(), event.get_specversion()) == ("elf.window", "1.0")
    assert event.get_datacontenttype() == "application/json"
    assert event.get_data() == json.loads(BODY)
    assert [event.get_extension(name) for name in ("status", "revision", "jobversion")] == [
        "final",
        "1.0.1",
        "v1",
    ]
    assert request.headers["webhook-id"] == MESSAGE.id


@pytest.mark.process
def test_a_receiver_may_know_the_old_secret_or_the_new_one(secret: Path) -> None:
    other = "whsec_" + b64encode(b"x" * 24).decode()
    secret.write_text(f"{other}\n{SECRET}\n")
    _, (request,), _ = answered(secret)
    for each in (SECRET, other):
        assert Webhook(each).verify(request.body, request.headers)


@pytest.mark.process
def test_windows_go_one_after_another_over_one_connection(secret: Path) -> None:
    async def deliver() -> Endpoint:
        async with listening() as endpoint:
            carrier = WebhookCarrier(local(endpoint, secret))
            await carrier.connect()
            messages = [
                WindowMessage(f"{n:032x}", "a", "v", "final", "1", "f", b"{}", True, 1) for n in range(20)
            ]
            await asyncio.gather(*map(carrier.deliver, messages))
            await carrier.close()
            return endpoint

    endpoint = do(deliver())
    assert [endpoint.requests.get().headers["webhook-id"] for _ in range(20)] == [
        f"{n:032x}" for n in range(20)
    ]
    assert endpoint.connections == 1


@pytest.mark.process
@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_2xx_acknowledges(secret: Path, status: int) -> None:
    assert answered(secret, b"HTTP/1.1 %d Fine\r\n\r\n" % status)[2] == [None]


@pytest.mark.process
@pytest.mark.parametrize("status", [400, 413, 422])
def test_the_one_message_is_refused_and_the_next_goes_on(secret: Path, status: int) -> None:
    refusal = b"HTTP/1.1 %d No\r\ncontent-length: 6\r\n\r\nsecret" % status
    endpoint, requests, (first, second) = answered(secret, refusal, OK, times=2)
    assert isinstance(first, RefusedError)
    assert f"answered {status} " in str(first)
    assert f"{len(requests[0].body):,} bytes" in str(first)
    assert "secret" not in str(first)
    assert (second, endpoint.connections) == (None, 1)


@pytest.mark.process
@pytest.mark.parametrize(
    ("answer", "expected", "after_s"),
    [
        (b"HTTP/1.1 301 Moved\r\nlocation: http://127.0.0.1/\r\n\r\n", "301 Moved Permanently; redirects are not", 0),
        (b"HTTP/1.1 401 No\r\n\r\n", "it answered 401 Unauthorized", 0),
        (b"HTTP/1.1 410 Gone\r\n\r\n", "it answered 410 Gone", 0),
        (b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\n\r\n", "it answered 429 Too Many Requests", 7),
        (b"HTTP/1.1 503 No\r\nretry-after: 99999\r\n\r\n", "it answered 503 Service Unavailable", 600),
        (b"HTTP/1.1 503 No\r\nretry-after: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\n", "it answered 503", 0),
        (b"HTTP/1.1 599 No\r\nretry-after: soon\r\n\r\n", "it answered 599", 0),
        (HANG_UP, "it ended the connection without an answer", 0),
        (b"SSH-2.0-x\r\n\r\n", "its answer is no HTTP/1.1", 0),
        (b"HTTP/1.1 200 " + b"x" * 20_000 + b"\r\n\r\n", "its answer is no HTTP/1.1", 0),
    ],
)  # fmt: skip
def test_the_endpoint_takes_none_now(secret: Path, answer: bytes, expected: str, after_s: float) -> None:
    _, _, (error,) = answered(secret, *([answer] * 2))
    assert isinstance(error, DeliveryError)
    assert expected in str(error)
    assert error.after_s == after_s


@pytest.mark.process
@pytest.mark.parametrize(
    "first",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nHTTP/\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\ncontent-length: x\r\n\r\n",
    ],
)
def test_an_answer_that_is_not_read_whole_ends_the_connection_and_the_next_window_has_its_own(
    secret: Path, first: bytes
) -> None:
    endpoint, requests, outcomes = answered(secret, first, OK, times=2)
    assert (outcomes, len(requests), endpoint.connections) == ([None, None], 2, 2)


@pytest.mark.process
def test_an_interim_answer_is_none(secret: Path) -> None:
    assert answered(secret, b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK)[2] == [None]


@pytest.mark.process
def test_an_idle_connection_that_was_closed_is_opened_again(secret: Path) -> None:
    """The request may have arrived: it comes again with the same id."""
    endpoint, requests, outcomes = answered(secret, OK, HANG_UP, OK, times=2)
    assert (outcomes, endpoint.connections) == ([None, None], 2)
    assert [each.headers["webhook-id"] for each in requests] == [MESSAGE.id] * 3


@pytest.mark.process
def test_an_endpoint_that_does_not_answer(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_S", 0.3)

    async def deliver() -> None:
        async with listening() as endpoint:
            carrier = WebhookCarrier(local(endpoint, secret))
            await carrier.connect()
            endpoint.is_silent = True
            try:
                await carrier.deliver(MESSAGE)
            finally:
                await carrier.close()

    with pytest.raises(DeliveryError, match=r"^no answer within"):
        do(deliver())
