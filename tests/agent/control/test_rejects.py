"""An agent with the wrong format: no window waits for it or counts it as having reported, and it is named."""

from __future__ import annotations

import re
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from elf.agent.control import protocol as w
from tests.rigs.agents.mesh_rig import Fleet, free_ports, wait_until
from tests.rigs.agents.seen import WAIT_S, Seen

pytestmark = pytest.mark.process

BROKEN = 3
SAMPLE = r"\u001b[31mrubbish\u001b[0m of another format"


class Half(Fleet):
    """The server of one agent logs in another format than configured; that agent has a page for Prometheus."""

    def __init__(self, folder: Path, count: int) -> None:
        (self.port,) = free_ports(1)
        super().__init__(folder, count)

    def __enter__(self) -> Half:
        super().__enter__()
        return self

    def _config(self, number: int, name: str, port: int) -> str:
        self._agent = f'metrics = "127.0.0.1:{self.port}"' if number == BROKEN else ""
        return super()._config(number, name, port)

    def log(self, count: int = 1) -> None:
        now_s = time.time()
        self.last_s = max(self.last_s, now_s)
        for number, agent in enumerate(self.agents):
            broken = f"{now_s} \x1b[31mrubbish\x1b[0m of another format"
            agent.write([broken if number == BROKEN else self._line(now_s) for _ in range(count)])

    def page(self, path: str) -> tuple[int, str]:
        """The broken agent's health and its answer."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=WAIT_S) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def names_it(self) -> bool:
        """Whether another agent's `elf mesh status` says which agent rejects its lines, and why."""
        said = "\n".join(self.agents[0].ask(w.MeshStatus()).problems)
        why = ("100% of the recent lines are rejected", SAMPLE)
        return said.startswith("a3: source access: ") and all(text in said for text in why)


def coverage(seen: Seen) -> set[tuple[int, int]]:
    """Of all windows that are final."""
    finals = [put for put in seen.latest.values() if put.status != "open"]
    return {(put.agents_reporting, put.agents_expected) for put in finals}


def test_an_agent_whose_lines_are_all_rejected_is_named_and_not_waited_for(tmp_path: Path) -> None:
    with Half(tmp_path, 4) as fleet:
        fleet.start_job("hits")
        with fleet.watch("hits", at=0) as seen:
            with fleet.traffic():
                seen.wait_finals(3)  # a minute is what they would wait for an agent that is silent
                assert coverage(seen) == {(3, 4)}
                wait_until(lambda: fleet.page("/healthz")[0] == 503, "it is called healthy")
                assert SAMPLE in fleet.page("/healthz")[1]
                # A status or a list may lack the report of a busy agent.
                wait_until(fleet.names_it, "it is not named")
                figures = fleet.page("/metrics")[1]
                assert 'elf_source_rejected_share{source="access"} 1' in figures
                assert SAMPLE.replace("\\", "\\\\") in figures
                lost = re.compile(r"^job hits: [\d,]+ rejected lines are in no window", re.MULTILINE)
                wait_until(lambda: lost.search(fleet.elf("job", "list", "--output", "table")), "not counted")
            fleet.elf("mesh", "leave", at=BROKEN)
            told = seen.finals
            with fleet.traffic():
                seen.wait(lambda: seen.finals >= told + 2)
            before = [
                put for put in seen.latest.values() if put.agents_expected == 4 and put.status != "open"
            ]
            assert len(before) >= 3
            assert {put.agents_reporting for put in before} == {3}
