"""Processes that use one key on a real transport: which of them is admitted, and who may challenge."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from elf.errors import PeerError
from elf.srt.messages.addresses import key_text
from elf.srt.messages.messages import (
    Contact,
    Ping,
)
from elf.srt.transport import admission, challenges, handshake
from elf.srt.transport.admission import both
from elf.srt.transport.handshake import Proof
from tests.rigs.transport_rig import PATIENCE_S, Rig, goes_on, proven, run, stretch, until

pytestmark = pytest.mark.process


def test_a_twin_of_a_living_agent_is_refused_and_admitted_when_that_has_ended() -> None:
    async def test(rig: Rig) -> None:
        b = rig.end()
        keys = rig.keys()
        first, twin = rig.end(keys, life=1), rig.end(keys, life=2, is_listed=False)
        first.ping(b, 1)
        await until(lambda: b.numbers == [1])
        twin.ping(b, 2)
        await until(lambda: twin.refused.get("refused there"))
        assert twin.rivals == [(first.transport.address, first.instance, False)]
        for end in (b, twin):
            texts = [notice.text for notice in end.notices if "two agents run with one key" in notice.text]
            assert len(texts) == 1
            assert (
                f"one at 127.0.0.1:{first.transport.port}, and one at 127.0.0.1:{twin.transport.port}"
                in texts[0]
            )
        assert list(b.transport.twins) == [first.id]
        first.ping(b, 3)
        await until(lambda: b.numbers == [1, 3])
        first.transport.close()
        await until(lambda: twin.ping(b, 4) and 4 in b.numbers)
        assert set(b.numbers) == {1, 3, 4}

    run(test)


def test_a_process_that_waits_for_another_one_neither_answers_for_its_node_nor_admits_anyone() -> None:
    async def test(rig: Rig) -> None:
        b = rig.end()
        keys = rig.keys()
        first, twin = rig.end(keys, life=1), rig.end(keys, life=2, is_listed=False)
        first.ping(b, 1)
        await until(lambda: b.numbers == [1])
        first.waits = True
        await until(lambda: twin.ping(b, 2) and 2 in b.numbers)
        assert twin.rivals == []
        for end in (b, twin):
            with pytest.raises(PeerError, match="waits until another process with its key has ended"):
                await end.transport.ask(first.transport.address)
        assert first.got == [] == twin.rivals

    run(test)


def test_a_process_is_informed_whether_the_other_one_or_a_neighbour_refuses_it() -> None:
    async def test(rig: Rig) -> None:
        keys = rig.keys()
        first, twin = rig.end(keys), rig.end(keys, is_listed=False)
        with pytest.raises(PeerError, match="two agents run with one key"):
            await twin.transport.ask(first.transport.address)
        assert twin.rivals == [(first.transport.address, first.instance, True)]

    run(test)


def test_messages_of_a_replaced_process_are_refused_also_where_it_was_dialled() -> None:
    async def test(rig: Rig) -> None:
        b = rig.end(is_listed=False)
        keys = rig.keys()
        first, twin = rig.end(keys, life=1), rig.end(keys, life=2, is_listed=False)
        b.ping(first, 1)
        await until(lambda: first.ping(b, 1) and b.numbers)
        first.waits = True
        await twin.transport.ask(b.transport.address)
        heard = len(b.numbers)
        first.ping(b, 2)
        await until(lambda: b.refused.get("twin"))
        assert len(b.numbers) == heard

    run(test)


def test_a_process_that_connects_to_an_agent_with_its_own_key_is_refused_with_the_reason() -> None:
    async def test(rig: Rig) -> None:
        b = rig.end()
        same_as_b = rig.client(b, b.keys)
        same_as_b.send(same_as_b.proof(life=99))
        refusal = handshake.refusal_of((await same_as_b.answer())[1])
        assert refusal.reason == handshake.TWIN
        assert (refusal.other_at, refusal.other) == (b.transport.address, b.instance)
        assert list(b.transport.twins) == [b.id]

    run(test)


def test_an_agent_that_has_lost_its_disk_or_moved_is_admitted_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No wait for an answer where the kernel refuses, or the new process answers: a wait would outlast this test."""
    monkeypatch.setattr(challenges, "CHALLENGE_S", 1_000.0)

    async def test(rig: Rig) -> None:
        b = rig.end()
        keys = rig.keys()
        first = rig.end(keys, life=5)
        first.ping(b, 1)
        await until(lambda: b.numbers == [1])
        port = first.transport.port
        first.transport.close()
        again = rig.end(keys, life=6, listen=f"127.0.0.1:{port}")
        again.ping(b, 2)
        await until(lambda: b.numbers == [1, 2])
        again.transport.close()
        moved = rig.end(keys, life=3)
        moved.ping(b, 3)
        await until(lambda: b.numbers == [1, 2, 3])
        assert not b.transport.twins

    run(test)


