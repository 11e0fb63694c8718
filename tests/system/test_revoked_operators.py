"""On real agents: an operator's keys are revoked. One job falls back to another operator's version, one is signed by another,
one ends; commands say beforehand what will happen and what to do."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from elf.agent.control import protocol as w
from elf.srt.security.files import load_keys, save_keys
from elf.srt.security.items import revocation
from tests.rigs.agents.mesh_rig import FAST, SQL, Fleet, wait_until
from tests.rigs.agents.seen import Seen

GRACE = {"revoked_grace": "10s"}
ERRORS = SQL.replace("GROUP BY", "WHERE status >= 400 GROUP BY")


class Signed(Fleet):
    def __enter__(self) -> Signed:
        super().__enter__()
        return self

    @property
    def bob(self) -> Path:
        return self.folder / "bob.keys"

    def issue(self) -> None:
        save_keys(self.authority.issue("bob", "operator", int(time.time())), self.bob)

    def revoke(self) -> None:
        item = revocation(self.authority, load_keys(self.bob).certificate, int(time.time()))
        self.agents[1].ask(w.Revoke((item,)))

    def show(self, job: str, at: int = 2) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.elf("job", "show", job, "--output", "json", at=at))
        return shown

    def history(self, job: str) -> list[tuple[str, str, str]]:
        steps = json.loads(self.elf("job", "history", job, "--output", "json", at=2))
        return [(step["version"], step["by"], step["state"]) for step in steps]


def test_a_job_outlives_the_keys_of_the_operator_who_changed_it(tmp_path: Path) -> None:
    with Signed(tmp_path, 3, security="curve", timings=FAST | GRACE) as fleet:
        fleet.issue()
        bob = ("--keys", str(fleet.bob))
        for job in ("hits", "kept"):
            fleet.start_job(job)
            fleet.elf("job", "update", job, "--sql", ERRORS, *bob, at=1)
        fleet.elf("job", "start", "bobs", "--sql", SQL, *bob, at=1)
        wait_until(lambda: fleet.show("bobs")["state"] == "running", "job bobs does not run")
        first, second = fleet.history("hits")
        assert [step[1:] for step in (first, second)] == [("op", "replaced"), ("bob", "in force")]
        with fleet.watch("hits", 2) as seen, fleet.traffic():
            seen.wait_finals(1)
            fleet.revoke()
            check(fleet, seen, first[0], second[0])


def check(fleet: Signed, seen: Seen, first: str, second: str) -> None:
    wait_until(lambda: fleet.show("hits")["revoked"], "a2 does not know of the revocation")
    told = fleet.show("hits")["revoked"]
    assert f"version {second} was signed by bob, whose keys were revoked; at " in told
    assert f"UTC it falls back to version {first}, signed by op, unless another operator signs it: " in told
    assert "UTC the job ends, unless another operator signs it" in fleet.show("bobs")["revoked"]
    problems = json.loads(fleet.elf("mesh", "status", "--output", "json", at=2))["problems"]
    assert f"job hits: {told}" in problems
    assert fleet.show("hits")["version"] == second
    file = fleet.folder / "kept.toml"
    file.write_text(fleet.elf("job", "show", "kept", "--output", "file", at=2))
    again = fleet.elf("job", "update", "kept", "-f", str(file), "--keys", str(fleet.operator))
    assert f"job kept: version {second} is signed by other keys now, and goes on" in again
    seen.wait(lambda: any(put.version == first for _, put in seen.puts[-3:]), lambda: "it does not fall back")
    wait_until(lambda: len(fleet.history("hits")) == 3, "history does not say so")
    assert fleet.history("hits") == [
        (first, "op", "replaced"),
        (second, "bob", "revoked"),
        (first, "op", "in force"),
    ]
    assert fleet.show("hits")["version"] == first
    assert not fleet.show("hits")["revoked"]
    wait_until(lambda: "bobs" not in fleet.elf("job", "list", at=2), "job bobs does not end")
    assert fleet.history("kept") == [
        (first, "op", "replaced"),
        (second, "bob", "replaced"),
        (second, "op", "in force"),
    ]
    problems = json.loads(fleet.elf("mesh", "status", "--output", "json", at=2))["problems"]
    assert not [problem for problem in problems if "revoked" in problem]
