"""Alerts of a mesh's job, from its file to a webhook and a real Alertmanager, through the death of the agent with these."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from elf.agent.config.specs import SinkSection
from elf.jobmaster.delivery.dispatch import Dispatch
from elf.sinks.lake.layout import ledger
from elf.sinks.spec import Hook
from elf.srt.messages.ids import closeness, job_id
from elf.srt.messages.parameters import Parameters
from elf.typer_cli import main
from tests.agent.host.test_outlets import SECRET
from tests.rigs.agents.mesh_rig import wait_until
from tests.rigs.hosted import SECOND, Hosted, Mesh
from tests.sinks.alerts.alertmanager import Alertmanager, alertmanager
from tests.sinks.delivery.endpoint import Endpoint, endpoint_in_thread
from tests.sinks.delivery.mosquitto import PATIENCE_S

pytestmark = pytest.mark.process
LEAST = 11
JOB = f"""\
lateness = "3s"
sinks = ["lake"]
sql = "SELECT window, path, count(*) AS hits FROM access GROUP BY window(time, '2 seconds'), path"

[[alert]]
name = "many"
when = "hits >= {LEAST}"
text = "{{path}}: {{hits}}"
labels = {{ severity = "page" }}
sinks = ["pager", "am"]
"""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with endpoint_in_thread() as endpoint:
        yield endpoint


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Alertmanager]:
    with alertmanager(tmp_path) as server:
        yield server


@pytest.fixture
def mesh(
    tmp_path: Path, endpoint: Endpoint, server: Alertmanager, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Mesh]:
    monkeypatch.setattr(Dispatch, "pause_us", 20_000)
    secret = tmp_path / "hook.secret"
    secret.touch(0o600)
    secret.write_text(SECRET)
    hooks = {"pager": Hook("127.0.0.1", endpoint.port, False, "/in", "shop", secret, is_private=True)}
    others = [SinkSection("am", alertmanager=Hook("127.0.0.1", server.port, False, "/", is_private=True))]
    parameters = Parameters(seat_retry_us=100_000, seat_retry_us_max=SECOND)
    lake = tmp_path / "lake"
    with Mesh(tmp_path, nodes=3, lake=lake, hooks=hooks, others=others, parameters=parameters) as mesh:
        (tmp_path / "hits.toml").write_text(JOB)
        file = str(tmp_path / "hits.toml")
        assert main(["job", "start", "hits", "-f", file, "--agent", str(mesh.socket())]) == 0
        yield mesh


def events(endpoint: Endpoint, count: int) -> list[dict[str, Any]]:
    """The next changes of alerts; each is signed."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        request = endpoint.requests.get(timeout=PATIENCE_S)
        event = Webhook(SECRET).verify(request.body, request.headers)
        assert (event["type"], event["source"]) == ("elf.alert", "/elf/v1/shop/hits")
        assert event["id"] == event["data"]["id"]
        found.append(event["data"])
    return found


def check(mesh: Mesh, found: list[dict[str, Any]]) -> None:
    """Each is what one pass over the lines says, and an instance fires and is resolved in turn."""
    firing: set[str] = set()
    for each in {each["id"]: each for each in found}.values():
        path, end = each["keys"]["path"], datetime.fromisoformat(each["at"])
        hits = mesh.truth_at(int(end.timestamp()) * SECOND - 2 * SECOND, 2 * SECOND).get(path, 0)
        assert (hits >= LEAST) == (each["state"] == "firing")
        assert (path in firing) == (each["state"] == "resolved")
        firing ^= {path}
        if each["state"] == "firing":
            assert each["text"] == f"{path}: {hits}"


