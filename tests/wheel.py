"""Builds the source archive, the wheel from it, installs that in an empty environment and runs one query with it.

`make wheel` runs this; it is no pytest test, since it takes a minute and downloads the dependencies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LOG = b"""\
192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 10 "-" "curl/8"
192.0.2.2 - - [17/May/2015:10:05:43 +0000] "GET /b HTTP/1.1" 404 5 "-" "curl/8"
192.0.2.1 - - [17/May/2015:10:05:47 +0000] "GET /a HTTP/1.1" 200 32 "-" "curl/8"
"""
QUERY = "SELECT status, count(*) AS hits, sum(bytes) AS bytes FROM access GROUP BY status ORDER BY status"
EXPECTED = [{"status": 200, "hits": 2, "bytes": 42}, {"status": 404, "hits": 1, "bytes": 5}]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        check_content(wheel)
        python = install(wheel, Path(folder) / "environment")
        check_query(python.with_name("elf"), Path(folder))
    print(f"{wheel.name}: built from the source archive, installed alone, answers as it should")


def build(folder: Path) -> Path:
    """The wheel, built from the source archive as an installer would build it, but for speed of its kernels."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    environment = os.environ | {"CFLAGS": "-O0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"the build failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    [wheel] = folder.glob("*.whl")
    return wheel


def check_content(wheel: Path) -> None:
    """Every module and kernel of the source tree is in the wheel, reached through the links of src/elf."""
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src" / "elf"
    for folder, _, files in os.walk(source, followlinks=True):
        inside = Path("elf") / Path(folder).relative_to(source)
        for file in files:
            if file.endswith((".py", ".pyi", "py.typed")):
                assert str(inside / file) in names, f"{inside / file} is missing from the wheel"
            if file.endswith(".pyx"):
                stem = str(inside / file.removesuffix("pyx"))
                assert any(n.startswith(stem) and n.endswith(".so") for n in names), (
                    f"no kernel for {stem}pyx"
                )
    unwanted = [name for name in names if name.endswith((".c", ".pyx", ".h", ".pyc"))]
    assert not unwanted, unwanted


def install(wheel: Path, environment: Path) -> Path:
    """The Python of a new environment that holds the wheel and what it asks for, nothing more.

    Only what runs there is compiled to bytecode.
    """
    venv.create(environment)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", str(wheel)], check=True, cwd=environment)
    return python


def check_query(elf: Path, folder: Path) -> None:
    log = folder / "access.log"
    log.write_bytes(LOG)

    def output(*arguments: str) -> str:
        # Away from the source tree, so that nothing of it is imported by accident.
        return subprocess.run(
            [elf, *arguments], check=True, capture_output=True, text=True, cwd=folder
        ).stdout

    rows = [json.loads(line) for line in output("run", QUERY, str(log)).splitlines()]
    assert rows == EXPECTED, rows
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    facts = output("--version")
    assert facts.startswith(f"elf {version}\n"), facts
    assert "compiler:" in facts, facts
    assert output("help", "query").startswith("# The query language\n")


if __name__ == "__main__":
    main()
