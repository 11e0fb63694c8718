"""Windows for a real Prometheus: what it scrapes from an agent's page, and what is written to it."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from elf.agent.host.metrics import MetricsServer, exposition
from elf.jobmaster.delivery.shown import key_columns
from elf.sinks.delivery.contract import DeclinedError, DeliveryError, WindowMessage
from elf.sinks.delivery.prometheus import (
    LABEL_CHARS_MAX,
    LITERAL_BYTES,
    RemoteWriteCarrier,
    ScrapeCarrier,
    series_of,
    snappy,
)
from elf.sinks.spec import Hook
from elf.srt.messages.addresses import Address
from tests.rigs.agents.prometheus import Prometheus, prometheus
from tests.rigs.mesh_lines import plan_of
from tests.sinks.delivery.endpoint import endpoint_in_thread
from tests.sinks.delivery.mosquitto import PATIENCE_S

SECOND = 1_000_000
END_US = int(time.time() - 600) * SECOND
HOSTILE = 'a"b\\c\nd\u00e9{},=\x00'


def window(*rows: dict[str, Any], keys: tuple[str, ...] = ("path",), **about: Any) -> WindowMessage:
    body = msgspec.json.encode(
        {"_elf": {}, "rows": [{"window": {"start": "x", "end": "y"}, **row} for row in rows]}
    )
    plain = WindowMessage("id", "hits", "v1", "final", "1.0.1", "ff", body, True, 3600, keys, END_US, 60)
    return replace(plain, **about)


def test_what_aggregates_decide_are_gauges_and_all_else_labels() -> None:
    assert key_columns(plan_of("10 seconds")) == ("path",)
    row = {
        "path": "/",
        "status": 200,
        "1st": None,
        "ok": True,
        "n": 12,
        "mean": 0.5,
        "who": "text",
        "is": False,
    }
    series, left_out = series_of(window(row, keys=("path", "status", "1st", "ok")))
    labels = (("_1st", "NULL"), ("elf_job", "hits"), ("ok", "true"), ("path", "/"), ("status", "200"))
    assert [tuple(each) for each in series] == [
        ("elf_result_n", labels, 12.0),
        ("elf_result_mean", labels, 0.5),
        ("elf_result_is", labels, 0.0),
    ]
    assert left_out == 0


def test_labels_are_distinct_bounded_and_not_those_of_prometheus() -> None:
    row = {"a-b": 1, "a.b": 2, "__name__": 3, "elf_job": 4, "long": "x" * 2000, "n": 5}
    (one,), _ = series_of(window(row, keys=("a-b", "a.b", "__name__", "elf_job", "long")))
    found = dict(one.labels)
    assert found.pop("long") == "x" * (LABEL_CHARS_MAX - 1) + "…"
    assert found == {"a_b": "1", "a_b_2": "2", "_name__": "3", "elf_job": "hits", "elf_job_2": "4"}


def test_series_past_the_bound_and_rows_with_the_same_labels_are_counted() -> None:
    rows = [{"path": f"/{at}", "n": at} for at in range(5)]
    series, left_out = series_of(window(*rows, *rows[:2]), most=3)
    assert [each.value for each in series] == [0, 1, 2]
    assert left_out == 4
    other = window(*rows[:1])
    body = other.body[:-1] + b',"other":{"path":null,"n":9}}'
    series, _ = series_of(replace(other, body=body))
    assert (series[1].value, dict(series[1].labels)["elf_other"]) == (9, "true")


def page(carrier: ScrapeCarrier) -> str:
    return exposition(iter(carrier.families()))


def test_the_page_has_the_newest_window_until_the_next_one_is_overdue() -> None:
    now = [0.0]
    carrier = ScrapeCarrier(lambda: now[0], most=3)

    def given(*rows: dict[str, Any], **about: Any) -> str:
        asyncio.run(carrier.deliver(window(*rows, **about)))
        return page(carrier)

    assert 'elf_result_n{elf_job="hits",path="/"} 1' in given({"path": "/", "n": 1}, {"path": "/a", "n": 2})
    shown = given({"path": "/", "n": 5}, status="revised")
    assert 'elf_result_n{elf_job="hits",path="/"} 5' in shown, "a revision takes its place"
    assert "/a" not in shown
    assert given({"path": "/", "n": 7}, is_newest=False) == shown, "an older window"
    more = given(*({"path": f"/{at}", "n": at} for at in range(4)), job="many")
    assert more.count("elf_result_n{") == 3, "both jobs share the bound"
    assert 'elf_result_series_left_out{elf_job="many"} 2' in more
    assert f'elf_result_window_end_seconds{{elf_job="hits"}} {END_US // SECOND}' in more
    gone = given(job="hits", status="withdrawn")
    assert 'elf_job="hits"' not in gone
    now[0] = 61.0
    assert page(carrier) == "\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Prometheus]:
    with prometheus(tmp_path / "prometheus") as server:
        yield server


def do(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


@pytest.mark.process
def test_prometheus_scrapes_the_page_with_any_values(tmp_path: Path) -> None:
    async def work() -> None:
        carrier = ScrapeCarrier()
        metrics = MetricsServer(Address("127.0.0.1:0"), lambda: page(carrier), str)
        await metrics.start()

        def arrives(server: Prometheus, value: float) -> None:
            until = time.monotonic() + PATIENCE_S
            while True:
                found = {
                    each["metric"].get("path"): each["value"][1] for each in server.query("elf_result_n")
                }
                if found.get(HOSTILE) == str(value):
                    return
                assert time.monotonic() < until, found
                time.sleep(0.05)

        def look() -> None:
            with prometheus(tmp_path / "prometheus", f"127.0.0.1:{metrics.port}") as server:
                arrives(server, 3)
                asyncio.run_coroutine_threadsafe(
                    carrier.deliver(window({"path": HOSTILE, "n": 4}, status="revised")), loop
                ).result()
                arrives(server, 4)

        loop = asyncio.get_running_loop()
        await carrier.deliver(window({"path": HOSTILE, "n": 3}, {"path": "", "n": 1}))
        await asyncio.to_thread(look)
        await metrics.close()

    do(work())


@pytest.mark.process
def test_final_windows_are_written_and_what_prometheus_cannot_take_is_declined(server: Prometheus) -> None:
    hook = Hook("127.0.0.1", server.port, False, "/api/v1/write", is_private=True)

    async def work() -> None:
        carrier = RemoteWriteCarrier(hook)
        await carrier.connect()
        rows: list[dict[str, Any]] = [{"path": HOSTILE, "n": 1}, {"path": "", "n": 2}, {"path": None, "n": 3}]
        for _ in range(2):  # the same again is no other value
            await carrier.deliver(window(*rows))
        await carrier.deliver(window())
        with pytest.raises(DeclinedError, match="a revision of a window is not written"):
            await carrier.deliver(window({"path": "/", "n": 9}, status="revised"))
        with pytest.raises(DeclinedError, match=r"400 Bad Request: .*duplicate sample"):
            await carrier.deliver(window({"path": HOSTILE, "n": 7}))
        await carrier.deliver(window(*rows, end_us=END_US + SECOND))
        with pytest.raises(DeclinedError, match="400 Bad Request: out of order sample"):
            await carrier.deliver(window({"path": HOSTILE, "n": 7}, end_us=END_US - SECOND))
        with pytest.raises(DeclinedError, match="1 series are past 10,000"):
            await carrier.deliver(
                window({"path": "/2", "n": 1}, {"path": "/2", "n": 2}, end_us=END_US + 2 * SECOND)
            )
        await carrier.close()

    do(work())
    found = {each["metric"].get("path", ""): each["values"] for each in server.query("elf_result_n[1h]")}
    at = END_US // SECOND
    assert found == {
        HOSTILE: [[at, "1"], [at + 1, "1"]],
        "": [[at, "2"], [at + 1, "2"]],
        "NULL": [[at, "3"], [at + 1, "3"]],
        "/2": [[at + 2, "1"]],
    }


async def _delivered(carrier: RemoteWriteCarrier, message: WindowMessage) -> None:
    await carrier.connect()
    await carrier.deliver(message)


@pytest.mark.process
def test_a_receiver_that_is_elsewhere_or_asks_for_a_password_is_an_outage(
    server: Prometheus, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    hook = Hook("127.0.0.1", server.port, False, "/nowhere", is_private=True)

    async def fails(carrier: RemoteWriteCarrier) -> str:
        with pytest.raises(DeliveryError) as caught:
            await _delivered(carrier, window({"path": "/", "n": 1}))
        await carrier.close()
        return str(caught.value)

    assert do(fails(RemoteWriteCarrier(hook))) == "it answered 404 Not Found"
    assert "expected one line, USER:PASSWORD" in do(fails(RemoteWriteCarrier(hook, secret)))
    secret.write_text("elf:geheim\n")
    with endpoint_in_thread() as endpoint:
        hook = replace(hook, port=endpoint.port)
        endpoint.answers = [b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n"]
        assert do(fails(RemoteWriteCarrier(hook, secret))) == "it answered 401 Unauthorized"
        headers = endpoint.requests.get(timeout=PATIENCE_S).headers
    assert headers["authorization"] == f"Basic {b64encode(b'elf:geheim').decode()}"
    secret.chmod(0o644)
    assert (
        do(fails(RemoteWriteCarrier(hook, secret)))
        == f"{secret}: other users may read it; chmod 600 {secret}"
    )


@pytest.mark.parametrize("size", [0, 1, LITERAL_BYTES, LITERAL_BYTES + 1, 3 * LITERAL_BYTES - 1])
def test_blocks_are_what_snappy_reads(size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    packed = snappy(data)
    assert pa.decompress(packed, decompressed_size=size, codec="snappy", asbytes=True) == data
