"""A mesh agent's process in this one: what it refuses to start with, and how it ends when its node fails."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elf.agent.config.config import parse
from elf.agent.disk.store import Store
from elf.agent.host.host import Host
from elf.errors import ElfError, StateError
from elf.srt.messages.effects import Notice, Send
from elf.srt.messages.ids import node_id
from elf.srt.messages.messages import Commit, GossipDigest, Message, Routed
from elf.srt.messages.reports import Failing
from tests.rigs.agents.seen import WAIT_S
from tests.rigs.master_rig import spec_of
from tests.rigs.mesh_lines import plan_of

CONFIG = """\
[agent]
name = "web1"
state_dir = "state"
listen = "{listen}"
security = "none"

[[source]]
name = "access"
path = "access.log"
"""


def new_host(folder: Path, said: list[str], listen: str = "127.0.0.1:0", more: str = "") -> Host:
    config = parse(CONFIG.format(listen=listen) + more, folder / "elf.toml", environ={})
    return Host(config, None, None, said.append)


def run(host: Host, then: Callable[[Host, asyncio.Event], Any]) -> None:
    """Run the host; once it serves, do something to it."""

    async def main() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(host.run(stop))
        control = host.config.agent.state_dir / "control.sock"
        while not control.exists() and not running.done():
            await asyncio.sleep(0.001)
        if not running.done():
            then(host, stop)
        await asyncio.wait_for(running, WAIT_S)

    asyncio.run(main())


def test_a_life_is_on_disk_and_higher_than_the_last_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives: list[int] = []

    def note(host: Host, stop: asyncio.Event) -> None:
        lives.append(host.node.life)
        stop.set()

    for _ in range(3):
        host = new_host(tmp_path, [])
        run(host, note)
        store, records = Store.open(tmp_path / "state", print)
        store.close()
        assert list(records["node", b""]) == [lives[-1]]
        records.close()
    monkeypatch.setattr("time.time", lambda: 1_000.0)
    run(new_host(tmp_path, []), note)
    assert lives == sorted(set(lives))


def test_its_id_stays_the_same_and_is_its_own(tmp_path: Path) -> None:
    ids: list[bytes] = []

    def note(host: Host, stop: asyncio.Event) -> None:
        ids.append(host.node.id)
        stop.set()

    for folder in (tmp_path / "a", tmp_path / "a", tmp_path / "b"):
        run(new_host(folder, []), note)
    assert ids[0] == ids[1] != ids[2]


def test_a_node_that_fails_ends_its_process_without_another_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sent: list[Any] = []

    def spoil(host: Host, stop: asyncio.Event) -> None:
        def fail(now: int) -> list[Any]:
            raise ZeroDivisionError("a bug")

        def rest(now: int) -> list[Any]:
            raise AssertionError("a goodbye")

        host.node.tick = fail  # type: ignore[method-assign]
        host.node.rest = rest  # type: ignore[method-assign]
        host.transport.send = lambda to, message: sent.append(message)  # type: ignore[method-assign]
        host._wake()

    with pytest.raises(ZeroDivisionError):
        run(
            new_host(tmp_path, []), lambda host, stop: asyncio.get_running_loop().call_soon(spoil, host, stop)
        )
    assert sent == []
    assert "ZeroDivisionError: a bug" in capfd.readouterr().err
    run(new_host(tmp_path, []), lambda host, stop: stop.set())  # the lock is free, the port too


def test_what_cores_ask_for_is_performed_in_order(tmp_path: Path) -> None:
    said: list[str] = []
    sent: list[Any] = []
    other = node_id(b"other")

    def use(host: Host, stop: asyncio.Event) -> None:
        said.clear()  # that it begins
        host.transport.send = lambda to, message: sent.append((to, len(said)))  # type: ignore[method-assign]
        digest = GossipDigest(1)
        host.perform([Send(other, digest), Notice("odd", "something odd", other), Send(other, digest)])
        stop.set()

    run(new_host(tmp_path, said), use)
    assert [each for each in sent if each[0] == other][:2] == [(other, 0), (other, 1)]
    assert said[0] == f"{other.hex()[:6]}: something odd"


@pytest.mark.parametrize("is_routed", [False, True])
def test_a_datagram_that_cannot_be_encoded_is_its_jobs_failure(
    is_routed: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One of the mesh's own is everybody's."""
    said: list[str] = []
    told: list[Failing] = []
    other, spec = node_id(b"other"), spec_of(plan_of())
    unfit: Message = Commit(spec.id, (1, other), (object(),))  # type: ignore[arg-type]
    unfit = Routed(spec.id, other, unfit, 0) if is_routed else unfit

    def use(host: Host, stop: asyncio.Event) -> None:
        said.clear()  # that it begins
        host.submit(spec.item())
        host.perform([Send(other, unfit), Notice("odd", "performed", other)])
        asyncio.get_running_loop().call_soon(look, host, stop)

    def look(host: Host, stop: asyncio.Event) -> None:
        told.extend(host.node.failing(host.clock_us()))
        with pytest.raises(TypeError):
            host.transport.send(other, GossipDigest(object()))  # type: ignore[arg-type]
        stop.set()

    run(new_host(tmp_path, said), use)
    assert [(each.job, each.failures) for each in told] == [(spec.id, 1)]
    assert told[0].reason.startswith("TypeError: ")
    assert said[0] == f"{other.hex()[:6]}: performed"
    assert f"job {spec.name} failed here ({told[0].reason})" in said[1]
    assert "Traceback" in capfd.readouterr().err


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ElfError, match=address):
            run(new_host(tmp_path, [], address), lambda host, stop: None)
    run(new_host(tmp_path, []), lambda host, stop: stop.set())


def test_a_state_dir_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StateError, match=r"state: .*; name another state_dir"):
        run(new_host(tmp_path, []), lambda host, stop: None)


def test_the_control_socket_is_its_owners_alone(tmp_path: Path) -> None:
    modes: list[int] = []

    def look(host: Host, stop: asyncio.Event) -> None:
        modes.append(stat.S_IMODE(os.stat(tmp_path / "state" / "control.sock").st_mode))
        stop.set()

    run(new_host(tmp_path, []), look)
    assert modes == [0o600]
    assert not (tmp_path / "state" / "control.sock").exists()
