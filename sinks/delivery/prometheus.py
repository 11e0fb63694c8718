"""Windows for Prometheus: gauges on the agent's metrics page, or samples that are written to its remote-write receiver (1.0).

    SELECT window, path, count(*) AS n …      ->  elf_result_n{elf_job="hits",path="/"} 12

Columns that the aggregates of a query decide are gauges, all others but the window are labels. Only numbers become gauges. NULL
as a label is `NULL`. A row with the labels of another one is left out, as are rows past `SERIES_MAX`, and both are counted.

Remote-write takes final windows only: Prometheus keeps the first value of a series at a time, and answers 400 to another one. So
a revision is declined: acknowledged, and counted as refused. The sample's time is the end of its window.

A request is protobuf in Snappy's block format. Both are written here: the message has four fields, and a Snappy block may be all
literals. The size of a window of 10,000 series, 1 MB, does not matter within a data centre, and no agent needs a library.

Sources: https://prometheus.io/docs/specs/prw/remote_write_spec/ and https://github.com/google/snappy/blob/main/format_description.txt
"""

from __future__ import annotations

import asyncio
import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from elf.sinks.delivery.contract import DeclinedError, WindowMessage
from elf.sinks.delivery.http import Endpoint, authorization, check, status_text
from elf.sinks.spec import Hook

SERIES_MAX = 10_000
"""Of one sink, or of one window that is written: 5 MB of text and labels."""
LABEL_CHARS_MAX = 1_000
ABOUT_MESSAGE = {400, 409, 413, 422}
"""Statuses about the one request, which would be the same at each repetition."""
LITERAL_BYTES = 1 << 16
REASON_CHARS = 150

Labels = tuple[tuple[str, str], ...]
Family = tuple[str, str, list[tuple[Mapping[str, str], float]]]
"""(name, help, samples), as of the agent's metrics."""


class Series(NamedTuple):
    """labels: in the order of their names, without that of the metric."""

    name: str
    labels: Labels
    value: float


def series_of(message: WindowMessage, most: int = SERIES_MAX) -> tuple[list[Series], int]:
    """The gauges of a window, in the order of its rows, and how many were left out. O(rows)."""
    body = msgspec.json.decode(message.body)
    rows: list[dict[str, Any]] = [*body["rows"], *([body["other"]] if "other" in body else [])]
    named = _label_names(message.keys)
    found: dict[tuple[str, Labels], Series] = {}
    left_out = 0
    for at, row in enumerate(rows):
        pairs = [("elf_job", message.job), *((label, label_text(row[key])) for key, label in named.items())]
        if at == len(body["rows"]):
            pairs.append(("elf_other", "true"))
        labels = tuple(sorted(pairs))
        for column, value in row.items():
            if column == "window" or column in named or not isinstance(value, int | float):
                continue
            one = Series(f"elf_result_{_safe(column)}", labels, float(value))
            if len(found) < most and one[:2] not in found:
                found[one[:2]] = one
            else:
                left_out += 1
    return list(found.values()), left_out


def _label_names(keys: Sequence[str]) -> dict[str, str]:
    """Column -> label, each once."""
    names: dict[str, str] = {}
    used = {"elf_job", "elf_other"}
    for key in keys:
        label = made = _safe(key)
        n = 2
        while label in used:
            label, n = f"{made}_{n}", n + 1
        used.add(label)
        names[key] = label
    return names


def _safe(name: str) -> str:
    """A name as Prometheus takes it; it does not begin with two underscores, which are Prometheus' own."""
    text = re.sub("[^a-zA-Z0-9_]", "_", name)
    return re.sub("^(__|(?=[0-9]))", "_", text) or "_"


def label_text(value: Any) -> str:
    text = (
        "NULL" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    )
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= LABEL_CHARS_MAX else text[: LABEL_CHARS_MAX - 1] + "…"


class _Shown(NamedTuple):
    series: list[Series]
    left_out: int
    end_us: int
    until: float


