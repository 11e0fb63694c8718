"""SIGHUP: an agent reads its configuration again, and begins again with a good one, as the same process."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

MESH = """
[agent]
name = "web1"
state_dir = "state"
security = "none"
listen = "127.0.0.1:0"
[[source]]
name = "access"
path = "access.log"
"""
LONE = """
[agent]
name = "web1"
state_dir = "state"
[[source]]
name = "access"
path = "access.log"
start = "beginning"
[[job]]
name = "hits"
sql = "SELECT window, count(*) AS visits FROM access GROUP BY window(time, '10 seconds')"
"""
WRONG_JOB = """
[[job]]
name = "wrong"
sql = "SELECT count(no_column) AS n FROM access"
"""
NO_COLUMN = "there is no column no_column in access"


def line() -> str:
    """A line of now."""
    return (
        f'192.0.2.7 - - [{datetime.now(UTC):%d/%b/%Y:%H:%M:%S} +0000] "GET /a HTTP/1.1" 200 12 "-" "curl/8"\n'
    )


ERROR = "the configuration has an error, and the former one stays in force: "
GOOD = "elf: the configuration is good: the agent ends, and begins again with it\n"


@pytest.mark.parametrize(
    ("text", "begun", "old", "new", "after", "refusal"),
    [
        (MESH, "elf: agent web1 (", "web1", "web2", "elf: agent web2 (", "elf job start wrong"),
        (LONE, '{"window"', "visits", "calls", "elf: job hits: changed, as ", NO_COLUMN),
    ],
)
def test_a_good_configuration_is_taken_and_an_error_changes_nothing(
    tmp_path: Path, text: str, begun: str, old: str, new: str, after: str, refusal: str
) -> None:
    path = tmp_path / "elf.toml"
    path.write_text(text)
    (tmp_path / "access.log").write_text(line())
    command = [sys.executable, "-m", "elf", "agent", "run", "-c", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as agent:
        assert agent.stdout is not None
        try:
            lines = iter(agent.stdout)
            next(line for line in lines if line.startswith(begun))
            path.write_text(text.replace("state_dir", "stat_dir"))
            agent.send_signal(signal.SIGHUP)
            wrong = next(line for line in lines if ERROR in line)
            assert wrong == f"elf: {ERROR}{path}:4: [agent] stat_dir: unknown key; did you mean state_dir?\n"
            path.write_text(text + WRONG_JOB)
            agent.send_signal(signal.SIGHUP)
            wrong = next(line for line in lines if ERROR in line)
            assert wrong.startswith(f"elf: {ERROR}{path}:")
            assert refusal in wrong
            path.write_text(text.replace(old, new))
            agent.send_signal(signal.SIGHUP)
            next(line for line in lines if line == GOOD)
            next(line for line in lines if line.startswith(after) and new in line)
            agent.terminate()
            assert agent.wait(60) == 0
        finally:
            agent.kill()