def test_each_change_reaches_a_webhook_and_an_alertmanager(
    mesh: Mesh, endpoint: Endpoint, server: Alertmanager, capsys: pytest.CaptureFixture[str]
) -> None:
    found = events(endpoint, 6)
    check(mesh, found)
    assert len({each["id"] for each in found}) == 6

    def knows() -> bool:
        return {each["labels"]["alertname"] for each in server.alerts()} == {"many"}

    wait_until(knows, "Alertmanager has an alert", seconds=PATIENCE_S)
    capsys.readouterr()
    assert main(["alerts", "list", "--output", "json", "--agent", str(mesh.socket())]) == 0
    (line, *_) = json.loads(capsys.readouterr().out)["alerts"]
    assert (line["job"], line["alert"], line["when"]) == ("hits", "many", f"hits >= {LEAST}")
    assert main(["alerts", "test", "many", "--agent", str(mesh.socket())]) == 0
    assert capsys.readouterr().out == (
        "sink pager: has a test notification\nsink am: has a test notification\n"
    )


def test_a_killed_agent_repeats_what_was_not_recorded_and_loses_nothing(
    mesh: Mesh, endpoint: Endpoint
) -> None:
    found = events(endpoint, 2)
    endpoint.is_silent = True
    found += events(endpoint, 1)
    mesh.in_world(lambda: mesh.world.crash(mesh.hosts[1].actor))
    endpoint.is_silent = False
    mesh.in_world(lambda: mesh.restart(mesh.hosts[1]))
    mesh.in_world(mesh.open_sink)
    again = events(endpoint, 4)
    assert again[0]["id"] == found[-1]["id"], "it was not acknowledged"
    check(mesh, [*found, *again])


def test_another_agent_with_the_sink_continues_where_the_killed_one_ended(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule Moving."""
    secret = tmp_path / "hook.secret"
    secret.touch(0o600)
    secret.write_text(SECRET)
    hooks = {"pager": Hook("127.0.0.1", endpoint.port, False, "/in", "shop", secret, is_private=True)}
    with Mesh(tmp_path, nodes=4, hooks=hooks, serving=("web1", "web2")) as mesh:
        (tmp_path / "hits.toml").write_text(JOB.replace(', "am"', "").replace('sinks = ["lake"]', ""))
        file = str(tmp_path / "hits.toml")
        assert main(["job", "start", "hits", "-f", file, "--agent", str(mesh.socket())]) == 0
        found = events(endpoint, 4)
        endpoint.is_silent = True
        found += events(endpoint, 1)
        serving = min(mesh.hosts[1:3], key=lambda host: closeness(job_id("hits"), host.actor.id))
        mesh.wait_for(lambda: acknowledged(mesh, serving) == len({each["id"] for each in found}) - 1)
        mesh.in_world(lambda: mesh.kill(serving))
        endpoint.is_silent = False
        again = events(endpoint, 4)
    assert again[0]["id"] == found[-1]["id"], "it was not acknowledged"
    assert not {each["id"] for each in again[1:]} & {each["id"] for each in found}


def acknowledged(mesh: Mesh, serving: Hosted) -> int:
    """How many changes the job's master knows as delivered; it is not the agent that delivers them."""
    (master,) = (
        seat.master
        for host in mesh.hosts
        if host is not serving and host.actor.node is not None
        for seat in host.node.seats.values()
        if seat.master is not None
    )
    return master.alert_outbox.cursor("pager")


def test_a_backtest_by_the_lake_says_what_was_heard(
    mesh: Mesh, endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the window on that fired first: the running job's own alert, and its windows in the lake."""
    heard = [
        (each["state"], each["at"], each["since"], each["keys"], each["text"]) for each in events(endpoint, 6)
    ]
    last = max(datetime.fromisoformat(at) for _, at, *_ in heard)

    def has_last() -> bool:
        return (
            max((start for _, start in ledger(tmp_path / "lake", "hits")), default=0)
            >= last.timestamp() * 1e6
        )

    wait_until(has_last, "the lake has the windows", seconds=PATIENCE_S)
    capsys.readouterr()
    since, source = heard[0][2], ("--lake", str(tmp_path / "lake"), "--agent", str(mesh.socket()))
    assert main(["alerts", "backtest", "many", *source, "--since", since, "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["changes"]
    told = [
        (each["state"], _text(each["at_us"]), _text(each["since_us"]), each["keys"], each["text"])
        for each in found
    ]
    assert told[:6] == heard


def _text(at_us: int) -> str:
    return f"{datetime.fromtimestamp(at_us / 1e6, UTC):%Y-%m-%dT%H:%M:%SZ}"
