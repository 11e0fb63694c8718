"""A sink that an agent serves: windows of a mesh's job in a lake, as readers of lakes find them."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from elf.agent.control.client import Control
from elf.agent.control.protocol import JobWatch, Published
from elf.agent.simulator.world.network import Weather
from elf.jobmaster.delivery import states
from elf.jobmaster.delivery.ledger import Ledger
from elf.jobmaster.delivery.states import PaneReader
from elf.jobmaster.directory.job_spec import decode_job
from elf.jobmaster.log.record_codec import RecordDecoder, RecordEncoder
from elf.sinks.lake import parquet
from elf.sinks.lake.layout import ledger
from elf.sinks.lake.parquet import ParquetSink
from elf.sinks.report.report import report
from elf.srt.codec.wire import decode
from elf.srt.messages.effects import Write
from elf.srt.messages.ids import job_id
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.reports import Failing
from elf.srt.messages.results import LedgerRequest, Put, PutPart
from elf.typer_cli import main
from tests.rigs.hosted import SECOND, Hosted, Mesh
from tests.sinks.lake import lake_states

pytestmark = pytest.mark.process

SMALL = Parameters(frame_bytes_max=60, link_bytes_max=4 << 20)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SQL = (
    "SELECT window, path, count(*) AS hits, sum(bytes) AS bytes FROM access GROUP BY window(time, '{}'), path"
)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    with Mesh(tmp_path, nodes=4, lake=tmp_path / "lake") as mesh:
        yield mesh


def start(mesh: Mesh, window: str) -> None:
    """Lines are up to 2 s late: with a lateness of 3 s the first final window has them all."""
    argv = ["job", "start", "hits", "--sql", SQL.format(window), "--lateness", "3s", "--sink", "lake"]
    assert main([*argv, "--agent", str(mesh.socket())]) == 0


def restart(mesh: Mesh, host: Hosted) -> None:
    """Crash a host, and start it again; the second one serves the lake."""
    mesh.in_world(lambda: mesh.world.crash(host.actor))
    mesh.in_world(lambda: mesh.restart(host))
    if host is mesh.hosts[1]:
        mesh.in_world(mesh.open_sink)


def stored(lake: Path) -> dict[int, dict[str, int]]:
    """Pane start -> path -> hits."""
    found: dict[int, dict[str, int]] = {}
    for row in lake_states.rows(lake):
        if not row["_empty"]:
            start = (row["_pane_start"] - EPOCH) // timedelta(microseconds=1)
            found.setdefault(start, {})[row["path"]] = row["_acc0"]
    return found


def holds(lake: Path, panes: int) -> bool:
    """Whether the lake has so many, and all between: windows in transit when a process died are sent again."""
    return is_whole({start for _, start in ledger(lake, "hits")}, panes)


def is_whole(starts: Collection[int], panes: int) -> bool:
    """Whether there are so many, and all between."""
    return len(starts) >= panes and set(range(min(starts), max(starts), 2 * SECOND)) <= set(starts)


def check_exact(mesh: Mesh, lake: Path, panes: int) -> None:
    """Wait until the lake has so many, and all between; then each is what the logs say."""
    found: dict[int, dict[str, int]] = {}

    def has_come() -> bool:
        nonlocal found
        if holds(lake, panes):
            found = stored(lake)  # the mesh goes on: a moment later it may lack one again
        return is_whole(found, 1)

    mesh.wait_for(has_come)
    for pane, hits in found.items():
        assert hits == mesh.truth_at(pane, 2 * SECOND)


@pytest.mark.parametrize("window", ["2 seconds", "4 seconds', '2 seconds"])
def test_each_pane_is_stored_once_it_is_final_and_exact(mesh: Mesh, tmp_path: Path, window: str) -> None:
    lake = tmp_path / "lake"
    start(mesh, window)
    check_exact(mesh, lake, 8)
    (row, *_) = lake_states.rows(lake)
    assert row["_agents_reporting"] == row["_agents_expected"] == 4
    size_us = 4 * SECOND if "," in window else 2 * SECOND
    assert mesh.sink is not None
    assert mesh.sink._late_us() == 2 * 3600 * SECOND + 3 * SECOND + size_us


def test_a_sink_that_restarts_resumes_and_lacks_nothing(mesh: Mesh, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    start(mesh, "2 seconds")
    mesh.wait_for(lambda: holds(lake, 2))
    restart(mesh, mesh.hosts[1])
    before = len(ledger(lake, "hits"))
    check_exact(mesh, lake, before + 5)


def test_a_sink_that_loses_its_ledger_knows_what_its_lake_holds(mesh: Mesh, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    start(mesh, "2 seconds")
    mesh.wait_for(lambda: holds(lake, 3))
    records = mesh.hosts[1].actor.disk.records
    job, known = job_id("hits"), set(ledger(lake, "hits"))

    def forget() -> None:
        for key in [key for key in records if key[0] == "ledger"]:
            del records[key]

    mesh.in_world(forget)
    restart(mesh, mesh.hosts[1])
    mesh.wait_for(lambda: job in mesh.sink._stores["lake"]._ledgers)  # type: ignore[union-attr]
    (again,) = mesh.sink._stores["lake"]._ledgers[job].values()  # type: ignore[union-attr]
    assert known <= again.entries.keys()
    check_exact(mesh, lake, len(known) + 3)


def test_a_lake_that_takes_nothing_holds_up_the_answers_only(mesh: Mesh, tmp_path: Path) -> None:
    """Writes to a failing disk are retried; meanwhile windows are sent to watchers."""
    lake = tmp_path / "lake"
    (lake / "hits").write_text("a file where a folder should be")
    start(mesh, "2 seconds")
    with Control(mesh.socket(2)) as control:
        finals = 0
        for answer in control.ask(JobWatch("hits")):
            put = decode(answer.put) if isinstance(answer, Published) else None
            finals += isinstance(put, Put) and put.status == "final"
            if finals == 3:
                break
    assert mesh.sink is not None
    mesh.wait_for(lambda: mesh.sink is not None and mesh.sink.is_refused)
    seat = next(
        host.node.seats[job_id("hits")] for host in mesh.hosts if host.node.seats[job_id("hits")].master
    )
    assert seat.master is not None
    assert seat.master.outbox.waiting >= 3
    (lake / "hits").unlink()
    mesh.wait_for(lambda: len(ledger(lake, "hits")) >= 5)
    assert any("are retried every" in said for said in mesh.hosts[1].said)


@pytest.mark.spark
def test_the_spark_report_reads_it(spark: Any, tmp_path: Path) -> None:
    """By the recipe that the master never sent, and the sink made from the job's plan."""
    lake, out = tmp_path / "lake", io.BytesIO()
    with Mesh(tmp_path, nodes=4, lake=lake) as mesh:
        start(mesh, "2 seconds")
        mesh.wait_for(lambda: holds(lake, 4))
    report(str(lake), every="2s", output="json", stdout=out, notices=io.StringIO())
    found: dict[str, dict[str, int]] = {}
    for row in map(json.loads, out.getvalue().splitlines()):
        found.setdefault(row["window"]["start"], {})[row["path"]] = row["hits"]
    assert len(found) >= 4
    for start_text, hits in found.items():
        assert hits == mesh.truth(start_text, 2 * SECOND)


