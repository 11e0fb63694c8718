"""Operators' commands as messages on a broker's command topic: what is taken, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from elf.agent.config.authority_folder import AuthorityFolder
from elf.agent.control.signed_messages import encode_item, message_id
from elf.jobmaster.directory.job_spec import JobSpec, Trial, decode_job
from elf.jobmaster.directory.versions import parameter_texts
from elf.sinks.delivery import mqtt
from elf.sinks.spec import Broker
from elf.srt.messages.ids import job_id
from elf.srt.messages.messages import Item
from elf.srt.security.files import save_keys
from elf.srt.security.items import sign_item
from elf.typer_cli import main
from tests.rigs.signed_mesh import EPOCH_S, SignedMesh
from tests.sinks.delivery.mosquitto import PATIENCE_S, mosquitto

SQL = "SELECT path, count(*) AS n FROM access WHERE status >= :least GROUP BY window(time, '1 second'), path"
ANSWERS = "elf/v1/shop/commands/answers"

pytestmark = pytest.mark.process


class Topic:
    """The command topic of the mesh `shop`, and its answers."""

    def __init__(self, client: Any, answers: SimpleQueue[Any], mesh: SignedMesh, folder: Path) -> None:
        self._client, self._answers = client, answers
        self.mesh, self.folder = mesh, folder
        self._about = ["--keys", str(folder / "ann.keys"), "--agent", str(mesh.socket(0))]

    def command(self, *line: str) -> bytes:
        """The message of `elf job …`."""
        assert main(["job", *line, "--message", str(self.folder / "message"), *self._about]) == 0
        return (self.folder / "message").read_bytes()

    def run(self, *line: str) -> None:
        """Do it at an agent."""
        assert main(["job", *line, *self._about]) == 0

    def publish(self, message: bytes, *, retain: bool = False) -> None:
        self._client.publish("elf/v1/shop/commands", message, 1, retain)

    def ask(self, message: bytes) -> dict[str, Any]:
        """Publish a message, and return its answer."""
        self.publish(message)
        answer: dict[str, Any] = json.loads(self._answers.get(timeout=PATIENCE_S).payload)
        assert (answer.pop("id"), answer.pop("agent")) == (message_id(message), "web1")
        return answer

    def refusal(self, message: bytes) -> str:
        """Why a message is refused."""
        answer = self.ask(message)
        assert answer["outcome"] == "refused", answer
        return str(answer["reason"])

    def spec(self, name: str = "hits") -> JobSpec | None:
        """The job as web2 knows it."""
        item = self.mesh.hosts[2].node.directory.get("job", job_id(name))
        return None if item is None else decode_job(item)

    def signed(self, spec: JobSpec) -> bytes:
        return encode_item(sign_item(self.mesh.operator, spec.item(), EPOCH_S))


@contextmanager
def on_topic(folder: Path) -> Iterator[Topic]:
    from paho.mqtt.client import Client, MQTTv5
    from paho.mqtt.enums import CallbackAPIVersion

    answers: SimpleQueue[Any] = SimpleQueue()
    ready: SimpleQueue[Any] = SimpleQueue()
    with mosquitto(folder) as broker:
        client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
        client.on_message = lambda client, about, message: (
            answers if message.topic == ANSWERS else ready
        ).put(message)
        client.connect("127.0.0.1", broker.port)
        client.subscribe([(ANSWERS, 1), ("elf/v1/shop/web1/sinks/commands", 1)])
        client.loop_start()
        brokers = {"commands": Broker("127.0.0.1", broker.port, False, "shop", commands=True)}
        authority = AuthorityFolder.make(folder / "authority")
        try:
            with SignedMesh(folder, authority, brokers=brokers) as mesh:
                save_keys(mesh.operator, folder / "ann.keys")
                while ready.get(timeout=PATIENCE_S).payload != b"online":
                    pass
                yield Topic(client, answers, mesh, folder)
        finally:
            client.disconnect()
            client.loop_stop()


@pytest.fixture
def topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Topic]:
    monkeypatch.setattr("elf.srt.security.items.time", lambda: EPOCH_S)
    monkeypatch.setattr(mqtt, "REFUSED_PAUSE_S", 0)
    with on_topic(tmp_path) as opened:
        yield opened


def test_a_job_is_started_changed_and_stopped_by_messages(topic: Topic) -> None:
    start = topic.command("start", "hits", "--sql", SQL, "--param", "least=400")
    assert topic.spec() is None
    answer = topic.ask(start)
    version = answer["version"]
    assert answer == {"job": "hits", "command": "start", "version": version, "outcome": "taken"}
    topic.mesh.wait_served("hits")
    present = topic.spec()
    assert present is not None
    assert present.changes[-1].by == "ann"

    change = topic.command("set", "hits", "least=500")
    answer = topic.ask(change)
    assert (answer["command"], answer["outcome"]) == ("set", "taken")
    assert answer["from_us"] > present.since_us
    changed = topic.spec()
    assert changed is not None
    assert parameter_texts(changed.versions[-1]) == {"least": "500"}
    assert topic.ask(change)["outcome"] == "taken", "it comes twice, and changes nothing"
    assert topic.spec() == changed

    late = topic.command("set", "hits", "least=501")
    topic.run("rollback", "hits")
    assert topic.refusal(change) == "it was taken before, and job hits was changed since"
    assert topic.refusal(late) == f"another change came first: the job has version {version}"

    answer = topic.ask(topic.command("stop", "hits"))
    assert (answer["command"], answer["outcome"]) == ("stop", "taken")
    topic.mesh.wait_stopped("hits")
    assert topic.refusal(start) == "job hits was started or stopped since it was signed"
    again = topic.command("start", "hits", "--sql", SQL, "--param", "least=400")
    assert topic.ask(again)["outcome"] == "taken"
    assert topic.ask(topic.command("stop", "hits", "--now"))["outcome"] == "taken"
    topic.mesh.wait_stopped("hits")


def test_what_no_operator_signed_for_now_is_refused(topic: Topic, capsys: pytest.CaptureFixture[str]) -> None:
    start = topic.command("start", "hits", "--sql", SQL, "--param", "least=400")
    spec = decode_job(msgspec.msgpack.decode(start, type=Item))
    unsigned, garbled = encode_item(spec.item()), start[:-1] + bytes([start[-1] ^ 1])
    for message in (unsigned, garbled):
        assert "it must be signed with an operator's key" in topic.refusal(message)
    for message in (
        b"",
        b"start hits",
        start[:-1],
        start + b"x",
        encode_item(Item("note", b"n", (1,), b"b")),
    ):
        assert topic.refusal(message) == "it is no signed item of a job"
    assert topic.refusal(bytes(1_100_000)) == "it has 1,100,000 bytes, and may have 1,048,576"
    capsys.readouterr()
    for late_us, reason in (
        (600_000_000, r"signed 0:10:\d\d ago; a start comes 5m later at most; sign it again"),
        (-900_000_000, r"signed by a clock that is 0:1[45]:\d\d ahead of this agent's; sign it again"),
    ):
        change = replace(spec.changes[-1], asked_us=spec.changes[-1].asked_us - late_us)
        assert re.fullmatch(reason, topic.refusal(topic.signed(replace(spec, changes=(change,)))))
    assert topic.refusal(topic.signed(replace(spec, stopped=True))) == "there is no job hits"
    tried = replace(spec, trial=Trial("hits", spec.versions[-1].digest, (), spec.since_us + 60_000_000))
    assert topic.refusal(topic.signed(tried)) == "trials are started, promoted and aborted at an agent"
    assert main(["mesh", "audit", "--output", "json", "--agent", str(topic.mesh.socket(1))]) == 0
    lines = json.loads(capsys.readouterr().out)
    refused = [(each["what"], each["reason"][:9]) for each in lines if each["outcome"] == "refused"]
    expected = [("unsigned", "forged"), ("start", "signed 0:"), ("start", "signed by"), ("stop", "there is ")]
    assert refused == expected, "in this order; what nobody signed is counted"
    topic.publish(start, retain=True)  # who signed it is known, and when it was published is not
    assert "no signed item" in topic.refusal(b"the next one")
    assert topic.spec() is None
    for item in topic.mesh.authority.revoke("ann", EPOCH_S):
        topic.mesh.in_world(lambda item=item: topic.mesh.hosts[1].submit(item))  # type: ignore[misc]
    assert "it must be signed with an operator's key" in topic.refusal(start)
    assert topic.spec() is None
