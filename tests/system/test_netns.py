"""Agents on hosts of their own, over a network that fails: what is lost, late or parted changes nothing of any total."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs.agents.mesh_rig import FAST, Fleet, wait_until
from tests.rigs.agents.netns_rig import NetFleet, Network, Wire, refusal
from tests.rigs.agents.seen import WAIT_S, Seen

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(refusal()), reason=refusal())]

PARTED = FAST | {"hold_max": "500ms"}
"""A window waits only so long for agents that are out of reach."""
FAR = FAST | {"probe": "500ms", "probe_timeout": "150ms", "suspect": "1500ms", "link_dead": "3s"}
"""Deaths are found as by default, where a round trip takes as long as all of `FAST`'s probe."""


def names(count: int) -> list[str]:
    return [f"a{number}" for number in range(count)]


def coverage(seen: Seen) -> dict[int, tuple[int, int]]:
    """Of each window: how many agents reported it, of how many."""
    return {start: (put.agents_reporting, put.agents_expected) for start, put in seen.latest.items()}


def wait_covered(seen: Seen, reporting: int, *statuses: str) -> None:
    """Until there is a new window of one of these statuses by so many of five agents."""
    known = set(seen.latest)
    seen.wait(
        lambda: any(
            put.status in statuses and (put.agents_reporting, put.agents_expected) == (reporting, 5)
            for start, put in seen.latest.items()
            if start not in known
        ),
        lambda: f"no {' or '.join(statuses)} window by {reporting} of 5 agents: {coverage(seen)}",
    )


def wait_whole(fleet: Fleet, seen: Seen) -> None:
    """Until all windows are by all five: one that did not wait long enough for a busy agent is revised."""
    fleet.settled(seen)
    seen.wait(
        lambda: {coverage(seen)[start] for start in fleet.counted()} == {(5, 5)},
        lambda: f"not all are whole: {coverage(seen)}",
    )


@pytest.mark.parametrize("side", ["three", "two"])
def test_a_partition_shows_in_the_coverage_and_heals_to_exact_totals(tmp_path: Path, side: str) -> None:
    """Three against two, the master on that side. Where three are, windows become final without the other two, if need be by
    another master; two only see theirs open. When it has healed, all are final, or revised, by all five."""
    with Network(names(5)) as network, NetFleet(tmp_path, network, timings=PARTED) as fleet:
        fleet.start_job("hits")
        master = network.names.index(fleet.master("hits").name)
        others = [number for number in range(5) if number != master]
        near, far = (master, others[:2]) if side == "three" else (others[1], [master, others[0]])
        with fleet.watch("hits", at=near) as seen, fleet.watch("hits", at=far[0]) as beyond:
            with fleet.traffic(20):
                seen.wait_finals(2)
                with network.parted([network.names[number] for number in far]):
                    wait_covered(seen, 3, "final")
                    wait_covered(beyond, 2, "open")
                wait_covered(seen, 5, "final", "revised")
            for each in (seen, beyond):
                wait_whole(fleet, each)
                assert fleet.settled(each) == fleet.counted()


@pytest.mark.parametrize("wire", [Wire(delay_ms=80), Wire(loss_percent=5)], ids=["slow", "lossy"])
def test_a_slow_or_a_lossy_wire_costs_time_only(tmp_path: Path, wire: Wire) -> None:
    with Network(names(3), {"a1": wire}) as network, NetFleet(tmp_path, network, timings=FAR) as fleet:
        fleet.start_job("hits")
        master = fleet.master("hits")
        with fleet.watch("hits") as seen:
            with fleet.traffic(20):
                seen.wait_finals(4)
            assert fleet.settled(seen) == fleet.counted()
        wait_until(
            lambda: [fleet.alive(agent) for agent in fleet.agents] == [3, 3, 3], "somebody does not answer"
        )
        assert fleet.master("hits") is master


def test_a_rolling_upgrade_loses_nothing(tmp_path: Path) -> None:
    """Each agent is stopped and started again, the master too, while its web server goes on; every window has all of them."""
    with Network(names(3)) as network, NetFleet(tmp_path, network) as fleet:
        fleet.start_job("hits")
        with fleet.watch("hits") as seen:
            with fleet.traffic(20, rotate_s=1.5):
                seen.wait_finals(1)
                for agent in fleet.agents:
                    assert agent.stop() == 0
                    agent.start()
                    fleet.wait_joined()
                seen.wait_finals(2)
            assert fleet.settled(seen) == fleet.counted()
            assert {coverage(seen)[start] for start in fleet.counted()} == {(3, 3)}
            # On a busy machine an agent is suspected before it is known to have ended: what was due then is called revised.
            assert {seen.latest[start].status for start in fleet.counted()} <= {"final", "revised"}


@pytest.mark.parametrize("wire", [None, Wire(delay_ms=80), Wire(loss_percent=20)])
def test_wires_are_as_slow_and_lossy_as_they_say(wire: Wire | None) -> None:
    """Datagrams from one host to another and back: how long the fastest takes, and how many come back at all."""
    with Network(names(2), {"a1": wire} if wire else {}) as network:
        spans_ms = echoed(network, datagrams=200)
    delay_ms, loss = (wire.delay_ms, wire.loss_percent / 100) if wire else (0, 0.0)
    assert 2 * delay_ms <= min(spans_ms) < 2 * delay_ms + 100
    assert len(spans_ms) == pytest.approx(200 * (1 - loss) ** 2, abs=25 if loss else 0)


def test_nothing_is_left_of_a_network() -> None:
    network = Network(names(2))
    with network:
        command = [*network.enter("a0"), "sh", "-c", "echo there; exec sleep 60"]
        left = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert left.stdout is not None
        assert (
            left.stdout.readline() == "there\n"
        )  # before it has entered, it is on no host and nobody's to end
        roots = [network.root(name) for name in network.names]
    with left:
        assert left.wait(WAIT_S) < 0
    assert not any(root.exists() for root in roots)


ECHO = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 9))
print("ready", flush=True)
while True:
    server.sendto(*server.recvfrom(64))
"""
ASK = """
import socket, struct, sys, time
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(3.0)
count = int(sys.argv[2])
for number in range(count):
    client.sendto(struct.pack("d", time.monotonic()), (sys.argv[1], 9))
    time.sleep(0.001)
try:
    for number in range(count):
        sent = struct.unpack("d", client.recv(64))[0]
        print(time.monotonic() - sent)
except TimeoutError:
    pass
"""


def echoed(network: Network, datagrams: int) -> list[float]:
    """Milliseconds from a0 to a1 and back, of those that came back."""
    serve = [*network.enter("a1"), sys.executable, "-c", ECHO]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        ask = [*network.enter("a0"), sys.executable, "-c", ASK, network.address("a1"), str(datagrams)]
        told = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
        server.kill()
    return [float(line) * 1_000 for line in told.split()]