def test_a_silent_process_is_replaced_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a stopped process: its host accepts the connection, but nothing answers."""
    monkeypatch.setattr(challenges, "CHALLENGE_S", 0.2)

    async def test(rig: Rig) -> None:
        b = rig.end()
        keys = rig.keys()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}/{key_text(keys.curve_public)}"
            stopped = rig.client(b, keys)
            stopped.send(stopped.proof(address=address))
            assert (await stopped.answer())[0] == handshake.PROOF
            twin = rig.end(keys, life=2)
            twin.ping(b, 1)
            await until(lambda: b.numbers == [1])
            assert (await stopped.answer())[0] == handshake.CHALLENGE
            stopped.send(stretch(Ping(Contact(twin.id, 1), 2)))
            kind, packet = await stopped.answer()
            while kind == handshake.STRETCH:  # of nothing: is it there?
                kind, packet = await stopped.answer()
            assert kind == handshake.REFUSAL
            assert handshake.refusal_of(packet).other == twin.instance
        assert b.numbers == [1]

    run(test)


@contextmanager
def nowhere(*, silent: bool) -> Iterator[str]:
    """An address where nothing answers: the kernel refuses, or packets are lost on the way (`silent`)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if silent:
            yield address
    if not silent:
        yield address


@pytest.mark.parametrize("silent", [False, True])
def test_a_twin_of_an_agent_that_only_dials_out_is_refused(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from behind a NAT: it answers over the connection that it has opened."""
    monkeypatch.setattr(challenges, "CHALLENGE_S", 0.5)

    async def test(rig: Rig) -> None:
        b, keys = rig.end(), rig.keys()
        with nowhere(silent=silent) as inside:
            first = rig.end(keys, advertise=inside, is_listed=False)
            first.ping(b, 1)
            await until(lambda: b.numbers == [1])
            twin = rig.end(keys, life=2, is_listed=False)
            twin.ping(b, 2)
            await until(lambda: twin.refused.get("refused there"))
            assert twin.rivals == [(f"{inside}/{key_text(keys.curve_public)}", first.instance, False)]
            assert list(b.transport.twins) == [first.id]
            first.ping(b, 3)
            await until(lambda: 3 in b.numbers)
            assert b.numbers == [1, 3]
            assert first.rivals == []
            first.transport.close()
            await until(lambda: twin.ping(b, 4) and 4 in b.numbers)

    run(test)


def test_an_agent_that_only_dials_out_is_admitted_at_once_when_it_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection is gone with the process: a wait for an answer would outlast this test."""
    monkeypatch.setattr(challenges, "CHALLENGE_S", 1_000.0)

    async def test(rig: Rig) -> None:
        b, keys = rig.end(), rig.keys()
        with nowhere(silent=False) as inside:
            for life in range(1, 4):
                agent = rig.end(keys, life=life, advertise=inside, is_listed=False)
                agent.ping(b, life)
                await until(lambda: b.numbers == list(range(1, life + 1)))  # noqa: B023
                agent.transport.close()
        assert not b.transport.twins

    run(test)


def test_an_agent_that_only_dials_out_waits_a_challenge_where_its_host_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection was not closed, and nothing comes back."""
    monkeypatch.setattr(challenges, "CHALLENGE_S", 0.3)

    async def test(rig: Rig) -> None:
        b, keys = rig.end(), rig.keys()
        with nowhere(silent=True) as inside:
            lost = rig.client(b, keys)
            lost.send(lost.proof(address=f"{inside}/{key_text(keys.curve_public)}"))
            assert (await lost.answer())[0] == handshake.PROOF
            again = rig.end(keys, life=2, advertise=inside, is_listed=False)
            again.ping(b, 1)
            await until(lambda: b.numbers == [1])
        assert not b.transport.twins

    run(test)


def test_an_agent_that_stops_does_not_wait_for_a_challenge() -> None:
    """libzmq waits for every socket of a context: with one open, the process would stand still for ever."""

    async def test(rig: Rig) -> None:
        a = rig.end()
        with nowhere(silent=True) as inside:
            asked = asyncio.create_task(a.transport.instance_at(f"{inside}/{key_text(a.key)}"))
            await asyncio.sleep(0)
            assert not asked.done()
            closing = threading.Thread(target=a.transport.close, daemon=True)
            closing.start()
            closing.join(PATIENCE_S / 4)
            assert not closing.is_alive()
            assert await a.transport.instance_at(f"{inside}/{key_text(a.key)}") == 0
            asked.cancel()

    run(test)


def test_an_unrequested_proof_is_refused() -> None:
    async def test(rig: Rig) -> None:
        b = rig.end()
        client = await proven(rig, b)
        client.send(client.proof())
        assert (await client.answer())[0] == handshake.REFUSAL
        await goes_on(rig, b)

    run(test)


def test_no_other_node_causes_or_answers_a_challenge() -> None:
    """An address that another node has chosen, with the victim's key: a process that answers there must hold that key."""

    async def test(rig: Rig) -> None:
        b, other = rig.end(), rig.end()
        keys = rig.keys()
        liar = rig.client(b, keys)
        endpoint = f"127.0.0.1:{other.transport.port}"
        liar.send(liar.proof(address=f"{endpoint}/{key_text(keys.curve_public)}"))
        assert (await liar.answer())[0] == handshake.PROOF
        honest = rig.end(keys, life=2)
        honest.ping(b, 1)
        await until(lambda: b.numbers == [1])
        thief = rig.client(b)
        thief.send(handshake.pack(handshake.CHALLENGE, handshake.proof_of(liar.proof())))
        assert (await thief.answer())[0] == handshake.REFUSAL
        assert not other.got

    run(test)


def test_challenges_by_repeated_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that connects again and again causes at most two challenges a second."""
    asked: list[str] = []
    who = challenges.Challenges.proof_at

    async def counting(self: challenges.Challenges, address: str, key: bytes) -> Proof | None:
        asked.append(address)
        return await who(self, address, key)

    monkeypatch.setattr(challenges.Challenges, "proof_at", counting)
    monkeypatch.setattr(admission, "ANSWERED_S", 1_000.0)

    async def test(rig: Rig) -> None:
        b = rig.end()
        keys = rig.keys()
        first = rig.end(keys)
        first.ping(b, 1)
        await until(lambda: b.numbers == [1])
        for _ in range(20):
            twin = rig.client(b, keys)
            twin.send(twin.proof(instance=77))
            assert (await twin.answer())[0] == handshake.REFUSAL
        assert len(asked) == 1
        await goes_on(rig, b)

    run(test)


def test_of_two_processes_at_one_address_it_is_not_said_that_both_run() -> None:
    """One that was killed and started again may still have a connection that waits for admission."""
    text = both("10.0.0.1:7400/a", "10.0.0.1:7400")
    assert "two agents run" not in text
    assert text.startswith(
        "a process at 10.0.0.1:7400 is refused, since another one with its key answers there: it was restarted, or"
    )
    assert both("10.0.0.1:7400", "10.0.0.2:7400").startswith(
        "two agents run with one key: one at 10.0.0.1:7400, and one at 10.0.0.2"
    )
