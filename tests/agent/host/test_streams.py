"""The sinks of an agent that write windows on its standard output, each window once."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elf.agent.host.sinks.lake_ledgers import key_of
from elf.agent.host.sinks.streams import Streams
from elf.errors import PeerError
from elf.jobmaster.delivery.ledger import Ledger
from elf.jobmaster.delivery.shown import check_rows
from elf.jobmaster.windows.reading import digest_steps
from elf.jobmaster.windows.result import ColumnInfo, Lines, StreamClosed, Window
from elf.sinks.lake.layout import ledger
from elf.srt.messages.ids import job_id
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import WITHDRAWN, Put
from elf.typer_cli import main
from tests.rigs.hosted import SECOND, Mesh

COLUMNS = (ColumnInfo("path", "string"), ColumnInfo("hits", "bigint"))
SQL = "SELECT window, path, count(*) AS hits FROM access GROUP BY window(time, '2 seconds'), path"


class Output:
    """Stands for standard output. room: bytes that it takes before it fails; None: any number."""

    def __init__(self) -> None:
        self.text = b""
        self.room: int | None = None
        self.error = errno.EPIPE

    @property
    def buffer(self) -> Output:
        return self

    def write(self, part: bytes) -> int:
        taken = len(part) if self.room is None else min(self.room, len(part))
        if not taken:
            raise OSError(self.error, "Broken pipe")
        self.text += part[:taken]
        self.room = None if self.room is None else self.room - taken
        return taken

    def isatty(self) -> bool:
        return False

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.decode().splitlines()]


def stand_in(monkeypatch: pytest.MonkeyPatch, stdout: Any) -> None:
    """For standard output, which pytest replaces between the phases of a test."""
    monkeypatch.setattr("elf.agent.host.sinks.streams.sys", SimpleNamespace(stdout=stdout))


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Output:
    output = Output()
    stand_in(monkeypatch, output)
    return output


def window(start: int, rows: list[tuple[Any, ...]], status: str = "final", n: int = 1) -> Window:
    at = start * SECOND
    return Window("hits", "v", at, at + SECOND, status, (1, 7, n), Lines(3, 3), COLUMNS, rows)


def test_text_that_was_not_taken_is_written_later_from_where_it_ended(output: Output) -> None:
    streams = Streams({"screen": "json"})
    assert ("screen" in streams, "lake" in streams, streams.names) == (True, False, ("screen",))
    streams.put("screen", window(0, [("/a", 1), ("/b", 2)]))
    assert output.text == b"", "nothing before the flush"
    output.room = 30
    with pytest.raises(OSError, match="Broken pipe") as caught:
        streams.flush()
    assert caught.value.filename == "standard output"
    assert len(output.text) == 30
    streams.put("screen", window(1, []))
    output.room = None
    streams.flush()
    streams.flush()
    found = [
        (row["path"], row["hits"], row["_elf"]["window"]["start"], row["_elf"].get("rows"))
        for row in output.rows
    ]
    first, second = "1970-01-01T00:00:00Z", "1970-01-01T00:00:01Z"
    assert found == [("/a", 1, first, None), ("/b", 2, first, None), (None, None, second, 0)]


def test_a_window_that_cannot_be_shown_leaves_nothing_behind(output: Output) -> None:
    streams = Streams({"screen": "json", "file": "csv"})
    streams.put("file", window(0, [("/a", 1)]))
    with pytest.raises(AttributeError):
        streams.put("file", SimpleNamespace(status="final"))  # type: ignore[arg-type]
    streams.put("screen", window(0, [("/a", 1)]))
    streams.flush()
    header, row, line = output.text.decode().splitlines()
    assert header.startswith("path,hits,elf_status,")
    assert row.startswith("/a,1,final,")
    assert json.loads(line)["hits"] == 1


def test_without_standard_output_windows_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, None)
    streams = Streams({"screen": "auto"})
    streams.flush()
    streams.put("screen", window(0, [("/a", 1)]))
    with pytest.raises(OSError, match="is closed"):
        streams.flush()


def test_a_reader_that_does_not_read_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elf.agent.host.sinks.streams.PATIENCE_MS", 0)
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "wb") as pipe:
        stand_in(monkeypatch, SimpleNamespace(buffer=pipe, isatty=pipe.isatty, fileno=pipe.fileno))
        streams = Streams({"screen": "json"})
        rows = [(f"/{at}", at) for at in range(3000)]
        streams.put("screen", window(0, rows))
        text, refused = b"", 0
        while len(text.splitlines()) < len(rows):
            try:
                streams.flush()
            except OSError as error:
                refused += error.strerror == "its reader does not read"
            text += os.read(reader.fileno(), 1 << 20)
        assert refused > 1
        assert [json.loads(line)["hits"] for line in text.splitlines()] == list(range(3000))


def test_a_window_without_the_rows_that_it_has_is_refused() -> None:
    def put(rows: list[Any], status: str = "final", *, sent: bool = True) -> Put:
        *_, digest = digest_steps(rows, Lines(5, 4, 1, 0))
        about = (b"J" * 16, (1, b"M" * 24), "v", 0, SECOND, (0, SECOND), status, (1, b"M" * 24, 1))
        return Put(*about, digest or 0, 1, 1, (5, 4, 1, 0), rows if sent else ())

    check_rows(put([("/a", 1)]))
    check_rows(put([]))
    check_rows(put([("/a", 1)], WITHDRAWN, sent=False))
    with pytest.raises(PeerError, match="sent no rows"):
        check_rows(put([("/a", 1)], sent=False))


def test_open_windows_are_shown_until_they_are_final(output: Output) -> None:
    streams = Streams({"screen": "json", "file": "json"}, opens=["screen"])
    streams.show("screen", window(0, [("/a", 1), ("/b", 1)], "open", 1))
    streams.show("screen", window(0, [("/a", 2), ("/b", 1)], "open", 2))
    streams.put("screen", window(0, [("/a", 3), ("/b", 1)], n=3))
    streams.show("screen", window(0, [("/a", 9)], "open", 2))  # it was on its way
    streams.show("screen", window(1, [("/c", 1)], "open", 4))
    streams.put("screen", window(1, [], "withdrawn", 5))
    streams.show("screen", window(1, [("/c", 2)], "open", 6))
    streams.close()
    found = [(row["path"], row["hits"], row["_elf"]["status"]) for row in output.rows]
    assert found == [
        ("/a", 1, "open"),
        ("/b", 1, "open"),
        ("/a", 2, "open"),
        ("/a", 3, "final"),
        ("/b", 1, "final"),
        ("/c", 1, "open"),
        (None, None, "withdrawn"),
        ("/c", 2, "open"),
    ]


def test_open_windows_do_not_pile_up_for_a_reader_that_does_not_read(output: Output) -> None:
    streams = Streams({"screen": "json"}, opens=["screen"])
    output.room, output.error = 0, errno.EAGAIN
    with pytest.raises(OSError, match="Broken pipe"):
        streams.show("screen", window(0, [("/a", 1)], "open", 1))
    for n in (2, 3):
        with pytest.raises(OSError, match="Broken pipe"):
            streams.show("screen", window(0, [("/a", n)], "open", n))
    output.room = None
    streams.show("screen", window(0, [("/a", 4)], "open", 4))
    assert [row["hits"] for row in output.rows] == [1, 4]


def test_without_a_reader_a_console_ends_the_process_and_a_sink_of_others_does_not(output: Output) -> None:
    output.room = 0
    shared, own = Streams({"screen": "json"}), Streams({"screen": "json"}, opens=["screen"])
    for streams in (shared, own):
        streams.put("screen", window(0, [("/a", 1)]))
    with pytest.raises(OSError, match="Broken pipe"):
        shared.flush()
    with pytest.raises(StreamClosed):
        own.flush()


# In a mesh.


@pytest.fixture
def mesh(tmp_path: Path, output: Output) -> Iterator[Mesh]:
    parameters = Parameters(seat_retry_us=100_000, seat_retry_us_max=SECOND)
    with Mesh(tmp_path, nodes=3, lake=tmp_path / "lake", streams=("screen",), parameters=parameters) as mesh:
        yield mesh


def start(mesh: Mesh, name: str, *sinks: str) -> None:
    argv = ["job", "start", name, "--sql", SQL, "--lateness", "3s", "--agent", str(mesh.socket())]
    assert main([*argv, *(word for sink in sinks for word in ("--sink", sink))]) == 0


def finals(output: Output, job: str) -> dict[str, dict[str, int]]:
    """Window start -> path -> hits. A window that is written twice fails."""
    found: dict[str, dict[str, int]] = {}
    revisions: dict[str, set[tuple[Any, ...]]] = {}
    for row in output.rows:
        meta = row["_elf"]
        if meta["job"] == job:
            at = meta["window"]["start"]
            assert meta["status"] == "final"
            assert (meta["agents_reporting"], meta["agents_expected"]) == (3, 3)
            revisions.setdefault(at, set()).add(tuple(meta["revision"]))
            assert len(revisions[at]) == 1
            assert found.setdefault(at, {}).setdefault(row["path"], row["hits"]) == row["hits"]
    return found


@pytest.mark.process
def test_each_final_window_is_written_and_a_killed_process_repeats_only_those_that_it_had_not_recorded(
    mesh: Mesh, output: Output
) -> None:
    start(mesh, "hits", "screen")
    actor, key = mesh.hosts[1].actor, ("ledger", key_of(job_id("hits"), "screen"))
    mesh.wait_for(lambda: len(actor.disk.records.get(key, ())) >= 3)
    mesh.in_world(lambda: mesh.world.crash(actor))
    recorded = Ledger(job_id("hits"))
    recorded.restore(actor.disk.records[key])
    before = output.text
    mesh.in_world(lambda: mesh.restart(mesh.hosts[1]))
    mesh.in_world(mesh.open_sink)
    count = len(finals(output, "hits"))
    mesh.wait_for(lambda: len(finals(output, "hits")) >= count + 3)
    assert output.text.startswith(before)
    rows = Counter((row["_elf"]["window"]["start"], row["path"]) for row in output.rows)
    repeated = {start for (start, _), times in rows.items() if times > 1}
    known = {str(np.datetime64(at, "us").astype("datetime64[s]")) + "Z" for _, at in recorded.results}
    assert known
    assert repeated.isdisjoint(known)
    for at, hits in finals(output, "hits").items():
        assert hits == mesh.truth(at.removesuffix("Z"), 2 * SECOND)


@pytest.mark.process
def test_standard_output_that_takes_nothing_holds_up_its_own_jobs_only(
    mesh: Mesh, output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elf.agent.host.sinks.storing.RETRY_S", 0.05)
    lake, sink = tmp_path / "lake", mesh.sink
    assert sink is not None
    output.room = 0
    start(mesh, "both", "lake", "screen")
    start(mesh, "kept", "lake")
    mesh.wait_for(lambda: len(ledger(lake, "kept")) >= 4 and len(ledger(lake, "both")) >= 4)
    assert sink.is_refused
    assert sink.refusal == "sink screen: standard output: Broken pipe"
    (said,) = [text for text in mesh.hosts[1].said if "standard output" in text]
    assert said == f"{sink.refusal}; its windows wait, and are retried every 0 s"
    assert output.text == b""
    output.room = None
    mesh.wait_for(lambda: len(finals(output, "both")) >= 4)
    mesh.wait_for(lambda: not sink.is_refused)
    for at, hits in finals(output, "both").items():
        assert hits == mesh.truth(at.removesuffix("Z"), 2 * SECOND)
    node = next(host.node for host in mesh.hosts if host.node.seats[job_id("both")].master)
    master = node.seats[job_id("both")].master
    assert master is not None
    mesh.in_world(master.check)
