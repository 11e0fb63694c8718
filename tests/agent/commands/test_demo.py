"""The demo's parts: a repeatable day of visits, a server that writes nginx's log, visitors that send what was planned."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from elf.agent.commands.parse import read
from elf.agent.demo import play, server, site, team
from elf.agent.demo.load import Sent, request, send
from elf.agent.demo.origin import Origin, Request, quoted, read_request


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
    totals = play.count_logs([*rotated, web.log])
    assert {status: hits for status, (hits, _) in totals.items()} == sent.statuses
    parsed = [read(str(path), web.format, 0, "UTC") for path in (*rotated, web.log)]
    assert sum(one.parsed for one in parsed) == len(visits)
    assert all(one.parsed == one.lines > 0 for one in parsed)


def test_request_bytes() -> None:
    visit = site.Visit(0.0, "POST", "/api/pay", "1.2.3.4", "agent", "https://x/", known=True)
    text = request(visit).decode()
    assert text.startswith("POST /api/pay HTTP/1.1\r\nHost: ")
    assert text.endswith("Content-Length: 6\r\n\r\ncard=1")


def test_totals_are_compared_by_status() -> None:
    said: list[str] = []
    assert play.compare({200: (2, 30), 404: (1, 0)}, {200: (2, 30), 404: (1, 0)}, said.append) == 0
    assert "3 lines, each counted once" in said[-1]
    assert play.compare({200: (2, 30)}, {200: (2, 29)}, said.append) == 1
    assert "DIFFER" in said[-1]
    assert play.compare({200: (2, 30)}, {}, said.append) == 1


def test_configuration_is_valid(tmp_path: Path) -> None:
    from elf.agent.config.config import parse

    (tmp_path / "keys").mkdir()
    seed = "127.0.0.1:7070/" + "a" * 51 + "q"
    text = team.CONFIGURATION.format(
        name="web1", port=7070, seeds=f'["{seed}"]', format=f"'{site.LOG_FORMAT}'"
    )
    config = parse(text + team.SINK, tmp_path / "web1" / "elf.toml", environ={})
    assert config.agent.name == "web1"
    assert config.mesh is not None
    assert config.mesh.bundle is not None
    assert config.mesh.bundle.resolve() == tmp_path / "keys" / "web1.keys"
    assert [(sink.name, sink.parquet.resolve()) for sink in config.mesh.sinks] == [
        ("lake", tmp_path / "lake")
    ]


@pytest.mark.parametrize("sql", [play.TRAFFIC, play.PATHS])
def test_the_jobs_ask_for_windows_of_the_demos_width(sql: str) -> None:
    from elf.agent.formats.formats import column_types, resolve
    from elf.jobmaster.compile.query import compile as compile_query

    plan = compile_query(sql, {"access": column_types(resolve(site.LOG_FORMAT))})
    assert plan.window is not None
    assert plan.window.size_us == play.WINDOW_S * 1_000_000
