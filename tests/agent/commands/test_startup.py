"""The start and the end of the process `elf`: what is imported, and what happens last. Each in an interpreter of its own."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from elf.version import version

pytestmark = pytest.mark.process

LINE = '192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 7 "-" "curl/8"\n'
RUN = ("run", "SELECT status, count(*) AS n FROM access GROUP BY status", "a.log", "--output", "json", "-q")


def python(program: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"XDG_CACHE_HOME": str(folder)},
        timeout=300,
    )


def test_a_query_asked_again_needs_neither_typer_nor_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(LINE)
    program = (
        "import sys; from elf.__main__ import main; code = main(sys.argv[1:]); "
        "print(sorted({'typer', 'sqlglot', 'rich', 'numpy.ma.core', 'numpy._typing', 'zoneinfo', 'tempfile', 'sortedcontainers',"
        " 'subprocess'} & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    first, again = (python(program, tmp_path, *RUN) for _ in range(2))
    assert json.loads(first.stdout) == json.loads(again.stdout) == {"status": 200, "n": 1}
    assert "sqlglot" in first.stderr
    assert (again.returncode, again.stderr) == (0, "[]\n")


def test_a_command_that_changes_a_job_needs_no_numpy(tmp_path: Path) -> None:
    """All that `elf job update` imports, and the compiler at work."""
    program = (
        "import sys; from elf.__main__ import main; main(['job', 'update', 'hits', '--sql', 'SELECT 1', '--agent', 'none'])\n"
        "from elf.agent.commands.jobs import change, stop\n"
        "from elf.agent.formats.presets import COLUMN_TYPES\n"
        "from elf.jobmaster.compile.query import compile\n"
        "plan = compile(sys.argv[1], {'access': COLUMN_TYPES})\n"
        "print(len(plan.keys), sorted({'numpy', 'pyarrow', 'rich', 'zmq', 'asyncio'} & set(sys.modules)))"
    )
    query = "SELECT path, approx_percentile(bytes, 0.9) AS p FROM access WHERE path LIKE '/a%' GROUP BY path"
    done = python(program, tmp_path, query)
    assert (done.returncode, done.stdout) == (0, "1 []\n")
    assert "none" in done.stderr


def test_what_is_left_out_is_as_if_untouched_afterwards(tmp_path: Path) -> None:
    program = (
        "from elf.agent.host.startup import light_imports; light_imports(); import sys, threading\n"
        "assert 'numpy._core._add_newdocs' not in sys.modules and 'typing_extensions' not in sys.modules\n"
        "assert 'Threads:\\t1\\n' in open('/proc/self/status').read(), 'threads of the BLAS'\n"
        "import numpy.typing; assert 'numpy._typing' not in sys.modules and numpy.typing.NDArray[int] | None\n"
        "from numpy.typing import ArrayLike, DTypeLike; assert 'numpy._typing' in sys.modules\n"
        "assert numpy.typing is sys.modules['numpy.typing'] and numpy.typing.ArrayLike is ArrayLike\n"
        "assert numpy.unique(numpy.array([2, 1, 2])).tolist() == [1, 2] and 'numpy.ma.core' not in sys.modules\n"
        "assert not hasattr(sys.modules['ast'], '__file__') and not hasattr(sys.modules['msgspec.inspect'], '__file__')\n"
        "import ast, msgspec, msgspec.inspect; from msgspec.inspect import ListType, type_info\n"
        "assert isinstance(msgspec.inspect.type_info(list), ListType) and ast.literal_eval('[1]') == [1]\n"
        "assert type_info is msgspec.inspect.type_info is sys.modules['msgspec.inspect'].type_info\n"
        "class Names(ast.NodeVisitor): pass\n"
        "import functools, inspect, pickle; from ipaddress import ip_address\n"
        "async def later(): pass\n"
        "class Of:\n"
        "    async def later(self): pass\n"
        "    def now(self): yield\n"
        "asked = [later, Of().later, Of().now, Of, len]; has = inspect.iscoroutinefunction\n"
        "assert [has(each) for each in asked[:3]] == [True, True, False] and inspect.isgenerator(Of().now())\n"
        "assert 'dis' not in sys.modules and '_pickle' not in sys.modules and ip_address('::1').is_loopback\n"
        "assert [has(each) for each in [*asked, functools.partial(later)]] == [True, True, False, False, False, True]\n"
        "assert inspect.cleandoc(' a\\n  b') == 'a\\nb' and len(inspect.signature(numpy.linalg.norm).parameters) == 4\n"
        "assert pickle.loads(pickle.dumps(numpy.arange(3))).tolist() == [0, 1, 2] and 'dis' in sys.modules\n"
        "assert 'numpy.linalg' == inspect.getmodule(numpy.linalg).__name__\n"
        "assert not isinstance(numpy.zeros(1), numpy.ma.MaskedArray) and 'numpy.ma.core' in sys.modules\n"
        "import numpy.ma, numpy.linalg, numpy.testing, hashlib\n"
        "numpy.testing.assert_array_equal(numpy.ma.masked_equal([1, 2], 1).filled(0) @ numpy.eye(2), [0, 2])\n"
        "print(hashlib.sha256(b'').hexdigest()[:8])"
    )
    done = python(program, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "e3b0c442\n", "")


def test_an_agent_of_a_mesh_is_free_of_what_it_does_not_use(tmp_path: Path) -> None:
    (tmp_path / "elf.toml").write_text(
        '[agent]\nname = "a"\nlisten = "127.0.0.1:1"\nsecurity = "none"\nstate_dir = "state"\n'
    )
    unused = "typer importlib.metadata email zipfile ssl _ssl http sqlglot rich pyarrow unittest dis _pickle "
    unused += "zoneinfo sysconfig elf.sinks.lake elf.agent.run"
    program = (
        "import sys; from elf.agent.host import startup; from elf.__main__ import main\n"
        "import elf.agent.commands.process.signals\n"
        "def serve(*given):\n"
        "    import asyncio\n"
        "    with asyncio.Runner(loop_factory=sys.modules['uvloop'].new_event_loop) as runner:\n"
        "        print(runner.run(asyncio.sleep(0, 7)), sorted(set(sys.argv[1].split()) & set(sys.modules)))\n"
        "startup_loop = startup.light_event_loop\n"
        "def light(**given):\n"
        "    startup_loop(**given); import elf.agent.host.process as process; process.serve_mesh = serve\n"
        "startup.light_event_loop = light\n"
        "sys.exit(main(['agent', 'run', '-c', 'elf.toml']))"
    )
    done = python(program, tmp_path, unused)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7 []\n", "")


def test_the_process_ends_with_its_code_and_after_what_others_want_done(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(LINE)
    program = (
        "import atexit, sys; from elf.__main__ import start; atexit.register(print, 'last'); "
        "sys.argv[0] = 'elf'; start()"
    )
    done = python(program, tmp_path, *RUN)
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"status":200,"n":1}\nlast\n', "")
    assert python(program, tmp_path, "run", RUN[1], "none.log").returncode == 2
    assert python(program, tmp_path, "--no-such-option").returncode == 2


def test_the_version_is_that_of_the_package() -> None:
    assert version() == importlib.metadata.version("elf-mesh")
