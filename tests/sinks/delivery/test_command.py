"""Windows as the standard input of a command: what it sees, what its end means, and what is left of it."""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from pathlib import Path

import pytest

from elf.sinks.delivery import command
from elf.sinks.delivery.command import PATH, CommandCarrier
from elf.sinks.delivery.contract import DeliveryError, RefusedError, WindowMessage
from tests.rigs.agents.mesh_rig import wait_until

pytestmark = pytest.mark.process
BODY = b'{"rows":[{"path":"; rm -rf $HOME `id`"}]}'
MESSAGE = WindowMessage("id1", "hits", "v1", "final", "1.0.1", "ff", BODY, True, 3600)


def run(script: str, *arguments: str, message: WindowMessage = MESSAGE) -> None:
    async def work() -> None:
        carrier = CommandCarrier(("/bin/sh", "-c", script, "sh", *arguments))
        await carrier.connect()
        await carrier.deliver(message)
        await carrier.close()

    asyncio.run(work())


def test_it_gets_the_window_and_a_clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELF_KEYS_BUNDLE", "secret")
    out = tmp_path / "out"
    run('cat > "$1"; env | sort > "$1.env"; pwd > "$1.pwd"; echo x', str(out))
    assert out.read_bytes() == BODY
    found = dict(line.split("=", 1) for line in Path(f"{out}.env").read_text().splitlines())
    assert {name: text for name, text in found.items() if name not in ("PWD", "_", "SHLVL", "OLDPWD")} == {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "ELF_KIND": "window",
        "ELF_ID": "id1",
        "ELF_JOB": "hits",
        "ELF_VERSION": "v1",
        "ELF_STATUS": "final",
    }
    assert Path(f"{out}.pwd").read_text() == "/\n"


@pytest.mark.parametrize("script", ["exit 0", "cat > /dev/null", "head -c 1 > /dev/null", "exec 0<&-; true"])
def test_exit_code_0_acknowledges_whether_it_read_the_window_or_not(script: str) -> None:
    run(script, message=WindowMessage("i", "j", "v", "final", "1", "f", b"x" * 1_000_000, True, 1))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 3", "/bin/sh ended with 3"),
        ("echo no disk >&2; exit 1", "/bin/sh ended with 1: no disk"),
        ("printf 'a\\033[31mb' >&2; exit 1", "/bin/sh ended with 1: a [31mb"),
        ("kill -9 $$", "/bin/sh was killed by signal 9"),
        ("head -c 100000 /dev/zero | tr '\\0' y >&2; exit 2", "/bin/sh ended with 2: " + "y" * 200),
    ],
)
def test_any_other_end_refuses_the_window(script: str, expected: str) -> None:
    with pytest.raises(RefusedError) as caught:
        run(script)
    assert str(caught.value) == expected


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_one_that_does_not_end_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "TIME_S", 0.5)
    pids = tmp_path / "pids"
    with pytest.raises(RefusedError, match="did not end within"):
        run('sleep 600 & echo $! > "$1"; echo $$ >> "$1"; wait', str(pids))
    for pid in map(int, pids.read_text().split()):
        wait_until(partial(has_ended, pid), f"{pid} lives")  # one that is killed ends when it runs next


@pytest.mark.parametrize("program", ["/does/not/exist", "/etc/passwd", "/tmp"])
def test_a_program_that_cannot_be_executed(program: str) -> None:
    with pytest.raises(
        DeliveryError, match=f"^{program}: there is no such program, or it cannot be executed$"
    ):
        asyncio.run(CommandCarrier((program,)).connect())


def test_one_that_vanished_meanwhile(tmp_path: Path) -> None:
    program = tmp_path / "p"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    async def work() -> None:
        carrier = CommandCarrier((str(program),))
        await carrier.connect()
        program.unlink()
        await carrier.deliver(MESSAGE)

    with pytest.raises(DeliveryError, match="p: No such file or directory"):
        asyncio.run(work())


def test_its_limits(tmp_path: Path) -> None:
    out = tmp_path / "limits"
    program = tmp_path / "p"
    program.write_text(
        f"#!{sys.executable}\nimport json, resource, sys, time\n"
        "sys.stdin.read()\n"  # by then they are set
        "names = 'RLIMIT_CPU', 'RLIMIT_NOFILE', 'RLIMIT_CORE'\n"
        "json.dump([resource.getrlimit(getattr(resource, each))[0] for each in names], open(sys.argv[1], 'w'))\n"
    )
    program.chmod(0o755)
    asyncio.run(CommandCarrier((str(program), str(out))).deliver(MESSAGE))
    assert json.loads(out.read_text()) == [command.CPU_S, command.FILES_MAX, 0]
