"""Lateness and sinks of a job that change while it runs, on real agents: each window has the settings of its own time."""

from __future__ import annotations

import json
from pathlib import Path

from tests.rigs.agents.mesh_rig import SQL, Fleet, wait_until
from tests.system.jobs.test_job_changes import elf, history, stored

SINK = '[[sink]]\nname = "{0}"\nparquet = "{0}"\n'


def test_sinks_get_the_windows_of_their_own_time_and_none_twice(tmp_path: Path) -> None:
    with Fleet(tmp_path, 3, more=lambda number: SINK.format(("first", "second", "third")[number])) as fleet:
        fleet.start_job("hits", SQL, "--sink", "first")
        with fleet.watch("hits") as seen, fleet.traffic():
            seen.wait_finals(2)
            assert "lateness: " in fleet.elf(
                "job", "update", "hits", "--lateness", "1500ms", "--sink", "second"
            )
            nobody = elf(fleet, "job", "update", "hits", "--sink", "nobodys")
            assert "no agent of the mesh has a sink 'nobodys'" in str(nobody.exception)
            line_us = int(str(history(fleet, "hits")[-1]["from_us"]))
            assert [each["part"] for each in history(fleet, "hits")[-1]["settings"]] == ["lateness", "sinks"]  # type: ignore[attr-defined]
            seen.wait_finals(4)
            assert "has these options already" in fleet.elf(
                "job", "update", "hits", "--lateness", "1500ms", "--sink", "second"
            )
            seen.wait_finals(2)
        lakes = [fleet.agents[number].folder / name for number, name in enumerate(("first", "second"))]

        def held(at: int) -> set[int]:
            return {start for _, start in stored(lakes[at])}

        last_us = int(fleet.last_s) * 1_000_000 - 1_000_000
        wait_until(lambda: last_us in held(1), "the second sink lacks the last window")
        assert held(0)
        assert max(held(0)) < line_us <= min(held(1))
        assert sorted(held(0) | held(1)) == list(range(min(held(0)), max(held(1)) + 1, 1_000_000))
        for at in range(3):
            assert json.loads(fleet.elf("job", "show", "hits", "--output", "json", at=at))["sinks"] == [
                "second"
            ]
