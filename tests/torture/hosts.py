"""Hosts: network namespaces on one bridge, each with disks of its own that can fill up.

Everything lies in a network, mount and process namespace that the run itself is in (`command` makes it). So nothing can be left
behind when a run ends, however it ends, and names and addresses meet those of nobody else.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

COMMAND_S_MAX = 20.0
NETWORK = "10.66.0"
NOBODY = "02:de:ad:00:00:01"
"""A hardware address that no host has: frames to it are lost silently."""


def enclosed(command: Sequence[str]) -> list[str]:
    """The command line that runs it in namespaces of its own; all its processes end with it."""
    return ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *command]


def refusal() -> str:
    """Why this machine cannot have such hosts; "" if it can."""
    script = "ip link add br0 type bridge && mount -t tmpfs none /run && ip netns add web1"
    try:
        done = subprocess.run(
            enclosed(["sh", "-c", script]), capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
        )
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return "" if done.returncode == 0 else f"no namespaces: {done.stderr.strip()}"


def do(command: Sequence[str], text: str = "") -> str:
    """Run the command and return its output. Raises OSError with its error output if it fails."""
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
    )
    if done.returncode:
        raise OSError(f"{' '.join(command)} {text}: {done.stderr.strip()}")
    return done.stdout


class Hosts:
    """Host number i has the address 10.66.0.(i + 1), and its files in `folder`/NAME."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self.names, self.folder = list(names), folder
        do(["mount", "-t", "tmpfs", "-o", "size=1m", "none", "/run"])
        self._ip("link add br0 type bridge", "link set br0 up", "link add br1 type bridge", "link set br1 up")
        for name in self.names:
            self._make(name)

    def _make(self, name: str) -> None:
        do(["ip", "netns", "add", name])
        self._ip(f"link add {name} type veth peer name eth0 netns {name}", f"link set {name} master br0 up")
        up = ["link set lo up", f"addr add {self.address(name)}/24 dev eth0", "link set eth0 up"]
        self._ip(*up, at=name)

    @staticmethod
    def _ip(*commands: str, at: str = "") -> None:
        do(["ip", *(["-n", at] if at else []), "-batch", "-"], "\n".join(commands))

    def address(self, name: str) -> str:
        return f"{NETWORK}.{self.names.index(name) + 1}"

    @staticmethod
    def enter(name: str) -> list[str]:
        """The prefix of a command that runs on that host; the command replaces it within the same process."""
        return ["nsenter", f"--net=/run/netns/{name}"]

    def disk(self, name: str, what: str, size_mib: int) -> Path:
        """Make an empty disk of that size for the host, before a process uses it."""
        at = self.folder / name / what
        at.mkdir(parents=True)
        do(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=755", "none", str(at)])
        return at

    def part(self, names: Iterable[str]) -> None:
        """These hosts reach each other, and no others."""
        self._ip(*(f"link set {name} master br1" for name in names))

    def join(self, names: Iterable[str]) -> None:
        """Undo `part`."""
        self._ip(*(f"link set {name} master br0" for name in names))

    def block(self, name: str, to: Iterable[str]) -> None:
        """Lose what the host sends to those; what they send arrives."""
        self._ip(
            *(f"neigh replace {self.address(each)} lladdr {NOBODY} dev eth0 nud permanent" for each in to),
            at=name,
        )

    def unblock(self, name: str, to: Iterable[str]) -> None:
        """Undo `block`."""
        self._ip(*(f"neigh del {self.address(each)} dev eth0" for each in to), at=name)