def test_a_ledger_comes_back_from_the_bytes_on_disk() -> None:
    """A ledger's records contain fence, revisions, and which are open."""
    job, master = b"J" * 16, b"M" * 16
    before, encoder, decoder = Ledger(job), RecordEncoder(), RecordDecoder()
    records = []
    for n, status in enumerate(("open", "final", "open", "revised"), start=1):
        put = Put(
            job, (3, master), "v1", n // 3, n // 3 + 1, (0, 1), status, (3, master, n), n, 1, 1, (0, 0, 0, 0)
        )
        for effect in before.step(master, put, 0):
            if isinstance(effect, Write):
                records.append(decoder.decode(encoder.encode(effect)).record)
    after = Ledger(job)
    after.restore(records)
    after.check()
    ask = LedgerRequest(job, (4, master))
    assert (after.fence, after.entries) == (before.fence, before.entries)
    assert after.step(master, ask, 0) == before.step(master, ask, 0)


def test_windows_in_parts_over_a_lossy_network_are_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink is killed between, and the master too."""
    monkeypatch.setattr(states, "HELD_BYTES_MAX", 0)
    lake = tmp_path / "lake"
    with Mesh(
        tmp_path, nodes=4, seconds=40, lake=lake, parameters=SMALL
    ) as mesh:  # its small frames are slow
        parts = 0

        def count(moment: int, what: str, actor: Any, about: Any) -> None:
            nonlocal parts
            parts += what == "deliver" and isinstance(about[1], PutPart)

        mesh.in_world(lambda: mesh.world.observers.append(count))
        mesh.world.network.weather = Weather(loss=0.05, duplicate=0.02, straggle=0.1)
        start(mesh, "2 seconds")
        mesh.wait_for(lambda: holds(lake, 2))
        restart(mesh, mesh.hosts[1])
        master = next(
            host
            for host in mesh.hosts
            if host.actor.node and (seat := host.node.seats.get(job_id("hits"))) and seat.master
        )
        if master is not mesh.hosts[1]:
            restart(mesh, master)
        check_exact(mesh, lake, 12)
        assert parts > 5


def test_two_lakes_of_one_agent_hold_each_window_though_the_second_comes_later(tmp_path: Path) -> None:
    """Two jobs, of which one has the second lake from the beginning, and the other gets it while it runs."""
    one, two = tmp_path / "one", tmp_path / "two"
    with Mesh(tmp_path, nodes=4, lake=one, lakes={"second": two}) as mesh:
        argv = ["job", "start", "--lateness", "3s", "--agent", str(mesh.socket()), "--sink", "lake"]
        sql = SQL.format("2 seconds")
        assert main([*argv, "hits", "--sql", sql]) == 0
        assert main([*argv, "both", "--sql", sql, "--sink", "second"]) == 0
        mesh.wait_for(lambda: holds(one, 4))
        assert not ledger(two, "hits")
        node = mesh.hosts[0].node
        item = node.directory.get("job", job_id("hits"))
        assert item is not None
        spec = decode_job(item)
        changed = msgspec.structs.replace(spec, number=spec.number + 1, sinks=("lake", "second"))
        mesh.in_world(lambda: mesh.hosts[0].submit(changed.item()))
        mesh.wait_for(lambda: holds(two, 8))
        for job in ("hits", "both"):
            before = {start for _, start in ledger(one, job)}
            mesh.wait_for(lambda b=before, j=job: b <= {start for _, start in ledger(two, j)})  # type: ignore[misc]
        for lake in (one, two):
            for pane, hits in stored(lake).items():
                assert hits == mesh.truth_at(pane, 2 * SECOND), lake


def starts_of(lake: Path, job: str) -> set[int]:
    return {start for _, start in ledger(lake, job)}


def dying_python(folder: Path) -> Path:
    """A Python that dies of data of the doomed job, as long as the file `ill` exists."""
    script = folder / "python"
    script.write_text(
        f"#!/bin/sh\nfed=$(mktemp -p {folder})\ncat > $fed\n"
        f"if [ -e {folder}/ill ] && grep -q doom $fed; then kill -9 $$; fi\n"
        f'exec {sys.executable} "$@" < $fed\n'
    )
    script.chmod(0o755)
    return script


@pytest.mark.parametrize("place", ["read", "taken", "written", "writer dies"])
def test_a_window_that_a_sink_fails_at_holds_up_no_other_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Where its states are read, where the lake takes them, where they go to the lake's writer, and where that dies of them. When
    that is over, the job's ledger starts again, and all its windows are there."""
    ill = threading.Event()
    ill.set()

    def breaks(owner: Any, method: str, is_doomed: Callable[..., bool]) -> None:
        plain = getattr(owner, method)

        def broken(*about: Any) -> Any:
            if ill.is_set() and is_doomed(*about):
                raise KeyError("doomed")
            return plain(*about)

        monkeypatch.setattr(owner, method, broken)

    if place == "read":
        breaks(PaneReader, "states", lambda reader, put: put.job == job_id("doom"))
    elif place == "taken":
        breaks(ParquetSink, "put_state", lambda lake, state: state.job == "doom")
    elif place == "writer dies":
        (tmp_path / "ill").touch()
        monkeypatch.setattr(parquet, "sys", SimpleNamespace(executable=str(dying_python(tmp_path))))
    else:
        breaks(
            ParquetSink,
            "flush",
            lambda lake, job=None: "doom" in lake.pending_jobs() and job in (None, "doom"),
        )
    lake = tmp_path / "lake"
    parameters = Parameters(seat_retry_us=100_000, seat_retry_us_max=SECOND)
    with Mesh(tmp_path, nodes=4, lake=lake, parameters=parameters) as mesh:
        sql = SQL.format("2 seconds")
        argv = ["job", "start", "doom", "--sql", sql, "--lateness", "3s", "--sink", "lake"]
        assert main([*argv, "--agent", str(mesh.socket())]) == 0
        start(mesh, "2 seconds")  # after it, so that each of its windows is one of doom's too
        mesh.wait_for(lambda: holds(lake, 4))
        assert mesh.sink is not None
        sink = mesh.sink
        told: tuple[Failing, ...] = ()

        def is_told() -> bool:
            nonlocal told
            told = sink.failing(sink._host.clock_us())
            return len(told) == 1

        mesh.wait_for(is_told)
        (failing,) = told
        dies = "the lake writer died (signal 9)"
        assert (failing.job, failing.reason) == (
            job_id("doom"),
            dies if place == "writer dies" else "KeyError: 'doomed'",
        )
        assert not sink.is_refused
        assert starts_of(lake, "doom") == set()
        ill.clear()
        (tmp_path / "ill").unlink(missing_ok=True)
        mesh.wait_for(lambda: starts_of(lake, "hits") <= starts_of(lake, "doom") != set())
        panes = stored(lake)
        for pane, hits in panes.items():
            assert hits == mesh.truth_at(pane, 2 * SECOND)
