"""Who may change jobs, who did, and who may only look: on real agents with keys."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from grp import getgrgid
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from elf.agent.control import protocol as w
from elf.agent.control.server import READ_ONLY
from elf.errors import UsageError
from elf.jobmaster.directory.job_spec import decode_job
from elf.srt.security.files import load_keys, save_keys
from elf.srt.security.items import sign_item
from elf.typer_cli import app
from tests.rigs.agents.mesh_rig import SQL, Agent, Fleet, wait_until
from tests.rigs.agents.seen import WAIT_S

pytestmark = pytest.mark.xdist_group("who_may")
GROUP = os.getgroups()[-1] if os.geteuid() else 1
ERRORS = SQL.replace("GROUP BY", "WHERE status >= 400 GROUP BY")


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Three agents, whose control sockets are open to a group, in a folder that all users may enter."""
    folder = Path(tempfile.mkdtemp(prefix="elf-who-may-"))
    folder.chmod(0o755)
    try:
        group = f'control_group = "{getgrgid(GROUP).gr_name}"'
        with Fleet(folder, 3, security="curve", agent=group) as fleet:
            yield fleet
    finally:
        shutil.rmtree(folder)


def audit(fleet: Fleet, at: int) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = json.loads(fleet.elf("mesh", "audit", "--output", "json", at=at))
    return lines


def served(agent: Agent) -> set[str]:
    return {job.name for job in agent.ask(w.JobList()).jobs if job.master}


def told(lines: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    keys = ("operator", "agent", "job", "what", "outcome")
    # An agent may not know the master's term yet: its first change is refused, and the command signs it again.
    return [tuple(line[key] for key in keys) for line in lines if not line["reason"].startswith("signed for")]


def test_changes_are_listed_everywhere_and_an_operator_changes_its_own_jobs_only(fleet: Fleet) -> None:
    bob = fleet.authority.issue("bob", "operator", int(time.time()), jobs=("web-*",))
    bundle = fleet.folder / "bob.keys"
    save_keys(bob, bundle)
    started = fleet.elf("job", "start", "web-hits", "--sql", SQL, "--keys", str(bundle), at=1)
    assert (
        "windows are final 5s after their end" in started
    )  # the agents' logs have the time of a request's end
    fleet.start_job("hits")
    wait_until(
        lambda: all(served(agent) == {"hits", "web-hits"} for agent in fleet.agents), "not all know both jobs"
    )
    fleet.elf("job", "update", "web-hits", "--sql", ERRORS, "--keys", str(bundle), at=2)
    refused = CliRunner().invoke(
        app, ["job", "stop", "hits", "--keys", str(bundle), "--agent", str(fleet.agents[0].socket)]
    )
    assert "'bob' may not change job 'hits', only jobs named web-*; " in str(refused.exception)
    item = fleet.agents[0].ask(w.JobGet("hits")).item
    stop = decode_job(item).item()  # the command as it would be without that check
    with pytest.raises(
        UsageError, match="the mesh does not take this change: 'bob' may not change job 'hits'"
    ):
        fleet.agents[0].ask(w.JobPut(sign_item(bob, stop)))
    fleet.elf("job", "stop", "web-hits", "--keys", str(fleet.operator), at=1)
    expected = [
        ("bob", "a1", "web-hits", "start", "taken"),
        ("op", "a0", "hits", "start", "taken"),
        ("bob", "a2", "web-hits", "update", "taken"),
        ("bob", "a0", "hits", "start", "refused"),
        ("op", "a1", "web-hits", "stop", "taken"),
    ]
    wait_until(lambda: all(told(audit(fleet, at)) == expected for at in range(3)), str(audit(fleet, 0)))
    before = audit(fleet, 0)
    serials = {"bob": bob.certificate.serial.hex(), "op": load_keys(fleet.operator).certificate.serial.hex()}
    assert all(line["key"] == serials[line["operator"]] for line in before)
    for agent in fleet.agents:
        agent.kill()
    for agent in fleet.agents:
        agent.start()
    fleet.wait_joined()
    assert [audit(fleet, at) for at in range(3)] == [before] * 3


AS_NOBODY = """
import contextlib, io, json, os, sys
from elf.typer_cli import main
groups, arguments, agent = json.loads(sys.argv[1])
with contextlib.redirect_stdout(io.StringIO()):
    main(["mesh", "audit", *agent])  # imports all, since others may not be able to read the interpreter's modules
os.setgroups(groups)
os.setgid(65534)
os.setuid(65534)
sys.exit(main([*arguments, *agent]))
"""


def as_nobody(
    fleet: Fleet, *arguments: str, groups: tuple[int, ...] = (GROUP,)
) -> subprocess.CompletedProcess[str]:
    """A command that is run as another user, who is in these groups."""
    about = json.dumps([groups, arguments, ["--agent", str(fleet.agents[0].socket)]])
    command = [sys.executable, "-c", AS_NOBODY, about]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a command as another user")
def test_a_member_of_the_group_reads_and_changes_nothing(fleet: Fleet) -> None:
    done = as_nobody(fleet, "mesh", "audit", "--output", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == audit(fleet, 0)
    done = as_nobody(fleet, "mesh", "leave")
    assert (done.returncode, done.stderr) == (1, f"elf: {READ_ONLY}\n")
    assert fleet.agents[0].is_running
    done = as_nobody(fleet, "mesh", "audit", groups=())
    assert done.returncode == 1
    assert (
        "only the user that runs the agent may connect, and members of its control_group to read"
        in done.stderr
    )
