"""The `elf` command as a process of its own: its streams, pipes and terminals, signals, and what it imports."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.agent.commands.test_cli import CONFIGURATION, LINES, QUERY
from tests.rigs.agents.seen import WAIT_S
from tests.rigs.terminal import Screen

ELF = [sys.executable, "-m", "elf"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_text("".join(LINES))
    return path


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [*ELF, *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(command, text=True, timeout=WAIT_S, check=False, **streams)  # type: ignore[call-overload, no-any-return]


def test_answers_at_once_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from elf.__main__ import main; code = main(['--help']); "
        "heavy = {'numpy', 'rich', 'sqlglot', 'pyarrow', 'pyspark', 'msgspec', 'zstandard'} & set(sys.modules); "
        "sys.exit(code or (f'imported {heavy}' if heavy else 0))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for verb in ("run", "grep", "parse", "formats", "explain", "validate", "report", "demo", "agent"):
        assert f"\n  {verb} " in done.stdout


def test_completion_script() -> None:
    environment = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = run("--show-completion", "bash", env=environment)
    assert done.returncode == 0
    assert "_ELF_COMPLETE=complete_bash" in done.stdout


def test_no_command_imports_pydantic(log: Path) -> None:
    """Some typers do, when a command runs: 20 MB that an agent would carry for ever."""
    program = (
        "import sys; from elf.__main__ import main; code = main(['parse', sys.argv[1], '--limit', '1']); "
        "sys.exit(code or ('pydantic' in sys.modules or 'rich' in sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program, log], stdout=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    )


def test_standard_input(log: Path) -> None:
    with log.open("rb") as file:
        done = run("run", QUERY, "-", "-q", stdin=file)
    assert [json.loads(line)["hits"] for line in done.stdout.splitlines()] == [30, 10]


@pytest.mark.parametrize("size", [1, 5_000])
def test_standard_input_through_a_pipe(size: int) -> None:
    done = run("run", QUERY, "-", "-q", input="".join(LINES * size))
    assert [json.loads(line)["hits"] for line in done.stdout.splitlines()] == [30 * size, 10 * size]


def test_a_signal_ends_the_wait_for_standard_input() -> None:
    command = [*ELF, "run", QUERY, "-", "--format", "combined"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(LINES).encode())
        process.stdin.flush()
        wait_until_read(process.stdin.fileno())
        process.send_signal(signal.SIGTERM)
        rows = [json.loads(line) for line in process.stdout]
        assert process.wait(WAIT_S) == 143
    assert [row["hits"] for row in rows] == [30, 10]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["run", "SELECT path, status WHERE status = 404", "-", "-q", "--output", "csv"],
            b"path,status\n/1,404\n",
        ),
        (["grep", "status = 404"], LINES[4].encode()),
    ],
)
def test_rows_appear_as_lines_come_and_a_closed_reader_ends_it(
    arguments: Sequence[str], expected: bytes
) -> None:
    line = LINES[4].encode()
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*ELF, *arguments], **streams) as process:  # type: ignore[call-overload]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(LINES[1].encode() + line)
        process.stdin.flush()
        assert process.stdout.read(len(expected)) == expected  # while the pipe is open
        process.stdout.close()
        process.stdin.write(line)
        process.stdin.flush()
        assert process.wait(WAIT_S) == 0
        assert process.stderr.read() == b""


def test_a_closed_pipe_is_success(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    path.write_text("".join(line.replace("/0", f"/{n}") for n in range(2_000) for line in LINES))
    command = f"{' '.join(ELF)} run 'SELECT path, count(*) AS n FROM access GROUP BY path' {path} -q"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)


@pytest.mark.parametrize("arguments", [["parse", "{}"], ["formats"], ["explain", QUERY]])
def test_a_closed_pipe_is_success_of_every_command(log: Path, arguments: Sequence[str]) -> None:
    done = run(*(a.format(log) for a in arguments), stdout=closed_pipe())
    assert (done.returncode, done.stderr) == (0, "")


def test_messages_that_nobody_reads_do_not_stop_the_run(log: Path) -> None:
    done = run("run", QUERY, log, stderr=closed_pipe())
    assert [json.loads(line)["hits"] for line in done.stdout.splitlines()] == [30, 10]
    assert done.returncode == 0


@pytest.mark.parametrize("closing", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(log: Path, closing: str) -> None:
    command = [sys.executable, "-m", "elf", "run", QUERY, str(log)]
    done = subprocess.run(["bash", "-c", f'"$@" {closing}', "-", *command], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"internal error" not in done.stderr


def test_a_full_disk_under_standard_output(log: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run("run", QUERY, log, "-q", stdout=full)
    assert (done.returncode, done.stderr) == (1, "elf: standard output: No space left on device\n")


def test_progress_and_table_on_a_terminal_only(log: Path) -> None:
    out = on_terminal("run", QUERY, str(log), "--color", "never")
    assert "status  hits  bytes\r\n   200    30    600\r\n" in out


def test_ctrl_c_prints_the_open_windows(log: Path) -> None:
    query = "SELECT window, count(*) AS n FROM access GROUP BY window(time, '1 minute')"
    with subprocess.Popen(
        [*ELF, "run", query, "--follow", "--meta", "--open", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())  # the window is open by now
        assert (first["n"], first["_elf"]["status"]) == (40, "open")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, err
    assert "40 lines" in err


def test_a_live_pipe_is_answered_as_its_lines_come() -> None:
    """`kubectl logs -f … | elf run -f Q`: final windows while it runs, also those without a row; the rest when it ends."""
    query = "SELECT window, count(*) AS n FROM access WHERE status >= 500 GROUP BY window(time, '1 second')"
    with subprocess.Popen(
        [*ELF, "run", query, "--follow", "--lateness", "0s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        until = time.monotonic() + WAIT_S
        while not select.select([process.stdout], [], [], 0.05)[0] and time.monotonic() < until:
            at = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime())
            process.stdin.write(b'192.0.2.1 - - [%s] "GET / HTTP/1.1" 200 1 "-" "-"\n' % at.encode())
            process.stdin.flush()
        empty = json.loads(process.stdout.readline())
        assert (empty["n"], empty["_elf"]["status"], empty["_elf"]["rows"]) == (None, "final", 0)
        assert empty["_elf"]["lines_parsed"] > 0
        process.stdin.write(
            b'192.0.2.1 - - [%s] "GET / HTTP/1.1" 500 1 "-" "-"\n'
            % time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(time.time() + 2)).encode()
        )
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    last = json.loads(out.splitlines()[-1])
    assert (last["n"], "_elf" in last) == (1, False)
    assert b"elf: windows are final 0s after their end (--lateness)\n" in err


def test_a_live_query_ends_when_its_reader_has_gone(log: Path) -> None:
    """`… --follow | head -1`: without open windows it meets the closed pipe with the next final one."""
    query = "SELECT window, count(*) AS n FROM access GROUP BY window(time, '1 second')"
    with subprocess.Popen(
        [*ELF, "run", query, "--follow", "--lateness", "0s", "-q", str(log)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["n"] > 0
        process.stdout.close()
        later = re.sub(r"\d{4}:\d\d:\d\d:\d\d", "2016:10:05:03", LINES[-1])
        with log.open("a") as file:
            file.write(later)
            file.write(later.replace("2016", "2017"))
        assert process.wait(WAIT_S) == 0


def test_following_in_a_small_terminal_leaves_nothing_stale(log: Path) -> None:
    query = "SELECT window, path, count(*) AS hits FROM access GROUP BY window(time, '1 minute'), path"
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 12, 40, 0, 0))
    command = [*ELF, "run", "-f", "-q", "--emit", "20ms", query, str(log)]
    screen, decode = Screen(40, 12), codecs.getincrementaldecoder("utf-8")().decode
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower) as process:
        os.close(follower)
        for hits in (14, 15, 16):  # of /0
            until = time.monotonic() + WAIT_S
            while not any(line.split() == ["/0", str(hits)] for line in screen.text):
                assert time.monotonic() < until, screen.text
                screen.feed(decode(os.read(leader, 65536)))
            with log.open("a") as file:
                file.write(LINES[0])
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_S)
    os.close(leader)
    headings = [line for line in screen.text if line.startswith("──")]
    assert headings == ["── 2015-05-17 10:05 – 10:06 · open · 42…"]


def test_a_signal_between_any_two_steps_of_waiting_is_heard() -> None:
    """A child, since one that waits for itself would wait for ever: each line of `wait` in turn is interrupted by the signal."""
    program = """
