"""Windows that a mesh's agent delivers to an MQTT broker, a real one."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from standardwebhooks import Webhook

from elf.agent.config.specs import SinkSection
from elf.agent.host.sinks.lags import problem_of
from elf.agent.node.neighbours import Neighbours
from elf.jobmaster.delivery.dispatch import Dispatch
from elf.jobmaster.delivery.known import Known
from elf.jobmaster.delivery.outbox import Outbox
from elf.jobmaster.delivery.sink_queue import IN_FLIGHT_MAX
from elf.sinks.lake.layout import ledger
from elf.sinks.spec import Broker, Hook
from elf.srt.messages.ids import closeness, job_id
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.reports import SinkState
from elf.typer_cli import main
from tests.rigs.agents.mesh_rig import wait_until
from tests.rigs.hosted import SECOND, Mesh
from tests.sinks.delivery.endpoint import HANG_UP, Endpoint, endpoint_in_thread
from tests.sinks.delivery.mosquitto import PATIENCE_S, Mosquitto, mosquitto, subscribed

pytestmark = pytest.mark.process
SQL = "SELECT window, path, count(*) AS hits FROM access GROUP BY window(time, '2 seconds'), path"
TOPIC = "elf/v1/shop/hits/window"
SECRET = "whsec_" + b64encode(bytes(range(32))).decode()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with mosquitto(tmp_path) as broker:
        yield broker


@pytest.fixture
def mesh(tmp_path: Path, broker: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mesh]:
    monkeypatch.setattr(Dispatch, "pause_us", 20_000)
    brokers = {"broker": Broker("127.0.0.1", broker.port, False, "shop")}
    parameters = Parameters(seat_retry_us=100_000, seat_retry_us_max=SECOND)
    with Mesh(tmp_path, nodes=3, lake=tmp_path / "lake", brokers=brokers, parameters=parameters) as mesh:
        yield mesh


def start(mesh: Mesh, name: str, *sinks: str, size: str = "2 seconds") -> None:
    argv = [
        "job",
        "start",
        name,
        "--sql",
        SQL.replace("2 seconds", size),
        "--lateness",
        "3s",
        "--agent",
        str(mesh.socket()),
    ]
    assert main([*argv, *(word for sink in sinks for word in ("--sink", sink))]) == 0


def window(message: Any) -> dict[str, Any]:
    return dict(json.loads(message.payload))


def properties(message: Any) -> dict[str, str]:
    return dict(message.properties.UserProperty)


def delivered(mesh: Mesh) -> Any:
    assert mesh.sink is not None
    (state,) = (each for each in mesh.sink.delivering(0) if each.name != "lake")
    return state


def check_exact(mesh: Mesh, found: dict[str, Any]) -> None:
    at = found["_elf"]["window"]["start"].removesuffix("Z")
    assert {row["path"]: row["hits"] for row in found["rows"]} == mesh.truth(at, 2 * SECOND)


def test_each_final_window_is_one_message_and_the_newest_is_retained(mesh: Mesh, broker: Mosquitto) -> None:
    with subscribed(broker.port) as inbox:
        start(mesh, "hits", "broker")
        messages = [inbox.get(timeout=PATIENCE_S) for _ in range(4)]
    starts = [window(each)["_elf"]["window"]["start"] for each in messages]
    assert (starts, {each.topic for each in messages}) == (sorted(set(starts)), {TOPIC})
    for each in messages:
        check_exact(mesh, window(each))
        assert each.qos == 1
        assert each.properties.ContentType == "application/json"
        assert 3_600 < each.properties.MessageExpiryInterval < 3_800
        about, meta = properties(each), window(each)["_elf"]
        epoch, node, n = meta["revision"]
        assert about["revision"] == f"{epoch}.{node}.{n}"
        assert (about["status"], about["version"], meta["job"]) == ("final", meta["version"], "hits")
        assert (len(about["id"]), len(about["digest"])) == (32, 16)
    assert len({properties(each)["id"] for each in messages}) == 4
    with subscribed(broker.port) as inbox:
        kept = inbox.get(timeout=PATIENCE_S)
    assert kept.retain
    assert window(kept)["_elf"]["window"]["start"] >= starts[-1]


def test_a_killed_agent_repeats_what_was_not_recorded_and_loses_nothing(
    mesh: Mesh, broker: Mosquitto
) -> None:
    with subscribed(broker.port) as inbox:
        start(mesh, "hits", "broker")
        before = [inbox.get(timeout=PATIENCE_S) for _ in range(5)]
        mesh.in_world(lambda: mesh.world.crash(mesh.hosts[1].actor))
        mesh.in_world(lambda: mesh.restart(mesh.hosts[1]))
        known: list[int] = []

        def reopen() -> None:
            mesh.open_sink()
            assert mesh.sink is not None
            outlet = mesh.sink._outlets._each["broker"]
            known.extend([len(outlet.ledger(job_id("hits")).entries), len(outlet.dispatch.marks)])

        mesh.in_world(reopen)
        assert known[0] >= 2, "the ledger is read from the disk"
        assert known[1] == 1, "and so is what the newest window was"
        revisions: dict[str, tuple[str, str]] = {}
        after = [inbox.get(timeout=PATIENCE_S) for _ in range(6)]
        for each in [*before, *after]:
            found = window(each)
            check_exact(mesh, found)
            at, about = found["_elf"]["window"]["start"], properties(each)
            assert revisions.setdefault(at, (about["revision"], about["id"])) == (
                about["revision"],
                about["id"],
            )
    starts = sorted(map(window_seconds, revisions))
    assert starts == list(range(starts[0], starts[-1] + 1, 2)), "none is missing"
    recorded = {properties(each)["id"] for each in before[:2]}
    assert not recorded & {properties(each)["id"] for each in after}, "what the ledger has is not sent again"


def window_seconds(text: str) -> int:
    hours, minutes, seconds = text.removesuffix("Z").partition("T")[2].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def test_a_broker_that_is_down_holds_up_no_other_job_and_gets_all_windows_later(
    mesh: Mesh, broker: Mosquitto, tmp_path: Path
) -> None:
    with subscribed(broker.port, durable=True) as inbox:
        start(mesh, "hits", "broker")
        found = [window(inbox.get(timeout=PATIENCE_S))]
        broker.stop()
        start(mesh, "kept", "lake")
        mesh.wait_for(lambda: len(ledger(tmp_path / "lake", "kept")) >= 4)
        mesh.wait_for(lambda: delivered(mesh).waiting >= 2 and delivered(mesh).failures > 0)
        state = delivered(mesh)
        assert (state.name, state.delivered > 0) == ("broker", True)
        assert "refused" in state.problem or "ended" in state.problem, state.problem
        said = [text for text in mesh.hosts[1].said if "sink broker" in text]
        assert 1 <= len(said) <= 4, "each problem once"
        broker.start()
        found += [window(inbox.get(timeout=PATIENCE_S)) for _ in range(6)]
    for each in found:
        check_exact(mesh, each)
    starts = sorted({window_seconds(each["_elf"]["window"]["start"]) for each in found})
    assert starts == list(range(starts[0], starts[-1] + 1, 2)), "none is missing"
    mesh.wait_for(lambda: delivered(mesh).problem == "")
    node = next(host.node for host in mesh.hosts if host.node.seats[job_id("hits")].master)
    master = node.seats[job_id("hits")].master
    assert master is not None
    mesh.in_world(master.check)


def test_a_job_with_a_lake_and_a_broker_gives_both_all_windows(
    mesh: Mesh, broker: Mosquitto, tmp_path: Path
) -> None:
    with subscribed(broker.port) as inbox:
        start(mesh, "hits", "lake", "broker")
        found = [window(inbox.get(timeout=PATIENCE_S)) for _ in range(3)]
        for each in found:
            check_exact(mesh, each)
        mesh.wait_for(lambda: len(ledger(tmp_path / "lake", "hits")) >= 3)
        while not inbox.empty():
            found.append(window(inbox.get()))
        starts = [each["_elf"]["window"]["start"] for each in found]
        assert starts == sorted(set(starts)), "each once"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with endpoint_in_thread() as endpoint:
        yield endpoint


@pytest.fixture
def hooked(tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mesh]:
    """With a webhook beside a lake."""
    monkeypatch.setattr(Dispatch, "pause_us", 20_000)
    secret = tmp_path / "hook.secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    hooks = {"pager": Hook("127.0.0.1", endpoint.port, False, "/in", "shop", secret, is_private=True)}
    parameters = Parameters(seat_retry_us=100_000, seat_retry_us_max=SECOND)
    with Mesh(tmp_path, nodes=3, lake=tmp_path / "lake", hooks=hooks, parameters=parameters) as mesh:
        yield mesh


def test_a_webhook_gets_each_final_window_signed_and_again_until_it_acknowledges(
    hooked: Mesh, endpoint: Endpoint
) -> None:
    endpoint.answers = [HANG_UP, b"HTTP/1.1 500 No\r\n\r\n", b"HTTP/1.1 413 No\r\ncontent-length: 0\r\n\r\n"]
    start(hooked, "hits", "pager")
    requests = [endpoint.requests.get(timeout=PATIENCE_S) for _ in range(8)]
    events = [Webhook(SECRET).verify(each.body, each.headers) for each in requests]
    assert len({event["id"] for event in events}) <= 5, "those that were not acknowledged came again"
    assert {event["source"] for event in events} == {"/elf/v1/shop/hits"}
    for event in events:
        check_exact(hooked, event["data"])
    starts = {event["data"]["_elf"]["window"]["start"] for event in events}
    seconds = sorted(map(window_seconds, starts))
    assert seconds == list(range(seconds[0], seconds[-1] + 1, 2)), "none is missing"
    state = delivered(hooked)
    assert (state.name, state.refusals) == ("pager", 1)


def test_a_killed_agent_repeats_to_a_webhook_with_the_same_id(hooked: Mesh, endpoint: Endpoint) -> None:
    start(hooked, "hits", "pager")
    endpoint.requests.get(timeout=PATIENCE_S)
    endpoint.is_silent = True
    sent = endpoint.requests.get(timeout=PATIENCE_S)
    while not endpoint.requests.empty():
        sent = endpoint.requests.get()
    hooked.in_world(lambda: hooked.world.crash(hooked.hosts[1].actor))
    endpoint.is_silent = False
    hooked.in_world(lambda: hooked.restart(hooked.hosts[1]))
    hooked.in_world(hooked.open_sink)
    again = endpoint.requests.get(timeout=PATIENCE_S)
    assert again.headers["webhook-id"] == sent.headers["webhook-id"]
    assert Webhook(SECRET).verify(again.body, again.headers) == Webhook(SECRET).verify(
        sent.body, sent.headers
    )


def test_a_sink_that_is_removed_and_added_again_gets_what_it_missed(hooked: Mesh, endpoint: Endpoint) -> None:
    """From a job that names it all along; by its name its ledger is found again, so nothing comes twice."""
    start(hooked, "hits", "pager")
    requests = [endpoint.requests.get(timeout=PATIENCE_S) for _ in range(3)]
    host = hooked.hosts[1]
    hooked.world.serving = ()
    hooked.in_world(lambda: hooked.kill(host))
    hooked.in_world(lambda: hooked.restart(host))
    until_us = hooked.world.now_us + 12 * SECOND
    hooked.wait_for(lambda: hooked.world.now_us > until_us)
    before = endpoint.requests.qsize()
    hooked.world.serving = ("web1",)
    hooked.in_world(lambda: hooked.kill(host))
    hooked.in_world(lambda: hooked.restart(host))
    hooked.in_world(hooked.open_sink)
    requests += [endpoint.requests.get(timeout=PATIENCE_S) for _ in range(before + 6)]
    found = [Webhook(SECRET).verify(each.body, each.headers)["data"]["_elf"] for each in requests]
    seconds = [window_seconds(each["window"]["start"]) for each in found]
    assert before <= 1, "nobody delivers meanwhile"
    assert sorted(set(seconds)) == list(range(min(seconds), max(seconds) + 1, 2)), "none is missing"
    assert len(seconds) - len(set(seconds)) <= 2, "what was not acknowledged"


def outlived(folder: Path, endpoint: Endpoint) -> list[dict[str, Any]]:
    """The windows that a webhook of two agents gets, in order, of which the first to deliver is killed after three."""
    secret = folder / "hook.secret"
    secret.touch(0o600)
    secret.write_text(SECRET)
    hooks = {"pager": Hook("127.0.0.1", endpoint.port, False, "/in", "shop", secret, is_private=True)}
    parameters = Parameters(seat_retry_us=100_000, seat_retry_us_max=SECOND, hold_us_max=4 * SECOND)
    requests = []
    with Mesh(folder, nodes=4, hooks=hooks, parameters=parameters, serving=("web1", "web2")) as mesh:
        start(mesh, "hits", "pager")
        requests += [endpoint.requests.get(timeout=PATIENCE_S) for _ in range(3)]
        serving = min(mesh.hosts[1:3], key=lambda host: closeness(job_id("hits"), host.actor.id))
        mesh.in_world(lambda: mesh.kill(serving))
        until_us = mesh.world.now_us + 20 * SECOND
        mesh.wait_for(lambda: mesh.world.now_us > until_us)
        while not endpoint.requests.empty():
            requests.append(endpoint.requests.get())
        found = [Webhook(SECRET).verify(each.body, each.headers)["data"] for each in requests]
        for window in found:
            if window["_elf"]["agents_reporting"] == window["_elf"]["agents_expected"]:
                check_exact(mesh, window)
    return found


def test_a_webhook_of_two_agents_is_one_sink_that_outlives_either(tmp_path: Path, endpoint: Endpoint) -> None:
    """Rule Moving: what the first agent delivered before it was killed does not come again from the second one."""
    found = outlived(tmp_path, endpoint)
    assert found[-1]["_elf"]["agents_reporting"] == 3, "without the lines of the one that was killed"
    seconds = [window_seconds(each["_elf"]["window"]["start"]) for each in found]
    assert sorted(set(seconds)) == list(range(min(seconds), max(seconds) + 1, 2)), "none is missing"
    assert max(seconds) - min(seconds) > 16
    assert len(seconds) - len(set(seconds)) <= 2, "only what was not acknowledged comes again"


def test_without_the_cursor_of_the_one_before_all_comes_again(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule Moving is broken."""
    served = Outbox._served
    monkeypatch.setattr(
        Outbox,
        "_served",
        lambda self, former, target: served(None, target) if former and former.target != target else former,
    )
    monkeypatch.setattr(Known, "share_with", lambda *about: None)
    found = outlived(tmp_path, endpoint)
    ids = [json.dumps(each["_elf"]["window"]) for each in found]
    assert len(ids) - len(set(ids)) >= 3


