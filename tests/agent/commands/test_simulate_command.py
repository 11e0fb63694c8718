"""`elf simulate`: a small fleet from end to end, its figures, its page, and what it says to arguments that make no sense."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from elf.agent.simulator.fleet.fleet import Fleet
from elf.agent.simulator.fleet.page import decades, fleet_page
from elf.agent.simulator.fleet.report import FleetReport, Plan, Spread, as_json, as_table, depth
from elf.agent.simulator.fleet.tree import places
from elf.agent.simulator.scenario.scenario import Crash, Job, Scenario
from elf.typer_cli import main

SMALL = ["--nodes", "20", "--jobs", "2", "--seconds", "5", "--seed", "7", "--kill", "2", "--loss", "0.01"]
PLAN = Plan(nodes=20, jobs=2, seconds=5, seed=7, kill=2, loss=0.01)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    fleet = Fleet(PLAN)
    assert fleet.run()
    return fleet


@pytest.fixture(scope="module")
def report(fleet: Fleet) -> FleetReport:
    return fleet.report()


class TestFigures:
    @pytest.mark.slow
    def test_every_window_is_exact(self, fleet: Fleet, report: FleetReport) -> None:
        assert report.exact is True
        assert not report.wrong
        written = {
            (at - at % 2_000_000)
            for host in fleet.hosts
            if host.source
            for file in host.source.files
            for at in file.event_us.tolist()
        }
        begun = fleet.specs[0].line_us
        assert report.windows == 2 * len([start for start in written if start >= begun])

    def test_the_lines_told_are_those_written(self, fleet: Fleet, report: FleetReport) -> None:
        """Every line of a window that is told became visible once, in each job."""
        assert report.lines == sum(len(f.key) for h in fleet.hosts if h.source for f in h.source.files)
        begun = fleet.specs[0].line_us
        told = sum(
            int((file.event_us >= begun).sum()) for h in fleet.hosts if h.source for file in h.source.files
        )
        written, waited = fleet.measure.latencies()
        assert len(written) == len(waited) == 2 * told
        assert waited.min() > 0

    def test_the_tree_keeps_its_limits(self, report: FleetReport) -> None:
        assert report.trees.depth_limit == 3  # ceil(log16 20) + 1
        assert 1 <= report.trees.depth_end <= 3
        assert 1 <= report.trees.fan_in_max <= report.trees.fan_in_limit == 16

    def test_a_master_died_and_its_job_went_on(self, fleet: Fleet, report: FleetReport) -> None:
        assert len(fleet.measure.kills) == 2
        assert len(report.recoveries) >= 1
        for recovery in report.recoveries:
            assert recovery.seconds is not None
            assert recovery.seconds <= report.detection_s + 1

    def test_a_flat_collection_gets_a_bundle_of_each_agent_and_flush(self, report: FleetReport) -> None:
        assert report.root.flat_messages == 20 * 5
        assert report.root.flat_bytes > report.root.flat_messages * 100

    def test_messages_are_counted_once(self, fleet: Fleet, report: FleetReport) -> None:
        assert sum(report.messages.values()) <= fleet.world.delivered
        assert {"Bundle", "Commit", "Ping", "Path"} <= report.messages.keys()

    def test_the_table_says_it_in_words(self, report: FleetReport) -> None:
        told = as_table(report)
        assert told[0].startswith(
            "20 agents, 2 jobs, 5 s of 2 lines/s at each agent, seed 7; 2 agents killed"
        )
        assert any(line.startswith("exact                   true: every window equals") for line in told)

    def test_one_is_no_plural_and_nothing_no_times_as_much(self) -> None:
        lone = Fleet(Plan(nodes=1, seconds=5, lines_per_s=1))
        lone.run()
        told = as_table(lone.report())
        assert told[0] == "1 agent, 1 job, 5 s of 1 line/s at each agent, seed 1; no faults"
        assert not [line for line in told if "times" in line]

    def test_the_limit_of_a_trees_depth_is_of_one_that_stands(self, report: FleetReport) -> None:
        trees = structs.replace(report.trees, depth_max=3, depth_end=3, depth_limit=3)
        assert depth(trees) == "3 in the end (limit 3, for trees that have formed)"
        deeper = structs.replace(trees, depth_max=4)
        assert depth(deeper) == f"{depth(trees)}; 4 for a while, as trees formed or agents died"

    def test_a_spread_of_nothing_is_zero(self) -> None:
        assert Spread.of([]) == Spread(0, 0, 0)
        assert Spread.of([3, 1, 2]) == Spread(2, 3, 3)


class TestDeterminism:
    @pytest.mark.process
    def test_same_seed_same_figures_in_another_process(self, report: FleetReport) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "elf", "simulate", *SMALL, "--output", "json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONHASHSEED": "4711"},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == as_json(report) + "\n"
        assert " messages/s" in done.stderr

    def test_another_seed_gives_others(self, report: FleetReport) -> None:
        other = Fleet(Plan(nodes=8, jobs=1, seconds=5, seed=8, loss=0.1))
        other.run()
        assert other.report().exact is True
        assert other.report().messages != report.messages


class TestStopping:
    def test_what_was_measured_so_far_is_told(self) -> None:
        fleet = Fleet(Plan(nodes=20, jobs=1, seconds=10, seed=1))
        assert not fleet.run(lambda now_us, end_us, messages: now_us < 3_000_000)
        report = fleet.report()
        assert report.exact is None
        assert report.messages["Bundle"] > 0
        assert "stopped" in as_table(report)[-1]
        assert json.loads(as_json(report))["exact"] is None

    def test_before_anything_was_measured(self) -> None:
        fleet = Fleet(Plan(nodes=5, jobs=1, seconds=5, seed=1))
        assert not fleet.run(lambda now_us, end_us, messages: False)
        assert as_table(fleet.report())
        assert "</html>" in fleet_page(fleet, fleet.report())


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--kill", "20"], "--kill: expected less than --nodes (20), found 20; one agent must be left"),
            (["--loss", "1.5"], "--loss: expected a probability from 0 to 0.3, found 1.5"),
            (["--loss", "some"], "invalid value for '--loss': expected a number, found 'some'"),
            (["--loss", "nan"], "invalid value for '--loss': expected a number, found 'nan'"),
            (["--nodes", "0"], "invalid value for '--nodes': expected a whole number from 1 to"),
            (["--seconds", "1"], "invalid value for '--seconds': expected a whole number from 5 to"),
            (["--jobs", "x"], "invalid value for '--jobs': expected a whole number from 1 to"),
            (["--rate", "0"], "--rate: expected lines per second, above 0 to 10,000, found 0"),
            (["--rate", "9999", "--seconds", "3600"], "more than 50,000,000 lines; reduce"),
            (["--html", "/no/such/folder/page.html"], "--html: no folder '/no/such/folder'"),
            (["--html", "/"], "--html: /: Is a directory; name a file to write"),
            (["--html", "/proc/page.html"], "--html: /proc/page.html: "),
            (
                ["--replay", "seed.json"],
                "--replay: the scenario in seed.json defines its whole fleet; leave out --nodes",
            ),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["simulate", "--nodes", "20", *arguments]) == 2
        told = capsys.readouterr()
        assert told.err.startswith(f"elf: {said}")
        assert told.err.count("\n") == 1
        assert not told.out


class TestReplay:
    def test_a_kept_scenario_is_told(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "seed.json"
        crash = Crash(at_us=5_000_000, target="master", until_us=7_000_000)
        job = Job(windows=("2 seconds",), start_us=2_000_000, lateness_us=1_000_000)
        kept = Scenario(seed=3, hosts=4, jobs=(job,), faults=(crash,), trouble_us=9_000_000)
        file.write_bytes(kept.encode())
        assert main(["simulate", "--replay", str(file)]) == 0
        told = capsys.readouterr().out.splitlines()
        assert any("crash" in line for line in told)
        assert told[-1].endswith("every window is exact")

    @pytest.mark.parametrize("content", [b"{}", b"[1", b"\xff"])
    def test_another_file_is_refused(
        self, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "other.json"
        file.write_bytes(content)
        assert main(["simulate", "--replay", str(file)]) == 2
        assert capsys.readouterr().err.startswith(f"elf: --replay: {file}: no scenario of a soak (")
        assert main(["simulate", "--replay", str(tmp_path / "none")]) == 2
        assert "No such file" in capsys.readouterr().err

    def test_its_fleet_is_the_scenarios(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["simulate", "--kill", "0", "--replay", "seed.json", "--html", "page.html", "-q"]) == 2
        said = "--replay: the scenario in seed.json defines its whole fleet; leave out --html, --kill"
        assert capsys.readouterr().err == f"elf: {said}\n"


class Strict(HTMLParser):
    """Every tag that opens closes, in order; remembers what could fetch something."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetches: list[tuple[str, Any]] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.fetches += [pair for pair in attrs if pair[0] in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