import signal, sys, threading
from elf.agent.commands.process.signals import stop_on_signals

def raise_at(step):
    def trace(frame, event, argument):
        nonlocal step
        step -= 1
        if step == 0:
            signal.raise_signal(signal.SIGTERM)
        return trace
    return trace

for step in range(1, 40):
    with stop_on_signals() as stop:
        sys.settrace(raise_at(step))
        stop.event.wait(0.001)
        sys.settrace(None)
        heard = stop.event.is_set()
        assert heard == (stop.exit_code == 143) == stop.event.wait(0), step
        if not heard:
            break
assert 4 < step < 39, step
"""
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=WAIT_S, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def closed_pipe() -> int:
    """A pipe's end for writing that nobody reads; it lasts as long as the process."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    return write_end


def wait_until_read(pipe: int) -> None:
    """Return when the other side of `pipe` has taken all that was written: it is at work then."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        if fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) == bytes(4):
            return
        time.sleep(0.02)
    raise AssertionError("nobody reads the pipe")


def on_terminal(*arguments: str) -> str:
    """What a command prints when all its streams are a terminal of 80 columns."""
    leader, follower = pty.openpty()
    with subprocess.Popen([*ELF, *arguments], stdin=follower, stdout=follower, stderr=follower) as process:
        os.close(follower)
        chunks = []
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError:  # Linux says so when the last writer has gone
                break
            if not chunk:
                break
            chunks.append(chunk)
        process.wait(WAIT_S)
    os.close(leader)
    return b"".join(chunks).decode()


def test_agent_runs_until_told_to_stop(tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text("".join(LINES))
    text = CONFIGURATION.replace('format = "combined"', 'format = "combined"\nstart = "beginning"')
    (tmp_path / "elf.toml").write_text(f'[agent]\nstate_dir = "state"\n{text}')
    command = [*ELF, "agent", "run", "-c", str(tmp_path / "elf.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        row = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    assert row["_elf"]["job"] == "errors"
