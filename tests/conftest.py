"""Shared fixtures, and the marks by which `make quick` chooses tests.

One Spark session serves the whole run: starting a JVM costs seconds. Tests in `tests/system/` start processes, tests with the
fixture `spark` need Spark; other tests and modules carry their marks themselves. A test without the mark `process` fails if it
starts a process or listens; where tests with it are left out, also if it connects. So the marks stay true.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import current_thread, main_thread
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from elf.errors import ElfError
from tests.rigs.agents.zygote import Zygote
from tests.rigs.lakes.spark import as_users_have_it, for_small_queries
from tests.rigs.lakes.warm_writer import WarmWriters
from tests.rigs.paths import ROOT
from tests.soak.examples import ALL, draw_fewer

settings.register_profile(  # a busy machine is no failure
    "elf", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("elf")

SYSTEM = Path(__file__).parent / "system"
PROGRAMS = {"test_benchmarks.py", "test_command.py", "test_deploy.py", "test_torture.py", "test_wire_root.py"}
STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
COLLECT = 100_000, 20, 100
"""Thresholds of garbage collection: at the usual ones a simulation spends a tenth of its time in it, and hardly any garbage."""
CONNECTS = {"socket.bind", "socket.connect"}
"""Audit events. The address of a Unix socket, which is no network, is a path."""
running = SimpleNamespace(is_quick=False)
"""Whether a test runs that needs no process, no network and no Spark, and is not slow."""
users_settings: dict[str, str] = {}
"""Of the Spark session, where tests change them."""


def pytest_configure(config: pytest.Config) -> None:
    """Refuse processes and sockets in tests without the mark. Where tests with it run too, only what the test's own thread does
    counts, and connections do not: what earlier tests have left behind may connect, as Spark's client does to free memory."""
    runs_all = "not process" not in config.getoption("markexpr")

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in STARTS | CONNECTS or not running.is_quick:
            return
        if event in CONNECTS and isinstance(arguments[1], str | bytes):
            return
        if runs_all and (event == "socket.connect" or current_thread() is not main_thread()):
            return
        pytest.fail(f"{event} {arguments!r}: this test needs pytest.mark.process")

    sys.addaudithook(refuse)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    running.is_quick = not any(item.get_closest_marker(mark) for mark in ("process", "spark", "slow"))
    result = yield
    running.is_quick = False
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The processes of `-n auto`: one for each core, and one more where tests start agents and programs, which mostly wait."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if "not process" in config.getoption("markexpr") else cores + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """All processes of xdist collect all tests. Each imports its share first, so a fresh clone compiles each module once."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count == 1 or sys.dont_write_bytecode:
        return
    named = {Path(argument.partition("::")[0]).absolute() for argument in session.config.args}
    modules = {path: path.stat().st_size for each in named for path in _modules(each)}
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    for path in sorted(modules, key=lambda path: (modules[path], path))[number::count]:
        with suppress(Exception, pytest.skip.Exception):  # collection tells which and why
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks by folder and fixture, and groups of tests that share one process of xdist. Large groups start first. Property tests
    draw a share of their examples.

    spark: one session serves them. agents: each test starts several agents, which wait more than they work, so it runs beside
    tests that only compute and not beside as many agents again; half of the processes run them, a module always the same one.
    programs: they run programs that wait by themselves, for seconds, and no clock of a test measures these.
    """
    if not ALL:
        draw_fewer(items)
    halves = max(1, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) // 2)
    for item in items:
        if item.path.is_relative_to(SYSTEM):
            item.add_marker(pytest.mark.process)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif item.path.name in PROGRAMS:
            item.add_marker(pytest.mark.xdist_group("programs"))
        elif item.path.is_relative_to(SYSTEM) or _starts_agents(item):
            item.add_marker(pytest.mark.xdist_group(f"agents{crc32(item.path.name.encode()) % halves}"))


def pytest_collection_finish() -> None:
    """Thousands of tests and modules live to the end: leave them out of each collection, and collect rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT)


def _modules(path: Path) -> list[Path]:
    return list(path.rglob("test_*.py")) if path.is_dir() else [path] * path.exists()


def _starts_agents(item: pytest.Item) -> bool:
    fleet = getattr(getattr(item, "module", None), "Fleet", None)
    return getattr(fleet, "__module__", "") == "tests.rigs.agents.mesh_rig"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The shared local Spark session (UTC, ANSI off), for small queries. Skips where pyspark or Java is missing, never in CI."""
    try:
        from elf.sinks.report.spark import session

        running = session(None, "elf-tests")
    except ElfError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    users_settings.update(for_small_queries(running))
    yield running
    running.stop()


@pytest.fixture
def generated_code(spark: Any) -> Iterator[None]:
    """The shared session as `elf report` has it: with generated code, and several tasks."""
    with as_users_have_it(spark, users_settings):
        yield


@pytest.fixture(autouse=True, scope="session")
def warm_agents() -> Iterator[None]:
    """Agents of the rig are forked from one process for each process of xdist, which imports what they import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.rigs.agents.mesh_rig.warm", Zygote())
        yield


@pytest.fixture(autouse=True, scope="session")
def warm_writers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Writers of lakes that tests start themselves are forked from one process, too, unless tests with processes are left out."""
    with pytest.MonkeyPatch.context() as patch:
        if "not process" not in request.config.getoption("markexpr"):
            popen = WarmWriters().popen
            patch.setattr(
                "elf.sinks.lake.parquet.subprocess", SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE)
            )
        yield


@pytest.fixture
def bare_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers of lakes are processes of `python -m elf.sinks.lake.writer`, with this one's limits."""
    monkeypatch.setattr("elf.sinks.lake.parquet.subprocess", subprocess)


@pytest.fixture
def bare_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of the rig are processes of `python -m elf`."""
    monkeypatch.setattr("tests.rigs.agents.mesh_rig.warm", None)


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither read nor write the user's cache."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()
