"""docs/deploy.md, its blocks run in order, each on the host that it names, in network namespaces."""

from __future__ import annotations

import os
import pty
import random
import re
import shutil
import subprocess
import sys
import termios
import threading
import time
from calendar import timegm
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from elf.agent.config.config import load
from tests.rigs import paths
from tests.rigs.agents.mesh_rig import wait_until
from tests.rigs.agents.netns_rig import Network, refusal
from tests.rigs.agents.seen import Seen, totals_of

ROOT = paths.ROOT
DOCUMENT = ROOT / "docs" / "deploy.md"
ELF = Path(sys.executable).with_name("elf")
WEB = ("web1", "web2", "web3")

INSTEAD = {
    # command in the document: what is run instead. {elf}: the elf under test. $host, $in: of the address in the arguments.
    "python3": 'mkdir -p "$3/bin"; ln -sf {elf} "$3/bin/elf"; ln -sf "$PIP" "$3/bin/pip"',
    "pip": '[ "$1" != wheel ] || (mkdir -p dist; touch dist/elf_mesh-0.1.0-any.whl)',
    "ssh": 'find_host "$@"; if [ "$1" = -fNL ]; then ln -sf "$host${2#*:}" "${2%%:*}"; else shift; remote "$*"; fi',
    "scp": 'find_host "$@"; [ "$1" != -p ] || shift; cp -p "$1" "$host${2#*:}"',
    "systemctl": 'case "$*" in daemon-reload|"disable elf") ;; "enable --now elf"|"start elf") begin ;; "stop elf") end ;; '
    '"restart elf") end; begin ;; *) echo "systemctl $*?"; return 1 ;; esac',
}
SYSTEMD = r"""
unit=/etc/systemd/system/elf.service
said() { sed -n "s/^$1=//p" $unit | sed "s:%d:/run/credentials:g"; }
begin() {
    credential=$(said LoadCredential)
    install -D -m 400 "${credential#*:}" "/run/credentials/${credential%%:*}"
    runtime=/run/$(said RuntimeDirectory); install -d "$runtime"; export RUNTIME_DIRECTORY=$runtime
    (export $(said Environment); $(said ExecStartPre) >/run/validated)
    (export $(said Environment); setsid $(said ExecStart) </dev/null >>/run/journal 2>&1 & echo $! >/run/pid)
    while [ ! -S "$runtime/control.sock" ] && kill -0 $(cat /run/pid) 2>/dev/null; do sleep 0.05; done
}
end() { kill $(cat /run/pid); tail --pid=$(cat /run/pid) -f /dev/null; }
"""
"""What systemd does with the unit, as far as it matters here; and it waits until the agent can be asked, as an operator does who
reads the log first."""


class Block(msgspec.Struct, frozen=True):
    """hosts: where it is run. text: what it prints there, or ""."""

    hosts: tuple[str, ...]
    script: str
    text: str


def blocks() -> list[Block]:
    found = re.findall(
        r"```sh\n# ([^\n]*)\n(.*?)```\n(?:\n```text\n(.*?)```)?", DOCUMENT.read_text(), re.DOTALL
    )
    return [
        Block(tuple(where.partition(", in ")[0].split(", ")), script, text) for where, script, text in found
    ]


class Deployment:
    """The desk and three hosts with web servers, whose shells go on from block to block."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder, self.network = folder, network
        self.visited = set(WEB)
        """Hosts whose web servers are asked for pages."""
        (folder / "desk").mkdir()
        (folder / "desk" / "examples").symlink_to(ROOT / "examples")
        pip = folder / "pip"
        pip.write_text(f"#!/bin/sh\n{INSTEAD['pip']}\n")
        pip.chmod(0o755)
        for name in network.names:
            network.own(
                name,
                changed=["/etc", "/opt", "/usr/local/bin", "/var/lib", "/var/tmp"],
                empty=["/etc/systemd/system", "/var/log/nginx", "/run"],
            )
        (folder / "preamble").write_text(self._preamble())

    def _preamble(self) -> str:
        elf = {"{elf}": str(ELF)}
        lines = ["set -e", f"PIP={self.folder / 'pip'}", SYSTEMD]
        for command, body in INSTEAD.items():
            if command != "pip":
                lines.append(f"{command}() {{ {body.replace('{elf}', elf['{elf}'])}; }}")
        cases = "".join(
            f"*@{self.network.address(name)}*) host={self.network.root(name)}; in='{' '.join(self.network.enter(name))}' ;; "
            for name in self.network.names
        )
        lines.append(f'find_host() {{ case "$*" in {cases} esac; }}')
        lines.append(f'remote() {{ $in bash -c ". {self.folder / "preamble"}; $*"; }}')
        return "\n".join(lines) + "\n"

    def run(self, name: str, script: str) -> str:
        """On that host's terminal; what it shows. Exports and functions of earlier blocks hold."""
        shell = self.folder / f"{name}.shell"
        lines = [f". {self.folder / 'preamble'}", f"[ ! -f {shell} ] || . {shell}"]
        lines += [script, f"(declare -px; declare -f seed || :) > {shell}"]
        home = self.folder / name if name == "desk" else Path("/var/tmp")
        command = [
            *self.network.enter(name),
            "env",
            "-C",
            str(home),
            f"HOME={home}",
            "bash",
            "-c",
            "\n".join(lines),
        ]
        code, shown = on_terminal(command)
        assert code == 0, f"on {name}:\n{script}\n{shown}\n{self.said()}"
        return shown

    def follow(self, block: Block) -> None:
        """Run it on its hosts, until it shows there what the document says."""
        for name in block.hosts:
            shown = self.run(name, block.script)
            if not fits(block.text, shown):
                wait_until(
                    partial(self._shows, name, block),
                    f"{name} shows\n{shown}\ninstead of\n{block.text}\n{self.said()}",
                )

    def _shows(self, name: str, block: Block) -> bool:
        return fits(block.text, self.run(name, block.script))

    def said(self) -> str:
        """The agents' logs."""
        journals = {name: self.network.root(name) / "run" / "journal" for name in WEB}
        return "".join(f"--- {name}\n{path.read_text()}" for name, path in journals.items() if path.exists())

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """Ten lines a second at each web server meanwhile."""
        stop = threading.Event()
        thread = threading.Thread(target=self._serve, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _serve(self, stop: threading.Event) -> None:
        rng = random.Random(1)
        while not stop.wait(0.1):
            stamp = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime())
            for name in sorted(self.visited):
                status, size = rng.choice((200, 200, 404)), rng.randrange(5_000)
                with self.log(name).open("a") as log:
                    log.write(f'10.1.2.3 - - [{stamp}] "GET / HTTP/1.1" {status} {size} "-" "curl/8.0"\n')

    def log(self, name: str) -> Path:
        return self.network.root(name) / "var/log/nginx/access.log"

    def counted(self, start_us: int) -> dict[int, tuple[int, int]]:
        """Status -> (hits, bytes) of ten seconds, of all logs."""
        hits: Counter[int] = Counter()
        size: Counter[int] = Counter()
        for name in WEB:
            for line in self.log(name).read_text().splitlines():
                at = time.strptime(line.split("[")[1].split("]")[0], "%d/%b/%Y:%H:%M:%S +0000")
                if start_us // 1_000_000 <= timegm(at) < start_us // 1_000_000 + 10:
                    status, n_bytes = line.split('" ')[1].split()[:2]
                    hits[int(status)] += 1
                    size[int(status)] += int(n_bytes)
        return {status: (hits[status], size[status]) for status in hits}


