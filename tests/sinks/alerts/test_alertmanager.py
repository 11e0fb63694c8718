"""Alerts to Alertmanager: what it is sent, and what a real one makes of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from elf.agent.host.sinks.alert_outlets import message_of
from elf.jobmaster.alerts.book import Transition, identifier
from elf.jobmaster.directory.job_spec import JobSpec, Version
from elf.sinks.delivery.alertmanager import FIRING_S, AlertmanagerCarrier, alert_of, label_name
from elf.sinks.delivery.contract import DeliveryError, RefusedError, WindowMessage
from elf.sinks.spec import Hook
from tests.sinks.alerts.alertmanager import Alertmanager, alertmanager
from tests.sinks.delivery.endpoint import endpoint_in_thread
from tests.sinks.delivery.mosquitto import PATIENCE_S

SPEC = JobSpec("web", 1, "access", (Version("v", b"", ""),))
NOW_US = 1_795_649_075_000_000


def change(state: str, *, path: str = "/api", at_us: int = NOW_US, **more: Any) -> Transition:
    about = {"text": f"{path}: 23", "labels": (("severity", "page"),), **more}
    return Transition("many", (("path", path),), state, at_us, at_us - 10_000_000, **about)  # type: ignore[arg-type]


def event(found: Transition) -> dict[str, Any]:
    return dict(json.loads(message_of(SPEC, found).body))


def test_an_alert_is_known_by_its_labels_and_ends_unless_it_is_sent_again() -> None:
    now_s = NOW_US / 1e6
    sent = alert_of(event(change("firing")), now_s)
    labels = {"alertname": "many", "job": "web", "path": "/api", "severity": "page"}
    assert sent == {
        "labels": labels,
        "annotations": {"summary": "/api: 23"},
        "startsAt": "2026-11-25T23:24:25Z",
        "endsAt": "2026-11-25T23:28:35Z",
    }
    assert FIRING_S == 240
    over = alert_of(event(change("resolved", at_us=NOW_US)), now_s + 60)
    assert (over["labels"], over["endsAt"]) == (labels, "2026-11-25T23:24:35Z")


def test_names_and_values_that_alertmanager_refuses_are_changed() -> None:
    assert [label_name(each) for each in ("http.route", "x-id", "9lives", "ok_1", "é")] == [
        "http_route", "x_id", "_9lives", "ok_1", "_",
    ]  # fmt: skip
    found = Transition("many", (("x-id", "a"), ("empty", "")), "firing", NOW_US, NOW_US)
    assert alert_of(event(found), 0.0)["labels"] == {"alertname": "many", "job": "web", "x_id": "a"}


def test_every_sink_gets_one_object_with_an_id_that_repeats() -> None:
    message = message_of(SPEC, change("firing"))
    assert (message.kind, message.is_newest, message.status) == ("alert", False, "firing")
    assert message.id == event(change("firing"))["id"] == identifier(SPEC.id, change("firing"))
    assert message.id != message_of(SPEC, change("resolved")).id


# With a server.


def do(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


async def deliver(hook: Hook, *messages: WindowMessage) -> None:
    carrier = AlertmanagerCarrier(hook)
    try:
        await carrier.connect()
        for each in messages:
            await carrier.deliver(each)
    finally:
        await carrier.close()


def local(port: int, **about: Any) -> Hook:
    return Hook("127.0.0.1", port, False, "/", is_private=True, **about)


def wait_for(server: Alertmanager, count: int) -> list[dict[str, Any]]:
    until = time.monotonic() + PATIENCE_S
    while len(found := server.alerts()) != count:
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


@pytest.mark.process
def test_a_real_one_fires_knows_a_repetition_and_resolves(tmp_path: Path) -> None:
    now_us = time.time_ns() // 1_000 - 5_000_000
    path = 'a "b"\n\\ é' + "x" * 300
    firing = message_of(SPEC, change("firing", at_us=now_us, path=path))
    other = message_of(SPEC, change("firing", at_us=now_us))
    with alertmanager(tmp_path) as server:
        do(deliver(local(server.port), firing, other, firing, firing))
        found = {each["labels"]["path"]: each for each in wait_for(server, 2)}
        assert found[path]["labels"]["severity"] == "page"
        assert found["/api"]["annotations"] == {"summary": "/api: 23"}
        do(
            deliver(
                local(server.port), message_of(SPEC, change("resolved", at_us=now_us + 1_000_000, path=path))
            )
        )
        (left,) = wait_for(server, 1)
        assert left["labels"]["path"] == "/api"


@pytest.mark.process
def test_a_real_one_refuses_what_is_no_alert(tmp_path: Path) -> None:
    before = message_of(SPEC, Transition("many", (), "resolved", NOW_US, NOW_US + 1))
    with alertmanager(tmp_path) as server, pytest.raises(RefusedError, match="400 Bad Request to an alert"):
        do(deliver(local(server.port), before))


@pytest.mark.process
def test_user_and_password_come_from_a_file_that_no_message_shows(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("elf:hunter2\n")
    with endpoint_in_thread() as endpoint:
        do(deliver(local(endpoint.port, credentials=secret), message_of(SPEC, change("firing"))))
        request = endpoint.requests.get(timeout=PATIENCE_S)
        assert request.headers["authorization"] == "Basic ZWxmOmh1bnRlcjI="
        secret.chmod(0o644)
        with pytest.raises(DeliveryError, match="other users may read it") as caught:
            do(deliver(local(endpoint.port, credentials=secret)))
    assert "hunter2" not in str(caught.value)
