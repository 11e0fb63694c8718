"""Alerts to Prometheus' Alertmanager, version 2 of its API: POST /api/v2/alerts.

    [{"labels": {"alertname": …, "job": …, keys, labels}, "annotations": {"summary": …}, "startsAt": …, "endsAt": …}]

Alertmanager knows an alert by its labels, so one that is sent again is the same. What fires ends in `FIRING_S` unless it is
sent again; what is resolved ended at its time. Names of labels that Alertmanager refuses are changed (`label_name`).

Source: https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import msgspec

from elf.sinks.delivery.contract import WindowMessage
from elf.sinks.delivery.http import authorization
from elf.sinks.delivery.webhook import WebhookCarrier

FIRING_S = 240
"""Four times the interval at which masters repeat what fires, as Prometheus does it."""
PATH = "api/v2/alerts"


class NoWindows:
    """An Alertmanager takes no windows: each is acknowledged and left. See `Carrier`."""

    async def connect(self) -> None:
        pass

    async def deliver(self, message: WindowMessage) -> None:
        pass

    async def gone(self) -> None:
        import asyncio

        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


class AlertmanagerCarrier(WebhookCarrier):
    """One connection to an Alertmanager, for changes of alerts. See `Carrier`."""

    async def connect(self) -> None:
        authorization(self._hook.credentials)
        await self._endpoint.open()

    def _body(self, message: WindowMessage) -> bytes:
        return msgspec.json.encode([alert_of(msgspec.json.decode(message.body), time.time())])

    def _request(self, identifier: str, body: bytes) -> bytes:
        hook = self._hook
        head = (
            f"POST {hook.path.rstrip('/')}/{PATH} HTTP/1.1",
            f"host: {hook.authority}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "user-agent: elf",
            *authorization(self._hook.credentials),
        )
        return "\r\n".join((*head, "", "")).encode("latin-1") + body


def alert_of(event: dict[str, object], now_s: float) -> dict[str, object]:
    """A change of an alert, as other sinks get it, as Alertmanager takes it."""
    labels, given = dict[str, str](), event["labels"]
    assert isinstance(given, dict)
    for name, value in given.items():
        if value:  # an empty label is none
            labels.setdefault(label_name(name), value)
    ends = event["at"] if event["state"] == "resolved" else _time(now_s + FIRING_S)
    return {
        "labels": labels,
        "annotations": {"summary": event["text"]} if event["text"] else {},
        "startsAt": event["since"],
        "endsAt": ends,
    }


def label_name(name: str) -> str:
    """A column's name as Alertmanager takes it: letters, digits and _, the first no digit."""
    found = re.sub(r"[^A-Za-z0-9_]", "_", name) or "_"
    return f"_{found}" if found[0].isdigit() else found


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")
