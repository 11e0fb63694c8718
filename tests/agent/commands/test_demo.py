"""The demo's parts: a repeatable day of visits, a server that writes nginx's log, visitors that send what was planned."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from elf.agent.commands.parse import read
from elf.agent.demo import play, rush, server, site, team
from elf.agent.demo.load import Sent, request, send
from elf.agent.demo.oracle import Meaning, Stretch, compare, count_logs
from elf.agent.demo.origin import Origin, Request, quoted, read_request
from elf.agent.demo.receiver import Receiver
from elf.sinks.delivery.contract import DeliveryError, WindowMessage
from elf.sinks.delivery.webhook import WebhookCarrier
from elf.sinks.spec import parse_hook


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    site.build(folder)
    return folder


class TestVisits:
    def test_same_seed_same_day(self) -> None:
        assert list(site.visits(1, 5)) == list(site.visits(1, 5))
        assert list(site.visits(1, 5)) != list(site.visits(2, 5))

    def test_the_mix_looks_like_a_day(self) -> None:
        visits = list(site.visits(1, 24))
        hours = Counter(int(visit.at) for visit in visits)
        assert hours[20] > 3 * hours[3]
        assert hours[12] > 3 * hours[3]
        assert len(visits) == pytest.approx(24 * site.RATE_MEAN, rel=0.25)
        assert [visit.at for visit in visits] == sorted(visit.at for visit in visits)


@pytest.mark.process
class TestOrigin:
    def test_logs_as_nginx_does(self, pages: Path, tmp_path: Path) -> None:
        log = tmp_path / "access.log"
        origin = Origin(pages, log, clock=iter([1.0, 1.25]).__next__, wall=lambda: 1_431_857_103.0)
        asyncio.run(
            talk(
                origin,
                b'GET /products/1?a="b\\ HTTP/1.1\r\nUser-Agent: a"b\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n',
            )
        )
        size = (pages / "products" / "1.html").stat().st_size
        assert log.read_text() == (
            '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /products/1?a=\\x22b\\x5C HTTP/1.1" '
            f'200 {size} "-" "a\\x22b" 0.250\n'
        )
        read_back = read(str(log), site.LOG_FORMAT, 1, "UTC")
        assert (read_back.parsed, read_back.rejects.total()) == (1, 0)

    @pytest.mark.parametrize(
        ("line", "headers", "status"),
        [
            ("GET / HTTP/1.1", {}, 200),
            ("GET /images/3.jpg HTTP/1.1", {"if-modified-since": "x"}, 304),
            ("GET /nothing HTTP/1.1", {}, 404),
            ("GET /../../../../etc/passwd HTTP/1.1", {}, 404),
            ("POST /api/pay HTTP/1.1", {}, 201),
            ("POST /api/pay?declined=1 HTTP/1.1", {}, 503),
            ("GET /old HTTP/1.1", {}, 301),
            ("nonsense", {}, 200),
        ],
    )
    def test_answers(
        self, pages: Path, tmp_path: Path, line: str, headers: dict[str, str], status: int
    ) -> None:
        assert Origin(pages, tmp_path / "log").answer(Request(line, headers))[0] == status

    def test_reopens_its_log(self, pages: Path, tmp_path: Path) -> None:
        log = tmp_path / "access.log"
        origin = Origin(pages, log)
        asyncio.run(talk(origin, b"GET / HTTP/1.1\r\n\r\n"))
        log.rename(tmp_path / "access.log.1")
        asyncio.run(talk(origin, b"GET / HTTP/1.1\r\n\r\n"))
        origin.reopen()
        asyncio.run(talk(origin, b"GET / HTTP/1.1\r\n\r\n"))
        assert [len(p.read_text().splitlines()) for p in (tmp_path / "access.log.1", log)] == [2, 1]

    @pytest.mark.parametrize(
        "text", [b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n"]
    )
    def test_refuses_nonsense(self, text: bytes) -> None:
        async def ask() -> None:
            reader = asyncio.StreamReader()
            reader.feed_data(text)
            reader.feed_eof()
            await read_request(reader)

        with pytest.raises(ValueError, match=r"colon|large"):
            asyncio.run(ask())

    def test_what_is_quoted(self) -> None:
        assert quoted('a"\\\x1b\n') == "a\\x22\\x5C\\x1B\\x0A"


async def talk(origin: Origin, sent: bytes) -> bytes:
    """What the origin answers on one connection."""
    listening = await asyncio.start_server(origin.serve, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
    return answer


@pytest.mark.process
@pytest.mark.parametrize("kind", ["nginx", "built-in"])
def test_every_visit_becomes_a_line_across_a_rotation(pages: Path, tmp_path: Path, kind: str) -> None:
    if kind == "nginx":
        web = server.start(tmp_path, pages)
        if "nginx" not in web.name:
            web.stop()
            pytest.skip("no nginx on this machine")
    else:
        (tmp_path / "logs").mkdir()
        web = server.start_built_in(pages, tmp_path / "logs" / "access.log")
    visits = list(site.visits(3, 1.0))
    rotated: list[Path] = []

    def rotate(visit: site.Visit) -> None:
        if not rotated and visit.at > 0.5:
            rotated.append(web.rotate())

    try:
        sent: Sent = asyncio.run(send(web.port, visits, rotate))
    finally:
        web.stop()
    assert (sent.answered, sent.failed) == (len(visits), 0)
    stretch = Stretch("v1", 0, sys.maxsize, Meaning(0, False))
    totals = count_logs([*rotated, web.log], [stretch], sys.maxsize)
    assert {cell: row[0] for cell, row in totals.items()} == {
        ("v1", 0, status): hits for status, hits in sent.statuses.items()
    }
    assert all(hits == large for hits, _, large in totals.values())
    parsed = [read(str(path), web.format, 0, "UTC") for path in (*rotated, web.log)]
    assert sum(one.parsed for one in parsed) == len(visits)
    assert all(one.parsed == one.lines > 0 for one in parsed)


def test_request_bytes() -> None:
    visit = site.Visit(0.0, "POST", "/api/pay", "1.2.3.4", "agent", "https://x/", known=True)
    text = request(visit).decode()
    assert text.startswith("POST /api/pay HTTP/1.1\r\nHost: ")
    assert text.endswith("Content-Length: 6\r\n\r\ncard=1")


def raw(second: int, status: int, size: int, agent: str = "Firefox") -> str:
    at = f"17/May/2015:10:05:{second:02}"
    return f'1.2.3.4 - - [{at} +0000] "GET /?q=%22 HTTP/1.1" {status} {size} "-" "{agent}" 0.001\n'


def test_lines_are_counted_by_window_and_version(tmp_path: Path) -> None:
    at = 1_431_857_100_000_000  # 10:05:00
    stretches = [
        Stretch("one", at, at + 7_500_000, Meaning(100, False)),
        Stretch("two", at + 7_500_000, sys.maxsize, Meaning(100, True)),
    ]
    log = tmp_path / "access.log"
    log.write_text(
        raw(1, 200, 100) + raw(7, 200, 99, "bot") + raw(7, 404, 100, "bot") + raw(8, 200, 101, "bot")
    )
    totals = count_logs([log], stretches, 5_000_000)
    assert totals == {
        ("one", at, 200): (1, 100, 1),
        ("one", at + 5_000_000, 200): (1, 99, 0),
        ("one", at + 5_000_000, 404): (1, 100, 1),
        ("two", at + 5_000_000, 200): (1, 101, 0),
    }
    said: list[str] = []
    assert compare(totals, totals, stretches, said.append) == 0
    assert said[-3:-1] == [
        "version one: 3 rows in 2 windows: all equal",
        "version two: 1 row in 1 window: all equal",
    ]
    assert said[-1].endswith("4 lines, each counted once")
    wrong = totals | {("two", at + 5_000_000, 200): (1, 101, 1)}
    assert compare(totals, wrong, stretches, said.append) == 1
    assert said[-2] == "version two: 1 row in 1 window: 1 of them DIFFER from the logs"
    assert "DIFFER" in said[-1]
    assert compare(totals, {}, stretches, said.append) == 1


def test_configuration_is_valid(tmp_path: Path) -> None:
    from elf.agent.config.config import parse

    (tmp_path / "keys").mkdir()
    seed = "127.0.0.1:7070/" + "a" * 51 + "q"
    text = team.CONFIGURATION.format(
        name="web1", port=7070, seeds=f'["{seed}"]', format=f"'{site.LOG_FORMAT}'"
    )
    config = parse(text + team.SINK, tmp_path / "web1" / "elf.toml", environ={})
    assert config.agent.name == "web1"
    assert config.mesh.bundle is not None
    assert config.mesh.bundle.resolve() == tmp_path / "keys" / "web1.keys"
    (sink,) = config.mesh.sinks
    assert sink.parquet is not None
    assert (sink.name, sink.parquet.resolve()) == ("lake", tmp_path / "lake")


@pytest.mark.parametrize("sql", [play.TRAFFIC, play.TRIED, play.PATHS])
def test_the_jobs_ask_for_windows_of_the_demos_width(sql: str) -> None:
    from elf.agent.formats.formats import column_types, resolve
    from elf.jobmaster.compile.query import compile as compile_query

    values = {"least": "1"} if "least" in sql else {}
    plan = compile_query(sql, {"access": column_types(resolve(site.LOG_FORMAT))}, values)
    assert plan.window is not None
    assert plan.window.size_us == play.WINDOW_S * 1_000_000


@pytest.mark.process
def test_the_receiver_keeps_the_newest_revision_of_what_is_signed(tmp_path: Path) -> None:
    """Sent as an agent sends it."""
    receiver = Receiver(tmp_path)
    at = 1_795_486_000_000_000

    def message(n: int, hits: int) -> WindowMessage:
        about = {"version": "v1", "window": {"start": "2026-11-24T02:06:40Z"}, "revision": [1, "a", n]}
        rows = [{"status": 200, "hits": hits, "bytes": 7, "large": 1}]
        body = json.dumps({"_elf": about, "rows": rows}).encode()
        return WindowMessage(f"id{n}", "traffic", "v1", "final", f"1.a.{n}", "f", body, True, 60)

    async def deliver(secret: Path, *messages: WindowMessage) -> None:
        carrier = WebhookCarrier(replace(parse_hook(receiver.url), secret=secret, is_private=True))
        await carrier.connect()
        for each in messages:
            await carrier.deliver(each)
        await carrier.close()

    other = tmp_path / "other.secret"
    other.touch(0o600)
    other.write_text("whsec_" + "A" * 32)
    with receiver.at_work():
        asyncio.run(deliver(receiver.secret, message(2, 5), message(1, 4), message(2, 5)))
        assert receiver.windows() == {("v1", at)}
        assert receiver.totals() == {("v1", at, 200): (5, 7, 1)}
        with pytest.raises(DeliveryError, match="401 Unauthorized"):
            asyncio.run(deliver(other, message(3, 6)))
    assert (receiver.unsigned, receiver.totals()) == (1, {("v1", at, 200): (5, 7, 1)})


def test_what_the_webhook_received_is_compared_too(capsys: pytest.CaptureFixture[str]) -> None:
    counted = {("one", 0, 200): (1, 2, 1), ("one", 5, 404): (3, 4, 0)}
    assert play.check_hook(counted, dict(counted)) == 0
    assert play.check_hook(counted, counted | {("one", 5, 404): (3, 4, 1)}) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "» webhook: 2 rows in 2 windows, each signed: all equal",
        "» webhook: 2 rows in 2 windows, each signed: they DIFFER from the logs",
    ]


def change(state: str, second: int, text: str = "1,000 requests") -> rush.Event:
    return {"state": state, "at": f"2026-11-27T13:19:{second:02}Z", "text": text}


RUSH_US = 1_795_785_540_000_000  # 13:19


@pytest.mark.parametrize(
    ("events", "code", "last"),
    [
        ([change("firing", 4), change("resolved", 8)], 0, "resolved at 13:19:08, 7 requests"),
        ([change("firing", 4), change("resolved", 10)], 0, "resolved at 13:19:10, 0 requests"),
        ([change("firing", 8), change("resolved", 10)], 1, "resolved at 13:19:10, 0 requests"),
        (
            [change("firing", 4), change("resolved", 6)],
            1,
            "resolved at 13:19:06, 950 requests: the logs DIFFER",
        ),
        ([change("firing", 4), change("firing", 6)], 1, "the webhook did not receive all of its changes"),
        ([], 1, "the webhook did not receive all of its changes"),
    ],
)
def test_the_alert_of_the_demo_is_compared_with_the_logs(
    events: list[rush.Event], code: int, last: str
) -> None:
    """The windows that begin at 13:19:02, :04 and :06 have 1,000, 950 and 7 lines."""
    counted = Counter(
        {RUSH_US + 2_000_000: 1_000, RUSH_US + 4_000_000: rush.LEAST + 50, RUSH_US + 6_000_000: 7}
    )
    said: list[str] = []
    assert (rush.check(events, counted, said.append), said[-1]) == (code, f"alert rush: {last}")


def test_the_alert_of_the_demo_counts_the_lines_of_all_logs(tmp_path: Path) -> None:
    line = '1.2.3.4 - - [27/Nov/2026:13:19:0{} +0000] "GET / HTTP/1.1" 200 7 "-" "x" 0.250\n'
    for name, seconds in (("a", "233"), ("b", "34")):
        (tmp_path / name).write_text("".join(map(line.format, seconds)))
    found = rush.count_lines([tmp_path / "a", tmp_path / "b"])
    assert found == {RUSH_US + 2_000_000: 4, RUSH_US + 4_000_000: 1}