class TestPage:
    def test_it_is_whole_and_fetches_nothing(self, fleet: Fleet, report: FleetReport, tmp_path: Path) -> None:
        page = fleet_page(fleet, report)
        parser = Strict()
        parser.feed(page)
        assert not parser.open
        assert not parser.fetches
        assert "script" not in parser.counts
        assert parser.counts["svg"] == 3
        for host in fleet.hosts:
            assert f"<title>{host.name}: level" in page
        assert page.count('class="death') == 2 + len(
            {"a master died": 1, "another agent died": 1} if _both(fleet) else {"one kind": 1}
        )

    def test_the_command_writes_it(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "fleet.html"
        assert main(["simulate", "--nodes", "5", "--seconds", "5", "--html", str(file), "-q"]) == 0
        assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
        told = capsys.readouterr()
        assert json.loads(told.out)["plan"]["nodes"] == 5
        assert not told.err

    def test_levels_and_sectors_of_a_tree(self) -> None:
        root, a, b, c, d = (bytes([n]) * 16 for n in range(5))
        found = places({root: None, a: root, b: root, c: a, d: a})
        assert [found[node].depth for node in (root, a, b, c, d)] == [0, 1, 1, 2, 2]
        assert [found[node].leaves for node in (root, a, b, c, d)] == [3, 2, 1, 1, 1]
        assert found[a].turn == pytest.approx(1 / 3)
        assert found[b].turn == pytest.approx(5 / 6)
        assert [found[c].turn, found[d].turn] == pytest.approx([1 / 6, 1 / 2])

    def test_levels_of_a_logarithmic_axis(self) -> None:
        assert decades([3, 180]) == pytest.approx([2, 5, 10, 20, 50, 100, 200])
        assert decades([]) == [1, 10]
        assert decades([7]) == pytest.approx([5, 10])


def _both(fleet: Fleet) -> bool:
    return len({bool(killed.jobs) for killed in fleet.measure.kills}) == 2
