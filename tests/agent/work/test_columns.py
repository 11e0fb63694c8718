"""Columns of an agent's own: advertised, used in queries at any agent, NULL at agents without them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import pytest
from msgspec.structs import replace

from elf.agent.control import protocol as w
from elf.agent.control.columns import (
    BYTES_MAX,
    Schema,
    advertised,
    columns_of,
    held_columns,
    held_lateness_us,
)
from elf.agent.formats.presets import COLUMN_TYPES
from elf.agent.work.seen_columns import SeenColumns
from elf.errors import PeerError
from elf.jobmaster.directory.job_spec import AgentAdvert, SourceColumns, decode_agent
from elf.jobmaster.values.sql_types import BIGINT, BOOLEAN, DOUBLE, MICROS, STRING
from elf.srt.messages.messages import Item
from tests.rigs.agents.mesh_rig import FORMAT, Agent, Fleet, free_ports, line, wait_until
from tests.rigs.agents.seen import WAIT_S, rows_of

PLAIN = FORMAT
CACHED = FORMAT + " $upstream_cache_status $connection_requests"
PATTERN = r'regex:(?P<time>\S+) "\S+ (?P<uri>\S+) \S+" (?P<status>\d+) (?P<bytes>\d+) (?P<upstream_cache_status>\S+)'


def advert(name: str, **columns: Mapping[str, object]) -> AgentAdvert:
    return AgentAdvert(name, tuple(columns), 1, 5, columns=advertised(columns))  # type: ignore[arg-type]


class TestAdverts:
    def test_what_is_not_canonical_comes_back_as_it_was(self) -> None:
        own = {"upstream_cache_status": STRING, "hits": BIGINT, "wait": MICROS}
        told = advert("a", access={**own, "status": BIGINT}, other={})
        again = decode_agent(told.item(bytes(16)))
        assert again == told
        assert columns_of(again, "access") == own
        assert columns_of(again, "other") == columns_of(again, "nowhere") == {}

    def test_an_agent_of_before_is_understood_and_understands(self) -> None:
        import msgspec

        told = advert("a", access={"hits": BIGINT})
        fields = msgspec.msgpack.decode(told.encode())
        before = msgspec.msgpack.encode(fields[:-3])
        item = Item("agent", bytes(16), (1, 5), before, b"")
        assert decode_agent(item) == replace(told, columns=())

    def test_the_longest_lateness_of_those_that_follow_it(self) -> None:
        def late(name: str, lateness_us: int, until_us: int = 0) -> AgentAdvert:
            own = advertised({"access": {}}, {"access": lateness_us})
            return AgentAdvert(name, ("access", "other"), 1, 5, until_us, columns=own)

        quick, slow = late("a", 5_000_000), late("b", 17_000_000)
        assert decode_agent(slow.item(bytes(16))) == slow
        assert held_lateness_us([quick, slow], "access") == 17_000_000
        assert held_lateness_us([quick, late("c", 90_000_000, until_us=7)], "access") == 5_000_000
        assert held_lateness_us([quick, late("old", 0)], "access") == 60_000_000  # it does not say
        assert held_lateness_us([quick], "other") == held_lateness_us([], "access") == 60_000_000

    def test_what_logs_ask(self, tmp_path: Path) -> None:
        second = '192.0.2.1 - - [17/May/2015:10:05:{:02} +0000] "GET / HTTP/1.1" 200 1 "-" "-"\n'
        (tmp_path / "access.log").write_text(second.format(20) + second.format(9) + second.format(21))
        nginx = SeenColumns(PLAIN, [str(tmp_path / "none.log")])
        assert (nginx.look(), nginx.lateness_us) == ({}, 5_000_000)
        combined = SeenColumns("auto", [str(tmp_path / "access.log")])
        assert combined.lateness_us == 0
        assert (combined.look(), combined.lateness_us) == ({"ident": STRING}, 60_000_000)
        end = '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"'
        disordered = SeenColumns(end, [str(tmp_path / "access.log")])
        assert (disordered.look(), disordered.lateness_us) == ({}, 11_000_000)

    def test_it_is_bounded(self) -> None:
        many = {f"column_{number:04}": STRING for number in range(5_000)}
        sources = {"long": {"x" * 150: STRING}, **{f"s{number}": many for number in range(60)}}
        told = advert("a", **sources)
        assert len(told.encode()) < BYTES_MAX + 2_000
        assert decode_agent(told.item(bytes(16))) == told
        first = columns_of(told, "s0")
        assert 100 < len(first) < 257
        assert columns_of(told, "long") == {}

    @pytest.mark.parametrize(
        "columns",
        [
            (SourceColumns("access", (("string", ("",)),)),),
            (SourceColumns("access", (("", ("a",)),)),),
            (SourceColumns("", ()),),
            (SourceColumns("access", (("string", tuple(map(str, range(257)))),)),),
            (SourceColumns("access", (("string", ("a",)),) * 17),),
            (SourceColumns("access", ()),) * 65,
            (("access", (("string", (5,)),)),),
        ],
    )
    def test_what_no_agent_would_say_is_refused(self, columns: object) -> None:
        told = AgentAdvert("a", ("access",), 1, 5, columns=columns)  # type: ignore[arg-type]
        with pytest.raises(PeerError):
            decode_agent(told.item(bytes(16)))

    def test_types_and_names_of_others_make_no_canonical_column_another(self) -> None:
        lies = (SourceColumns("access", (("string", ("status", "mine")), ("map<int,int>", ("odd",)))),)
        told = AgentAdvert("a", ("access",), 1, 5, columns=lies)
        assert columns_of(told, "access") == {"mine": STRING}
        schema = Schema((w.HeldColumn("status", "string", 1, ("a",)), w.HeldColumn("x", "odd", 1, ("a",))), 1)
        assert schema.types == COLUMN_TYPES


class TestSchema:
    def schema(self, *adverts: AgentAdvert) -> Schema:
        return Schema(held_columns(adverts, "access"), sum("access" in each.sources for each in adverts))

    def test_it_is_the_union_over_the_agents_that_follow_the_source(self) -> None:
        schema = self.schema(
            advert("a", access={"one": STRING}),
            advert("b", access={"one": STRING, "two": BIGINT}),
            advert("c", other={"three": BIGINT}),
            replace(advert("d", access={"four": BIGINT}), until_us=9),
        )
        assert schema.types == {**COLUMN_TYPES, "one": STRING, "two": BIGINT}
        assert schema.conflict(["one", "two", "status"]) == ""

    def test_who_lacks_a_column_is_counted(self) -> None:
        schema = self.schema(
            advert("a", access={"one": STRING}), advert("b", access={}), advert("c", access={})
        )
        assert schema.lacking(["status", "one"]) == [
            "2 of 3 agents have no column one (b, c); in their lines it is NULL"
        ]
        many = [advert(f"d{number}", access={}) for number in range(9)]
        assert self.schema(advert("a", access={"one": STRING}), *many).lacking(["one"]) == [
            "9 of 10 agents have no column one (d0, d1, d2 and 6 more); in their lines it is NULL"
        ]

    def test_a_conflict_names_the_agents(self) -> None:
        others = [advert(f"b{number}", access={"one": BIGINT}) for number in range(5)]
        schema = self.schema(advert("a", access={"one": STRING}), *others)
        assert schema.conflict(["two", "status"]) == ""
        assert schema.conflict(["one"]).startswith(
            "column one is bigint at b0, b1, b2 and 2 more and string at a; "
        )
        assert schema.types["one"] == BIGINT

    def test_agents_whose_lines_name_their_values_read_any_key_by_the_job_s_type(self) -> None:
        a = advert("a", access={"*": STRING, "n": BIGINT, "x": BIGINT, "Status": STRING})
        b = advert("b", access={"*": STRING, "n": DOUBLE, "x": BOOLEAN})
        schema = self.schema(a, b)
        assert schema.types == {**COLUMN_TYPES, "*": STRING, "n": DOUBLE, "x": STRING}
        assert schema.conflict(["n", "x", "new"]) == ""
        assert schema.lacking(["n", "xx"]) == [
            "2 of 2 agents have no column xx (nearest: x); in their lines it is NULL until one has it"
        ]
        beside = self.schema(a, b, advert("c", access={"n": BIGINT}))
        assert beside.conflict(["n"]).startswith("column n is bigint at a, c and double at b; ")
        assert beside.types["*"] == STRING


class TestSeen:
    def test_keys_of_all_files_with_the_widest_type(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text(
            '{"time":"2024-05-17T10:05:03Z","n":1,"ok":true,"STATUS":1,"l":[1,2]}\n'
        )
        (tmp_path / "b.json").write_text('{"time":"2024-05-17T10:05:03Z","n":2.5,"ok":"no"}\n')
        for format in ("auto", "json"):
            seen = SeenColumns(format, [str(tmp_path / "*.json")])
            found = seen.look()
            assert seen.is_detected
            assert {name: found[name] for name in ("n", "ok", "*", "level")} == {
                "n": DOUBLE,
                "ok": STRING,
                "*": STRING,
                "level": STRING,
            }
            assert found["l"] == STRING
            assert not found.keys() & {"STATUS", "l.0", "l.1"}
            with (tmp_path / "a.json").open("a") as file:
                file.write(f'{{"time":"2024-05-17T10:05:03Z","later{format}":1}}\n')
            assert seen.look()[f"later{format}"] == BIGINT

    @pytest.mark.process
    def test_a_named_format_needs_no_file(self, tmp_path: Path) -> None:
        seen = SeenColumns(CACHED, [str(tmp_path / "none")])
        assert not seen.is_detected
        assert set(seen.look()) == {"upstream_cache_status", "connection_requests"}

    def test_a_detected_one_is_known_once_there_are_lines(self, tmp_path: Path) -> None:
        log = tmp_path / "access.log"
        log.touch()
        seen = SeenColumns("auto", [str(tmp_path / "*.log")])
        assert seen.is_detected
        assert seen.look() == {}
        log.write_text('{"time": "2026-11-21T05:00:00Z", "status": 200, "cache": "HIT"}\n' * 3)
        first = seen.look()
        (tmp_path / "other.log").write_text(
            '10.1.2.3 - - [21/Nov/2026:05:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "curl/8.0"\n' * 3
        )
        assert first.items() <= seen.look().items()
        assert "ident" in seen.look()


class Different(Fleet):
    """Agents whose logs are of different formats."""

    formats: tuple[str, ...] = ()

    def _config(self, number: int, name: str, port: int) -> str:
        return super()._config(number, name, port).replace(f"'{FORMAT}'", f"'{self.formats[number]}'")


def start(fleet: Fleet, name: str, sql: str, *more: str, at: int = 0) -> subprocess.CompletedProcess[str]:
    socket = str(fleet.agents[at].socket)
    command = [sys.executable, "-m", "elf", "job", "start", name, "--sql", sql, "--lateness", "300ms"]
    return subprocess.run([*command, *more, "--agent", socket], capture_output=True, text=True, check=False)


@pytest.mark.process
def test_a_column_of_some_agents_is_counted_there_and_null_elsewhere(tmp_path: Path) -> None:
    Different.formats = (PLAIN, CACHED, CACHED)
    sql = (
        "SELECT window, upstream_cache_status AS cache, count(*) AS hits, sum(connection_requests) AS requests FROM access "
        "GROUP BY window(time, '1 second'), upstream_cache_status"
    )
    with Different(tmp_path, 3) as fleet:
        knows(fleet, 2)
        strict = start(fleet, "cache", sql, "--strict")
        assert (strict.returncode, strict.stdout) == (2, "")
        assert strict.stderr.startswith("elf: --strict: 1 of 3 agents has no column ")
        assert strict.stderr.endswith("in their lines it is NULL; nothing was changed\n")
        assert json.loads(fleet.elf("job", "list", "--output", "json")) == []
        done = start(fleet, "cache", sql)
        assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
        assert sorted(done.stderr.splitlines()) == [
            "elf: 1 of 3 agents has no column connection_requests (a0); in their lines it is NULL",
            "elf: 1 of 3 agents has no column upstream_cache_status (a0); in their lines it is NULL",
        ]
        plain = "SELECT window, count(*) AS hits FROM access GROUP BY window(time, '1 second')"
        assert start(fleet, "plain", plain, "--strict").returncode == 0
        change = ["job", "update", "plain", "--sql", sql, "--strict", "--agent", str(fleet.agents[1].socket)]
        refused = subprocess.run(
            [sys.executable, "-m", "elf", *change], capture_output=True, text=True, check=False
        )
        assert refused.returncode == 2
        assert "(a0); in their lines it is NULL; nothing was changed" in refused.stderr
        assert json.loads(fleet.elf("job", "show", "plain", "--output", "json"))["sql"] == plain
        rows = windows_of(fleet, "cache")
        assert rows == {None: (20, None), "HIT": (20, 60), "MISS": (20, 60)}
        for agent in fleet.agents:
            assert "Traceback" not in agent.said()


@pytest.mark.process
def test_a_detected_format_is_advertised_once_there_are_lines(tmp_path: Path) -> None:
    """And an agent whose column has another type than in a job reports it, and has NULL."""
    Different.formats = ("auto", PATTERN.replace("upstream_cache_status", "request_count"))
    with Different(tmp_path, 2) as fleet:
        knows(fleet, 1)
        sql = "SELECT window, count(DISTINCT request_count) AS n, count(*) FROM access GROUP BY window(time, '1 second')"
        assert start(fleet, "most", sql).returncode == 0
        stamp = datetime.now(UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
        traefik = (
            f'10.1.2.3 - - [{stamp}] "GET / HTTP/1.1" 200 5 "-" "curl" 7 "shop@file" "http://10.2.3.4" 3ms'
        )
        fleet.agents[0].write([traefik] * 3)

        def told() -> bool:
            return "router" in [each.name for each in held_at(fleet.agents[1]).columns]

        wait_until(told, "the column is not known at the other agent", 15)
        routers = "SELECT router, count(*) FROM access GROUP BY router"
        assert start(fleet, "routers", routers, at=1).returncode == 0
        said = "access: column request_count is bigint here, and a job expects string: "
        wait_until(lambda: said in fleet.agents[0].said(), "nothing was said")


class Keyed(Fleet):
    """Agents whose lines are JSON, each with a line from before its start; the first has a page for Prometheus."""

    def __init__(self, folder: Path, count: int) -> None:
        (self.port,) = free_ports(1)
        super().__init__(folder, count)

    def _config(self, number: int, name: str, port: int) -> str:
        self._agent = "" if number else f'metrics = "127.0.0.1:{self.port}"'
        old = self.folder / f"old{number}.json"
        old.write_text(json_line(1e9, **({"n": 1} if not number else {"n": 2.5})) + "\n")
        paths = json.dumps(["access.log*", str(old)])
        config = super()._config(number, name, port).replace(f"'{FORMAT}'", '"json"')
        return config.replace('path = "access.log*"', f"path = {paths}")


def json_line(time_s: float, **more: object) -> str:
    return json.dumps({"ts": time_s, "tenant": {"id": "x"}, **more})


@pytest.mark.process
def test_the_keys_of_the_lines_are_columns_of_all_agents(tmp_path: Path) -> None:
    sql = (
        "SELECT window, tenant.id AS t, sum(n) AS s, count(later.key) AS k, count(*) AS c FROM access"
        " GROUP BY window(time, '1 second'), tenant.id"
    )
    keyed = Keyed(tmp_path, 2)
    with keyed as fleet:

        def told() -> bool:
            columns = held_at(fleet.agents[0]).columns
            return {each.type for each in columns if each.name == "n"} == {"bigint", "double"}

        wait_until(told, "the keys are not known")
        done = start(fleet, "keys", sql)
        assert (done.returncode, done.stderr) == (
            0,
            "elf: 2 of 2 agents have no column later.key; in their lines it is NULL until one has it\n",
        )
        now_s = int(time.time()) + 1
        with fleet.watch("keys") as seen:
            fleet.agents[0].write([json_line(now_s, n=7), json_line(now_s, n="bad"), json_line(now_s + 4)])
            fleet.agents[1].write([json_line(now_s, n=0.5, later={"key": 1}), json_line(now_s + 4)])
            seen.wait(lambda: now_s * 1_000_000 in seen.final_starts)
        put = seen.latest[now_s * 1_000_000]
        assert [tuple(row[1:]) for row in rows_of(put)] == [("x", 7.5, 1, 3)]
        assert (put.lines, put.not_converted) == ((3, 3, 0, 0), (("n", 1),))
        said = "access: n is a double for the jobs, and lines have other values ('bad'): these are NULL"
        wait_until(lambda: said in fleet.agents[0].said(), "nothing was said")
        with urlopen(f"http://127.0.0.1:{keyed.port}/metrics", timeout=WAIT_S) as answer:
            assert 'elf_source_not_converted_total{source="access",column="n"} 1' in answer.read().decode()


@pytest.mark.process
def test_a_column_of_two_types_is_refused_unless_it_is_not_asked_for(tmp_path: Path) -> None:
    Different.formats = (CACHED, PATTERN.replace("upstream_cache_status", "connection_requests"))
    with Different(tmp_path, 2) as fleet:
        knows(fleet, 2)
        sums = "SELECT sum(connection_requests) FROM access"
        done = start(fleet, "sums", sums)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("elf: column connection_requests is bigint at a0 and string at a1; ")
        assert done.stderr.count("\n") == 1
        assert start(fleet, "other", "SELECT status, count(*) FROM access GROUP BY status").returncode == 0


@pytest.mark.process
def test_a_source_is_the_one_of_from_and_an_unknown_one_is_reported(tmp_path: Path) -> None:
    def more(number: int) -> str:
        return (
            '[[source]]\nname = "shop"\npath = "shop.log"\nformat = "$msec $status $shop_id"\n'
            if number
            else ""
        )

    with Fleet(tmp_path, 2, more=more) as fleet:
        knows(fleet, 1, "shop")
        query = "SELECT shop_id, count(*) FROM shop GROUP BY shop_id"
        assert start(fleet, "shops", query).returncode == 0
        (job,) = json.loads(fleet.elf("job", "list", "--output", "json"))
        assert (job["source"], job["agents"]) == ("shop", 1)
        done = start(fleet, "a", query.replace("FROM shop", "FROM shp"))
        assert (done.returncode, "did you mean shop?" in done.stderr) == (2, True)
        done = start(fleet, "a", query, "--source", "nowhere")
        assert (done.returncode, "no agent of the mesh has a source 'nowhere'" in done.stderr) == (2, True)
        done = start(fleet, "a", query, "--source", "access")
        assert (done.returncode, "there is no source shop" in done.stderr) == (2, True)


def held_at(agent: Agent, source: str = "access") -> w.HeldSource:
    """The columns that an agent knows of a source."""
    held = agent.ask(w.JobGet("none", columns=True))
    assert isinstance(held, w.JobHeld)
    return held.schemas.get(source, w.HeldSource(0))


def knows(fleet: Fleet, count: int, source: str = "access") -> None:
    """Until the first agent has heard of columns of so many others."""

    def told() -> bool:
        columns = held_at(fleet.agents[0], source).columns
        return (
            sum(
                each.count
                for each in columns
                if each.name in ("connection_requests", "request_count", "shop_id")
            )
            >= count
        )

    wait_until(told, "the columns are not known")


def windows_of(fleet: Fleet, job: str) -> dict[str | None, tuple[int, int | None]]:
    """Sums over two windows by the first column, of twenty lines at each agent."""
    now_s = int(time.time()) + 1
    starts = {now_s * 1_000_000, (now_s + 1) * 1_000_000}
    with fleet.watch(job) as seen:
        for number, agent in enumerate(fleet.agents):
            ends = [""] * 2 if not number else [" HIT 3", " MISS 3"]
            times = [*(now_s + at for at in (0.1, 0.3, 1.2, 1.4, 1.5) for _ in range(2)), now_s + 4]
            agent.write([line(at, 200, 1) + end for at in times for end in ends])
        seen.wait(lambda: starts <= seen.final_starts)
    sums: dict[str | None, tuple[int, int | None]] = {}
    for start in starts:
        for _, cache, hits, requests in rows_of(seen.latest[start]):
            held = sums.get(cache, (0, None))
            sums[cache] = held[0] + hits, None if requests is None else (held[1] or 0) + requests
    return sums
