"""The soak: a broken core's seeds are kept as found, shrunk and printed; Ctrl-C keeps what was found; wrong arguments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from elf.agent.simulator.run import simulate
from elf.agent.simulator.scenario.scenario import SECOND, Reader, Stop, decode
from elf.jobmaster.master.intake import Intake
from tests.soak import shrink as shrinking
from tests.soak import soak as soaking
from tests.soak.census import RARE, WAYS
from tests.soak.choice import WANTED, WANTED_RARE, Ran, choose, missing, wanted
from tests.soak.drawn import random_scenario
from tests.soak.kept import KEPT, whole, with_one_job
from tests.soak.shrink import kind_of, without_host, without_job
from tests.soak.soak import kept, main, soak

pytestmark = pytest.mark.slow

BREAK = """\
from elf.jobmaster.master.intake import Intake
right = Intake._accept
Intake._accept = lambda self, child, bundle: (right(self, child, bundle), right(self, child, bundle))
"""


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master counts each bundle twice; the pool's processes are forks, so theirs do too."""
    monkeypatch.setattr(
        Intake, "_accept", lambda self, child, bundle, real=Intake._accept: (
            real(self, child, bundle), real(self, child, bundle),
        ),
    )  # fmt: skip
    monkeypatch.setattr(shrinking, "RUNS_MAX", 6)


@pytest.mark.usefixtures("broken")
def test_what_fails_is_kept_as_found_shrunk_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert soak(0, tmp_path / "kept", 3, batch=2) == 2
    told = capsys.readouterr().out
    assert "2 seeds, 2 failed" in told
    for seed in (3, 4):
        path = tmp_path / "kept" / f"seed-{seed}.json"
        found, short = (
            decode(path.read_bytes()),
            decode((path.parent / f"seed-{seed}-short.json").read_bytes()),
        )
        assert found == random_scenario(seed)
        assert len(short.encode()) < len(found.encode())
        assert kind_of(simulate(short).violation) == kind_of(simulate(found).violation)
        text = (path.parent / f"seed-{seed}-short.txt").read_text()
        assert "\n".join(text.splitlines()[-soaking.SHOWN :]) in told


@pytest.mark.usefixtures("broken")
def test_no_more_seeds_are_shrunk_than_one_mistake_is_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soaking, "SHRUNK_MAX", 1)
    assert soak(0, tmp_path, 3, batch=2) == 2
    assert len(list(tmp_path.glob("seed-?.json"))) == 2
    assert len(list(tmp_path.glob("seed-*-short.json"))) == 1


@pytest.mark.usefixtures("broken")
def test_one_seed_is_kept_when_asked(tmp_path: Path) -> None:
    assert main(["--keep", "3", str(tmp_path)]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "seed-3-short.json",
        "seed-3-short.txt",
        "seed-3.json",
    ]


def test_a_seed_that_is_exact_is_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--keep", "3", str(tmp_path / "kept")]) == 0
    assert capsys.readouterr().out == "seed 3: every window is exact; nothing is kept\n"
    assert not (tmp_path / "kept").exists()


@pytest.mark.process
def test_a_kept_scenario_that_fails_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    path = min(KEPT, key=lambda each: len(whole(each).faults) + whole(each).hosts)
    assert kept([path]) == 0
    assert capsys.readouterr().out == "1 kept scenarios, 0 failed\n"


def test_a_large_scenario_has_one_job_in_the_tests() -> None:
    scenarios = [whole(path) for path in KEPT]
    large = [each for each in scenarios if with_one_job(each) != each]
    assert 0 < len(large) < len(scenarios)
    assert {len(with_one_job(each).jobs) for each in large} == {1}
    assert all(with_one_job(each).hosts == each.hosts for each in large)


def test_what_names_a_job_or_a_host_goes_with_it_or_moves_up() -> None:
    plain = random_scenario(3)
    job = plain.jobs[0]
    readers = tuple(Reader(host=at, job=at, from_us=SECOND) for at in range(3))
    stops = tuple(Stop(at_us=SECOND, host=0, job=at) for at in range(3))
    scenario = msgspec.structs.replace(
        plain, hosts=5, jobs=(job, job, job), faults=stops, readers=readers, older=(1, 2)
    )
    short = without_job(scenario, 1)
    assert [each.job for each in short.readers] == [0, 1]
    assert [fault.job for fault in short.faults if isinstance(fault, Stop)] == [0, 1]
    short = without_host(scenario, 1)
    assert [each.host for each in short.readers] == [0, 1]
    assert short.older == (1,)