def on_terminal(command: list[str]) -> tuple[int, str]:
    """Run it with a terminal of 140 columns for output. Its exit code, and what it showed."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (40, 140))
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("ELF_", "PYTHON"))}
    environ |= {"NO_COLOR": "1", "TERM": "dumb"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its, stderr=its, env=environ)
    os.close(its)
    shown = b""
    try:
        while chunk := os.read(ours, 65_536):
            shown += chunk
    except OSError:  # it has ended
        pass
    finally:
        os.close(ours)
    return process.wait(), left_standing(shown.decode())


def left_standing(shown: str) -> str:
    """What is on the screen in the end: open windows are taken back by going up so many lines and erasing the rest."""
    lines = [""]
    for part in re.split(r"(\x1b\[\d+F\x1b\[J)", shown.replace("\r", "")):
        if part.startswith("\x1b"):
            del lines[-1 - int(part[2:].partition("F")[0]) : -1]
        else:
            first, *others = part.split("\n")
            lines[-1] += first
            lines += others
    return "\n".join(lines)


def shape(line: str) -> list[str]:
    """The words of a line; numbers, sizes and ids are all alike, and who serves what and what holds memory are left out."""
    line = re.sub(r"^(memory of \S+) .*", r"\1", line)
    line = re.sub(r"[\d.]+ (B|KiB|MiB)\b", "# bytes", line)
    line = re.sub(r"\b\d+ (master|reducer|replica|worker)\b,?", "", line)
    line = re.sub(r"\b[0-9a-f]{12}\b|[\d.,:+-]*\d", "#", line)
    return line.split()


def fits(text: str, shown: str) -> bool:
    """Whether the lines of `text` stand in what was shown, in order; "…" ends a line of which only the beginning is told."""
    lines = iter(map(shape, shown.splitlines()))
    for told in text.splitlines():
        words = shape(told)
        if words and words[-1] == "…":
            words.pop()
            found = any(line[: len(words)] == words for line in lines)
        else:
            found = any(line == words for line in lines)
        if not found:
            return False
    return True


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(bool(refusal()), reason=refusal())
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_command_of_the_document_does_what_it_says(tmp_path: Path) -> None:
    """And every window is the count of all logs, from the first job to the host that leaves."""
    with Network([*WEB, "desk"]) as network, ExitStack() as stack:
        deployment = Deployment(tmp_path, network)
        stack.enter_context(deployment.traffic())
        for block in blocks():
            if "elf mesh leave" in block.script:
                deployment.visited -= set(block.hosts)
            deployment.follow(block)
            if "elf job start" in block.script:
                seen = Seen(network.root("web1") / "var/lib/elf/control.sock", "traffic")
                stack.callback(seen.close)
        last = max(seen.latest)
        seen.wait(lambda: last in seen.final_starts, lambda: f"{last} is not final\n{deployment.said()}", 60)
        # The first window may have begun before the job.
        _, *finals = sorted(seen.final_starts)
        assert len(finals) > 1
        for start in finals:
            put = seen.latest[start]
            assert put.agents_reporting == put.agents_expected
            assert totals_of(put) == deployment.counted(start)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_is_sound(tmp_path: Path) -> None:
    unit = tmp_path / "elf.service"
    unit.write_text(
        (ROOT / "examples" / "elf-mesh.service").read_text().replace("/opt/elf/bin/elf", "/bin/true")
    )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_commented_configuration_holds_every_key_of_a_mesh() -> None:
    path = ROOT / "examples" / "mesh.toml"
    loaded = load(path, environ={})
    assert [sink.name for sink in loaded.mesh.sinks] == ["lake"]
    told = path.read_text()
    assert [
        key
        for key in ("advertise", "cpu_max", "metrics", "control_group", "[mesh]", "[keys]")
        if key not in told
    ] == []
