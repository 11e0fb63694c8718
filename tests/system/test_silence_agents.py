"""Real agents, one of which has no more lines: `no data by agent` says so at a sink, and that it is back."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.agents.mesh_rig import Fleet, line, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.process]
JOB = """\
lateness = "1s"
sinks = ["files"]
sql = "SELECT window, agent, count(*) AS hits FROM access GROUP BY window(time, '1 second'), agent"

[[alert]]
name = "silent"
when = "no data by agent"
for = "3s"
text = "{agent} is silent"
sinks = ["files"]
"""


def sinks(number: int) -> str:
    return '[[sink]]\nname = "files"\njsonl = "files"\n' if number == 0 else ""


def at_sink(fleet: Fleet) -> list[dict[str, Any]]:
    """Windows, and changes of the alert, each in order."""
    files = sorted((fleet.agents[0].folder / "files").rglob("*.jsonl"))
    return [json.loads(each) for file in files for each in file.read_text().splitlines()]


def changes(fleet: Fleet) -> list[dict[str, Any]]:
    return [each for each in at_sink(fleet) if "alert" in each]


def write_until(fleet: Fleet, writers: list[int], count: int) -> None:
    """Lines at these agents, until the sink has so many changes."""

    def has_come() -> bool:
        now_s = time.time()
        for number in writers:
            fleet.agents[number].write([line(now_s, 200, 1)])
        return len(changes(fleet)) >= count

    wait_until(has_come, f"{count} changes of the alert")


def test_an_agent_without_lines_is_missed_and_found_again(tmp_path: Path) -> None:
    with Fleet(tmp_path, 3, more=sinks) as fleet:
        (tmp_path / "hits.toml").write_text(JOB)
        wait_until(lambda: fleet._knows_sink(0, "files"), "the sink is known")
        fleet.elf("job", "start", "hits", "-f", str(tmp_path / "hits.toml"))

        def has_all() -> bool:
            fleet.log()
            return any(len(each["rows"]) == 3 for each in at_sink(fleet) if "rows" in each)

        wait_until(has_all, "a window of all three")
        assert changes(fleet) == []
        write_until(fleet, [0, 1], 1)
        write_until(fleet, [0, 1, 2], 2)
        found = changes(fleet)
    assert [(each["state"], each["keys"], each["text"]) for each in found] == [
        ("firing", {"agent": "a2"}, "a2 is silent"),
        ("resolved", {"agent": "a2"}, "a2 is silent"),
    ]
