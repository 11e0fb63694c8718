"""Real agents on loopback with keys: two processes with one key, machines that were cloned, wiped or restored from a backup."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from elf.agent.control import protocol as w
from elf.errors import ElfError
from elf.srt.messages.results import Put
from tests.rigs.agents.mesh_rig import SQL, Agent, Fleet, free_ports, line, wait_until
from tests.rigs.agents.seen import Seen, Totals

ONE_KEY = "two agents run with one key"


@contextmanager
def twin_of(fleet: Fleet, number: int, *, clone: bool = False) -> Iterator[Agent]:
    """Another process with the key of that agent, on another port, beside a log of its own; `clone`: with a copy of its state."""
    original = fleet.agents[number]
    twin = Agent(fleet.folder / "twin", "twin", port := free_ports(1)[0], fleet._config(number, "twin", port))
    if clone:
        shutil.copytree(
            original.folder / "state", twin.folder / "state", ignore=shutil.ignore_patterns("*.sock")
        )
    twin.start()
    try:
        yield twin
    except AssertionError as error:
        error.add_note(f"--- twin said ---\n{twin.said()}")
        raise
    finally:
        if twin.is_running:
            twin.kill()


def status(at: Agent) -> w.Status:
    """What `elf mesh status` shows there; nothing while the agent begins anew."""
    with suppress(ElfError):
        answer = at.ask(w.MeshStatus())
        assert isinstance(answer, w.Status)
        return answer
    return w.Status("", (), ())


def member(at: Agent, name: str) -> w.Member | None:
    return next((each for each in status(at).members if each.name == name), None)


def problems(at: Agent) -> str:
    return "\n".join(status(at).problems)


def wait_problem(at: Agent, text: str) -> str:
    """Until `elf mesh status` there says that; all that it said then. A later status may lack the answer of a busy agent."""
    said = ""

    def is_said() -> bool:
        nonlocal said
        said = problems(at)
        return text in said

    wait_until(is_said, f"elf mesh status at {at.name} does not say {text}")
    return said


def has_said(agent: Agent, *texts: str) -> bool:
    """Whether its log says all of it."""
    return all(text in agent.said() for text in texts)


def test_a_twin_of_a_living_agent_is_refused_and_named(tmp_path: Path) -> None:
    with Fleet(tmp_path, 3, security="curve", seeds=3) as fleet:
        a0, a1, _ = fleet.agents
        fleet.start_job("hits")
        with fleet.watch("hits") as seen:
            with fleet.traffic():
                seen.wait_finals()
                with twin_of(fleet, 1) as twin:
                    twin.write([line(time.time(), 200, 1)])
                    both = f"one at 127.0.0.1:{a1.port}, and one at 127.0.0.1:{twin.port}"
                    for at in (a0, twin):
                        said = wait_problem(at, both)
                        assert "elf keys issue" in said
                        assert said.count(ONE_KEY) == 1
                    for agent in (twin, a0, a1):
                        wait_until(partial(has_said, agent, both, "elf keys issue"), f"{agent.name} does not")
                    seen.wait_finals(3)
                    wait_until(lambda: is_itself(a0, a1), "it is not itself")
                    assert member(a0, "twin") is None
            assert fleet.settled(seen) == fleet.counted()


def is_told(first: Agent, second: Agent, *where: Agent) -> bool:
    """Whether the logs of these say who the two are, and that the second one is refused."""
    both = f"one at 127.0.0.1:{first.port}, and one at 127.0.0.1:{second.port}, which is refused"
    return all(both in agent.said() for agent in where)


def test_a_clone_waits_while_the_original_lives_and_goes_in_when_it_is_killed(tmp_path: Path) -> None:
    with Fleet(tmp_path, 3, security="curve", seeds=3) as fleet:
        a0, a1, _ = fleet.agents
        fleet.start_job("hits")
        with fleet.watch("hits", at=0) as seen:
            with fleet.traffic():
                seen.wait_finals()
                with twin_of(fleet, 1, clone=True) as twin:
                    wait_problem(a0, ONE_KEY)
                    wait_problem(twin, ONE_KEY)
                    wait_until(lambda: is_told(a1, twin, twin, a0), "the logs do not say it")
                    told = seen.finals
                    seen.wait_finals(3)
                    wait_until(lambda: is_itself(a0, a1), "it is not itself")
                    whole = finals(seen)[: told + 3]
                    assert {(put.agents_reporting, put.agents_expected) for put in whole} == {(3, 3)}
                    a1.kill()
                    wait_until(lambda: is_itself(a0, twin), "the clone does not go in")
                    wait_until(lambda: ONE_KEY not in problems(twin), "it says that it waits")
                a1.start()
                for each in fleet.agents:
                    wait_until(partial(is_itself, each, a1), f"not itself again at {each.name}")
                seen.wait_finals(2)
            assert_exact_or_told(fleet.settled(seen), fleet, seen)


def test_a_clone_that_went_in_while_the_original_stood_still_is_the_one_that_stays(tmp_path: Path) -> None:
    with Fleet(tmp_path, 3, security="curve", seeds=3) as fleet:
        a0, a1, a2 = fleet.agents
        fleet.start_job("hits")
        with fleet.watch("hits", at=0) as seen:
            with fleet.traffic():
                seen.wait_finals()
                a1.signal(signal.SIGSTOP)
                with twin_of(fleet, 1, clone=True) as twin:
                    # At both: were it admitted by one only, the agent with the higher instance would stay.
                    wait_until(
                        lambda: all(answers(each, twin) for each in (a0, a2)), "the clone is not let in"
                    )
                    a1.signal(signal.SIGCONT)
                    wait_problem(a1, ONE_KEY)
                    wait_until(lambda: is_told(twin, a1, a1, a0), "the logs do not say it")
                    wait_problem(a1, f"127.0.0.1:{twin.port}")
                    # The original, continued, refutes its death before it is refused: the clone restarts above that life.
                    wait_until(lambda: is_itself(a0, twin), "the clone does not stay")
                for each in fleet.agents:
                    wait_until(partial(is_itself, each, a1), f"not itself again at {each.name}")
                seen.wait_finals(2)
            assert_exact_or_told(fleet.settled(seen), fleet, seen)


def test_an_agent_that_restarts_wiped_is_let_in_and_nobody_speaks_of_two(tmp_path: Path) -> None:
    with Fleet(tmp_path, 3, security="curve", seeds=3) as fleet:
        a1 = fleet.agents[1]
        fleet.start_job("hits")
        with fleet.watch("hits") as seen:
            with fleet.traffic():
                seen.wait_finals()
                a1.kill()
                a1.start()
                fleet.wait_joined()
                a1.kill()
                shutil.rmtree(a1.folder / "state")
                a1.start()
                fleet.wait_joined()
                seen.wait_finals()
            assert fleet.settled(seen) == fleet.counted()
        assert ONE_KEY not in "".join(agent.said() for agent in fleet.agents)


def test_who_was_stopped_and_replaced_gives_way_and_is_itself_again_when_the_other_is_gone(
    tmp_path: Path,
) -> None:
    def lake(number: int) -> str:
        return '[[sink]]\nname = "lake"\nparquet = "lake"\n' if number == 1 else ""

    with Fleet(tmp_path, 3, security="curve", seeds=3, more=lake) as fleet:
        a0, a1, _ = fleet.agents
        fleet.start_job("hits", SQL, "--sink", "lake")
        with fleet.watch("hits") as seen:
            with fleet.traffic():
                seen.wait_finals()
                a1.signal(signal.SIGSTOP)
                with twin_of(fleet, 1) as twin:
                    wait_until(lambda: member(a0, "twin") is not None, "the twin is not let in")
                    a1.signal(signal.SIGCONT)
                    assert f"127.0.0.1:{twin.port}" in wait_problem(a1, ONE_KEY)
                for each in fleet.agents:
                    wait_until(partial(is_itself, each, a1), f"not itself again at {each.name}")
                # The others show that they refused it until it has dialed each of them.
                wait_until(
                    lambda: f"{a1.port}, which is refused" not in problems(a1), "still said to be refused"
                )
                had = len(lake_files(a1))
                wait_until(lambda: len(lake_files(a1)) > had, "its lake gets nothing")
            assert fleet.settled(seen) == fleet.counted()


def test_a_folder_restored_from_a_backup_counts_as_lost(tmp_path: Path) -> None:
    with Fleet(tmp_path, 3, security="curve", seeds=3) as fleet:
        a1 = fleet.agents[1]
        backup = tmp_path / "backup"
        fleet.start_job("hits")
        with fleet.watch("hits") as seen:
            with fleet.traffic():
                seen.wait_finals()
                a1.kill()
                shutil.copytree(a1.folder / "state", backup, ignore=shutil.ignore_patterns("*.sock"))
                a1.start()
                fleet.wait_joined()
                seen.wait_finals()
                a1.kill()
                shutil.rmtree(a1.folder / "state")
                shutil.copytree(backup, a1.folder / "state")
                a1.start()
                wait_until(lambda: "counts as lost" in a1.said(), "nobody notices the backup")
                for each in fleet.agents:
                    wait_until(partial(is_itself, each, a1), f"not itself again at {each.name}")
                seen.wait_finals()
            assert fleet.settled(seen) == fleet.counted()
        assert a1.said().count("counts as lost") == 1
        assert ONE_KEY not in "".join(agent.said() for agent in fleet.agents)


def test_two_keys_on_one_file_are_named_and_its_lines_count_for_each(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 3, security="curve")
    a0, a1, _ = fleet.agents
    a1.log.unlink()
    a1.log.symlink_to(a0.log)
    with fleet:
        fleet.start_job("hits")
        with fleet.watch("hits") as seen:
            now_s = time.time()
            a0.write([line(now_s, 200, 5), line(now_s, 404, 7)])
            fleet.last_s = now_s
            seen.wait(lambda: seen.totals() == fleet.counted() != {})
        for each in fleet.agents:
            said = wait_problem(each, "read one file")
            assert f"a0 and a1 read one file: {a0.log}" in said
            assert said.count("read one file") == 1
        ((_, row),) = fleet.counted().items()
        assert row == {200: (2, 10), 404: (2, 14)}


def finals(seen: Seen) -> list[Put]:
    return [put for _, put in sorted(seen.latest.items()) if put.status != "open"]


def assert_exact_or_told(totals: Totals, fleet: Fleet, seen: Seen) -> None:
    """No line counts twice, and a window that lacks one says that an agent is missing."""
    for start, row in fleet.counted().items():
        put, has = seen.latest[start], totals[start]
        for status, (hits, size) in has.items():
            most = row.get(status, (0, 0))
            assert hits <= most[0], (start, has, row)
            assert size <= most[1], (start, has, row)
        assert has == row or put.agents_reporting < put.agents_expected, (start, has, row)


def is_itself(at: Agent, agent: Agent) -> bool:
    """Whether that agent is known there by its name, at its address, and alive."""
    found = member(at, agent.name)
    return found is not None and (found.state, found.address) == ("alive", f"127.0.0.1:{agent.port}")


def answers(at: Agent, agent: Agent) -> bool:
    """Whether that agent answers there, and so has been admitted."""
    found = member(at, agent.name)
    return is_itself(at, agent) and found is not None and found.version is not None


def lake_files(agent: Agent) -> list[Path]:
    return list((agent.folder / "lake").rglob("*.parquet"))