def test_without_notice_of_the_death_nothing_comes(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule Moving is broken."""
    monkeypatch.setattr(Neighbours, "is_dead", lambda self, node, advert: False)
    found = outlived(tmp_path, endpoint)
    assert len(found) < 8


def test_files_and_a_command_get_each_final_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All from one agent, and rows of Parquet too; the command fails at first."""
    monkeypatch.setattr(Dispatch, "pause_us", 20_000)
    program = tmp_path / "program"
    seen = tmp_path / "seen"
    program.write_text(f"#!/bin/sh\nmkdir {seen} 2> /dev/null && exit 1\ncat > {seen}/$ELF_ID\n")
    program.chmod(0o755)
    sections = [
        SinkSection("files", jsonl=tmp_path / "lines"),
        SinkSection("table", results=tmp_path / "results"),
        SinkSection("notify", command=(str(program),)),
    ]
    parameters = Parameters(seat_retry_us=100_000, seat_retry_us_max=SECOND)
    with Mesh(tmp_path, nodes=3, lake=tmp_path / "lake", others=sections, parameters=parameters) as mesh:
        start(mesh, "hits", "files", "table", "notify")
        wait_until(
            lambda: seen.is_dir() and len(list(seen.iterdir())) >= 4, "the command did not get four windows"
        )
        told = [json.loads(each.read_bytes()) for each in seen.iterdir() if each.stat().st_size]
        (file,) = (tmp_path / "lines").iterdir()
        written = [json.loads(line) for line in file.read_bytes().splitlines()]
        for found in [*told, *written]:
            check_exact(mesh, found)
        wait_until(lambda: any(tmp_path.glob("results/hits/*.parquet")), "there is no result")
        stored = pq.read_table(tmp_path / "results" / "hits").to_pylist()
        states = {state.name: state for state in mesh.sink.delivering(0)} if mesh.sink is not None else {}
    assert file.name.startswith("hits.")
    assert (states["notify"].refusals, states["files"].refusals) == (1, 0)
    lines = {(row["window"]["start"], row["path"]): row["hits"] for found in written for row in found["rows"]}
    rows = {(f"{row['window']['start']:%Y-%m-%dT%H:%M:%SZ}", row["path"]): row["hits"] for row in stored}
    assert len(rows) == len(stored) > 0
    assert rows.items() <= lines.items() or lines.items() <= rows.items(), "one sink may be a window ahead"
    starts = [found["_elf"]["window"]["start"] for found in written]
    assert (starts, len(starts) >= 4) == (sorted(set(starts)), True)


def test_a_webhook_that_never_answers_delays_no_other_sink_of_its_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lake and files beside it have all windows, far more than may be in flight; the webhook gets each when it answers."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    files = tmp_path / "lines"
    with closing(socket.create_server(("127.0.0.1", 0))) as hole:  # takes connections, and answers nothing
        hook = Hook("127.0.0.1", hole.getsockname()[1], False, "/in", "shop", secret, None, True)
        with Mesh(
            tmp_path,
            nodes=3,
            seconds=3 * IN_FLIGHT_MAX,
            lake=tmp_path / "lake",
            hooks={"pager": hook},
            others=[SinkSection("files", jsonl=files)],
        ) as mesh:
            start(mesh, "hits", "pager", "lake", "files", size="1 second")

            def lines() -> list[dict[str, Any]]:
                return [json.loads(line) for each in files.glob("*") for line in each.open()]

            wait_until(lambda: len(lines()) > 1.5 * IN_FLIGHT_MAX, "files have too few windows")
            wait_until(
                lambda: len(ledger(tmp_path / "lake", "hits")) > 1.5 * IN_FLIGHT_MAX,
                "the lake has too few windows",
            )
            assert mesh.sink is not None
            states = {state.name: state for state in mesh.sink.delivering(0)}
            assert (states["pager"].delivered, states["pager"].waiting) == (0, IN_FLIGHT_MAX)
            assert states["files"].waiting <= 1
            assert main(["mesh", "status", "--output", "table", "--agent", str(mesh.socket())]) == 0
    shown = capsys.readouterr().out.splitlines()
    (late,) = [line.split() for line in shown if line.startswith("hits ") and " pager " in line]
    assert int(late[3]) > IN_FLIGHT_MAX, "at the job's master"


@pytest.mark.parametrize(("waiting", "said"), [(1, "1 window waits"), (1_200, "1,200 windows wait")])
def test_a_sink_with_a_problem_says_what_waits(waiting: int, said: str) -> None:
    state = SinkState("pager", waiting, 3_400_000, 0, 0, 4, "refused")
    assert problem_of(state) == f"sink pager: refused; {said}, the oldest for 3 s"