class ScrapeCarrier:
    """The newest window of each job, for the metrics page of the agent. clock: in seconds. See `Carrier`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = SERIES_MAX) -> None:
        self._clock, self._most = clock, most
        self._jobs: dict[str, _Shown] = {}

    async def connect(self) -> None:
        """There is nobody to reach."""

    async def deliver(self, message: WindowMessage) -> None:
        if not message.is_newest:
            return
        self._jobs.pop(message.job, None)
        if message.status == "withdrawn":
            return
        self._forget()
        held = sum(len(each.series) for each in self._jobs.values())
        series, left_out = series_of(message, max(0, self._most - held))
        until = self._clock() + message.fresh_s
        self._jobs[message.job] = _Shown(series, left_out, message.end_us, until)

    async def gone(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """The page keeps what it has."""

    def _forget(self) -> None:
        """Jobs whose next window is overdue: they have ended, or go elsewhere."""
        now = self._clock()
        self._jobs = {job: each for job, each in self._jobs.items() if now < each.until}

    def families(self) -> Iterator[Family]:
        """O(series)."""
        self._forget()
        by_name: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for shown in self._jobs.values():
            for name, labels, value in shown.series:
                by_name.setdefault(name, []).append((dict(labels), value))
        for name in sorted(by_name):
            yield name, "A column of the newest final window of a job.", by_name[name]
        ends: list[tuple[Mapping[str, str], float]] = [
            ({"elf_job": job}, each.end_us / 1e6) for job, each in self._jobs.items()
        ]
        yield "elf_result_window_end_seconds", "When that window ended, since 1970.", ends
        left: list[tuple[Mapping[str, str], float]] = [
            ({"elf_job": job}, each.left_out) for job, each in self._jobs.items()
        ]
        yield (
            "elf_result_series_left_out",
            "Its series past the bound, or with the labels of another one.",
            left,
        )


class RemoteWriteCarrier:
    """Writes to a receiver. See `Carrier`. credentials: a file with one line, USER:PASSWORD."""

    def __init__(self, hook: Hook, credentials: Path | None = None) -> None:
        self._hook, self._credentials, self._endpoint = hook, credentials, Endpoint(hook)

    async def connect(self) -> None:
        authorization(self._credentials)
        await self._endpoint.open()

    async def deliver(self, message: WindowMessage) -> None:
        if message.status != "final":
            raise DeclinedError(
                "a revision of a window is not written: Prometheus keeps the first value of a time"
            )
        series, left_out = series_of(message)
        if series:
            body = snappy(write_request(series, message.end_us // 1_000))
            answer = await self._endpoint.ask(lambda: self._request(body))
            if answer.status in ABOUT_MESSAGE:
                reason = answer.text.decode("utf-8", "replace").strip()[:REASON_CHARS]
                raise DeclinedError(f"{self._hook} answered {status_text(answer.status)}: {reason}")
            check(answer)
        if left_out:
            raise DeclinedError(f"{left_out:,} series are past {SERIES_MAX:,}, or have the labels of others")

    async def gone(self) -> None:
        """A receiver may close an idle connection: that is no failure."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        self._endpoint.drop()

    def _request(self, body: bytes) -> bytes:
        head = (
            f"POST {self._hook.path} HTTP/1.1",
            f"host: {self._hook.authority}",
            "content-type: application/x-protobuf",
            "content-encoding: snappy",
            "x-prometheus-remote-write-version: 0.1.0",
            f"content-length: {len(body)}",
            "user-agent: elf",
            *authorization(self._credentials),
        )
        return "\r\n".join((*head, "", "")).encode("latin-1") + body


def write_request(series: Sequence[Series], at_ms: int) -> bytes:
    """A prometheus.WriteRequest: one sample of each series. Labels are in the order of their names."""
    return b"".join(_field(1, _time_series(each, at_ms)) for each in series)


def _time_series(series: Series, at_ms: int) -> bytes:
    labels = sorted((("__name__", series.name), *series.labels))
    pairs = (_field(1, name.encode()) + _field(2, value.encode()) for name, value in labels if value)
    sample = b"\x09" + struct.pack("<d", series.value) + b"\x10" + _varint(at_ms)
    return b"".join(_field(1, pair) for pair in pairs) + _field(2, sample)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def snappy(data: bytes) -> bytes:
    """A block in Snappy's format, of literals."""
    parts = [_varint(len(data))]
    for at in range(0, len(data), LITERAL_BYTES):
        literal = data[at : at + LITERAL_BYTES]
        parts += [b"\xf4", (len(literal) - 1).to_bytes(2, "little"), literal]
    return b"".join(parts)