def test_ctrl_c_ends_it_with_the_sum_and_keeps_what_was_found(tmp_path: Path) -> None:
    program = f"{BREAK}import sys\nfrom tests.soak.soak import main\nsys.exit(main(sys.argv[1:]))"
    soaking = subprocess.Popen(
        [sys.executable, "-c", program, "3600", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert soaking.stdout is not None
    assert soaking.stdout.readline().startswith("seeds from ")
    seed = soaking.stdout.readline().split()[1].rstrip(":")
    os.killpg(soaking.pid, signal.SIGINT)  # as a terminal does
    told, wrong = soaking.communicate(timeout=300)
    assert soaking.returncode == 1
    assert told.splitlines()[-1].startswith("stopped; ")
    assert not wrong
    assert decode((tmp_path / f"seed-{seed}.json").read_bytes()) == random_scenario(int(seed))


def test_where_nothing_shorter_fails_in_the_same_way_any_way_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = random_scenario(3)
    another = msgspec.structs.replace(simulate(scenario), violation="another one")
    monkeypatch.setattr(shrinking, "simulate", lambda candidate: another)
    short = shrinking.shrink_alike(scenario, "the one", 60)
    assert len(short.faults) < len(scenario.faults)
    assert shrinking.shrink_alike(scenario, "the one", 0) == scenario


def test_a_violations_kind_is_its_text_without_numbers_and_ids() -> None:
    one = "job 0c56df version 3e4be5 window 1700000001000000 revision 1.ab12cd.3: /p/3 has 5 lines, 4 were written by then"
    other = "job 9a1f02 version 77abcd window 1700000014000000 revision 12.00ffee.1: /p/17 has 15 lines, 0 were written by then"
    assert kind_of(one) == kind_of(other)
    assert kind_of("web1: 5 children") == kind_of("web12: 4 children")
    assert kind_of("web1: AssertionError at tree.py:35") != kind_of("web1: AssertionError at tree.py:80")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["1.5", "kept"], "SECONDS: expected a whole number from 1 on, found '1.5'"),
        (["0", "kept"], "SECONDS: expected a whole number from 1 on, found '0'"),
        (["--keep", "x", "kept"], "SEED: expected a whole number from 0 on, found 'x'"),
        (["--stats", "0", "0"], "COUNT: expected a whole number from 1 on, found '0'"),
        (["--again", "seed-1.json"], "wrong arguments"),
        ([], "wrong arguments"),
    ],
)
def test_wrong_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"soak: {said}; usage: {soaking.USAGE}\n"


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["1", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith(f"soak: {tmp_path / 'file'}: ")


def test_seeds_are_chosen_that_have_all_for_the_least_time() -> None:
    runs = {
        1: Ran(1.0, frozenset("a")),
        2: Ran(1.5, frozenset("ab")),
        3: Ran(9.0, frozenset("abc")),
        4: Ran(2.0, frozenset("c")),
        5: Ran(0.1, frozenset("x")),
    }
    assert choose(runs, {"a": 1, "b": 1}) == [2]
    assert choose(runs, {"a": 2, "b": 1, "c": 1}) == [1, 2, 4]
    assert choose(runs, {"a": 3, "b": 1}) == [1, 2, 3]
    assert choose(runs, {"a": 1, "d": 1}) == [1], "what never occurs is no reason to take more"
    assert missing(runs, [1], {"a": 1, "d": 1}) == {"d": 0}
    assert wanted([Ran(1.0, frozenset({"fault: crash", "notice: disk"}))]) == dict.fromkeys(
        WAYS, WANTED
    ) | dict.fromkeys(RARE, WANTED_RARE) | {"fault: crash": 1}


def test_the_choice_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--choose", "3", "2"]) == 0
    chosen, total, *few = capsys.readouterr().out.splitlines()
    assert chosen == "3, 4"
    assert total.startswith("2 of 2 seeds, ")
    assert any(each.endswith("instead of 6") for each in few)
