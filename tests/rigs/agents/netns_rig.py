"""Hosts of their own on one machine, for tests: each a network namespace, all on one bridge.

    with Network(["web1", "web2", "web3"]) as network:
        subprocess.run([*network.enter("web1"), "ping", network.address("web3")])
        with network.parted(["web3"]):
            ...

All of it, the bridge too, lies in a namespace of this `Network` alone. So names and addresses cannot collide with those of
another test or of the machine, and nothing is left when its holders have ended, which they do with this process at the latest.
Root makes namespaces; so does anybody whom the kernel lets be root in a user namespace of their own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType

import msgspec

from tests.rigs.agents.mesh_rig import FAST, Fleet

PREFIX = "10.0.0"
SLOW_WIRE = Path(__file__).with_name("slow_wire.py")
END_S = 60.0
HOLD = "echo ready; exec cat"
"""What holds a namespace: it ends with its standard input."""


class Wire(msgspec.Struct, frozen=True):
    """Between a host and the bridge, both ways: how much later everything arrives, and how much of it does not."""

    delay_ms: int = 0
    loss_percent: int = 0


@cache
def refusal() -> str:
    """Why there can be no namespaces here; "" if there can."""
    command = ["unshare", *_as_root(), "--net", "--mount", "ip", "link", "add", "br0", "type", "bridge"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=END_S, check=False)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return "" if done.returncode == 0 else f"no network namespaces: {done.stderr.strip()}"


def _as_root() -> list[str]:
    return [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


class Holder:
    """A process whose namespaces last as long as it does."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        if self.process.stdout.readline() != "ready\n":
            self.process.kill()
            errors = self.process.stderr.read()
            self.close()
            raise OSError(f"{' '.join(command)}: {errors}")

    @property
    def enter(self) -> list[str]:
        """The prefix of a command that runs there; the command replaces it within the same process."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self.process.pid), *user, "--net", "--mount", "--uts"]

    def close(self) -> None:
        with self.process:
            self.process.kill()


class Network:
    """The hosts `names`, number i with the address 10.0.0.(i + 1), on a bridge. wires: of hosts whose wire is not perfect."""

    def __init__(self, names: Sequence[str], wires: Mapping[str, Wire] | None = None) -> None:
        self.names, self._wires = list(names), dict(wires or {})
        self._stack = ExitStack()
        self._bridge: Holder
        self._hosts: dict[str, Holder] = {}

    def __enter__(self) -> Network:
        with ExitStack() as made:
            self._stack = made
            self._make()
            self._stack = made.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _hold(self, command: Sequence[str]) -> Holder:
        holder = Holder(command)
        self._stack.callback(holder.close)
        return holder

    def _end_processes(self) -> None:
        """Whatever still runs on one of the hosts."""
        own = {holder.process.pid for holder in self._hosts.values()}
        spaces = {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in own}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int(process.name) not in own and (process / "ns" / "net").stat().st_ino in spaces:
                    os.kill(int(process.name), signal.SIGKILL)

    def _make(self) -> None:
        space = ["--net", "--mount", "--uts"]
        self._bridge = self._hold(["unshare", *_as_root(), *space, "sh", "-c", HOLD])
        self._ip("link add br0 type bridge", "link set br0 up", "link add br1 type bridge", "link set br1 up")
        for name in self.names:
            hold = f"hostname {name}; {HOLD}"
            self._hosts[name] = self._hold([*self._bridge.enter, "unshare", *space, "sh", "-c", hold])
            self._plug(name)
        self._stack.callback(self._end_processes)

    def _plug(self, name: str) -> None:
        pid, port, wire = self._hosts[name].process.pid, self.port(name), self._wires.get(name)
        if wire is None or has_netem():
            self._ip(f"link add {port} type veth peer name eth0 netns {pid}")
        else:
            options = [str(wire.delay_ms), str(wire.loss_percent)]
            self._hold([*self._bridge.enter, sys.executable, str(SLOW_WIRE), port, "far0", *options])
            self._ip(f"link set far0 netns {pid} name eth0")
        self._ip(f"link set {port} master br0 up")
        self._ip("link set lo up", f"addr add {self.address(name)}/24 dev eth0", "link set eth0 up", at=name)
        if wire is not None and has_netem():
            netem = f"root netem delay {wire.delay_ms}ms loss {wire.loss_percent}%"
            self._do(self._bridge, ["tc", "qdisc", "add", "dev", port, *netem.split()])
            self._do(self._hosts[name], ["tc", "qdisc", "add", "dev", "eth0", *netem.split()])

    def _ip(self, *commands: str, at: str = "") -> None:
        where = self._hosts[at] if at else self._bridge
        self._do(where, ["ip", "-batch", "-"], "\n".join(commands))

    @staticmethod
    def _do(where: Holder, command: Sequence[str], text: str = "") -> None:
        done = subprocess.run(
            [*where.enter, *command], input=text, capture_output=True, text=True, timeout=END_S, check=False
        )
        if done.returncode:
            raise OSError(f"{' '.join(command)} {text}: {done.stderr.strip()}")

    def port(self, name: str) -> str:
        """The host's port on the bridge."""
        return f"port{self.names.index(name) + 1}"

    def address(self, name: str) -> str:
        return f"{PREFIX}.{self.names.index(name) + 1}"

    def enter(self, name: str) -> list[str]:
        """The prefix of a command that runs on that host."""
        return self._hosts[name].enter

    def root(self, name: str) -> Path:
        """That host's files, as seen from outside."""
        return Path(f"/proc/{self._hosts[name].process.pid}/root")

    def own(self, name: str, *, changed: Sequence[str] = (), empty: Sequence[str] = ()) -> None:
        """Folders of that host alone, gone with it: `changed` hold at first what this machine's hold, `empty` nothing."""
        script = f"mount -t tmpfs own /mnt; for at in {' '.join(changed)}; do {_OVERLAY}; done; "
        script += f'for at in {" ".join(empty)}; do mkdir -p "$at"; mount -t tmpfs own "$at"; done'
        self._do(self._hosts[name], ["sh", "-ec", script])

    @contextmanager
    def parted(self, names: Sequence[str]) -> Iterator[None]:
        """Split the network meanwhile: those hosts reach each other, and no others."""
        self._ip(*(f"link set {self.port(name)} master br1" for name in names))
        try:
            yield
        finally:
            self._ip(*(f"link set {self.port(name)} master br0" for name in names))


_OVERLAY = (
    'name=$(echo "$at" | tr / _); mkdir -p "/mnt/$name/up" "/mnt/$name/work"; '
    'mount -t overlay own -o "lowerdir=$at,upperdir=/mnt/$name/up,workdir=/mnt/$name/work" "$at"'
)


@cache
def has_netem() -> bool:
    """Whether this kernel delays and loses by itself; else a process on the wire does."""
    command = "ip link add a type veth peer name b && tc qdisc add dev a root netem delay 1ms"
    unshare = ["unshare", *_as_root(), "--net", "sh", "-c", command]
    return subprocess.run(unshare, capture_output=True, timeout=END_S, check=False).returncode == 0


class NetFleet(Fleet):
    """A `Fleet` of which each agent is on a host of its own."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        *,
        timings: Mapping[str, str] = FAST,
        agent: str = "",
        wait: bool = True,
    ) -> None:
        self.network = network
        super().__init__(
            folder, len(network.names), timings=timings, agent=agent, security="curve", wait=wait
        )

    def _address(self, number: int, port: int) -> str:
        return f"{self.network.address(self.network.names[number])}:{port}"

    def _prefix(self, number: int) -> Sequence[str]:
        return self.network.enter(self.network.names[number])
