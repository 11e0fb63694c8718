"""Runs every benchmark and writes what they print to a report, with the machine and the versions of all who took part.

    python benchmarks/all.py [--runs 5] [--folder /tmp/elf-bench] [--report benchmarks/results.md] [--only mesh.py] [--smoke]

About two and a half hours and 5 GB of disk; with `--smoke` a few minutes. With `--only`, the report keeps what it says of the
other scripts. A target that is missed is told; a result that differs from its peer's ends with exit code 1.
"""

from __future__ import annotations

import ast
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import measure
from peers import PEERS

HERE = Path(__file__).parent
ALONE = (
    "mesh.py",
    "mesh_root.py",
    "mesh_live.py",
    "change.py",
    "light.py",
    "backlog.py",
    "follow.py",
    "sinks.py",
    "memory.py",
    "recovery.py",
    "edge.py",
    "beside_nginx.py",
    "report.py",
    "lake.py",
    "year.py",
)
"""Those that need no generated log."""
SCRIPTS = ("query.py", "peers.py", "grep.py", "spark_logs.py", "cbt.py", "agent.py", *ALONE)
SMOKE_CBT = ("--rows", "100000", "--runs", "1")


def commit() -> str:
    """Which state of the sources was measured, where that can be known."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=10"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def heading() -> str:
    """Where and with what it was measured."""
    packages = [f"{name} {version(name)}" for name in ("duckdb", "numpy", "pyarrow")]
    programs = {peer.program: peer for peer in PEERS.values() if peer.is_present}
    told = [f"{program} {peer.version()}" for program, peer in programs.items()]
    return (
        "# Benchmarks\n\n"
        "Written by `make bench`; each script in `benchmarks/` says at its head how it measures. Seconds are medians, with\n"
        "minimum and maximum; memory is the highest of a process.\n\n"
        f"- Machine: {measure.machine()}, C library {' '.join(platform.libc_ver())}\n"
        f"- elf {version('elf-mesh')}, {', '.join([*packages, *told])}\n"
    )


def options_of(script: str, runs: int, folder: Path, smoke: bool) -> Sequence[str]:
    if script == "cbt.py":
        return SMOKE_CBT if smoke else ("--runs", str(runs))
    if script in ALONE:
        return ["--smoke"] if smoke else ()
    shared = ("--folder", str(folder), *(["--smoke"] if smoke else []))
    return shared if script == "agent.py" else ("--runs", str(runs), *shared)


def section(script: str, options: Sequence[str]) -> tuple[str, bool]:
    """Run one script, showing what it prints; returns its part of the report and whether it ended well."""
    began = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, sources {commit()}"
    purpose = (ast.get_docstring(ast.parse((HERE / script).read_text())) or "").partition("\n")[0]
    lines = []
    process = subprocess.Popen(
        [sys.executable, str(HERE / script), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.rstrip("\n") != measure.machine():  # it stands above all sections
            print(line, end="", flush=True)
            lines.append(line)
    if process.wait():
        lines.append(f"ended with exit code {process.returncode}\n")
    text = "".join(lines).strip("\n")
    return f"## {script}\n\n{purpose}\n\nMeasured {began}.\n\n```text\n{text}\n```\n", process.returncode == 0


def sections(report: Path | None) -> dict[str, str]:
    """What an earlier report says of each script."""
    if report is None or not report.exists():
        return {}
    parts = re.split(r"^(?=## )", report.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {part.split("\n", 1)[0].removeprefix("## "): part for part in parts}


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--report", type=Path, help="where the report goes (default: nowhere)")
    parser.add_argument("--only", default=",".join(SCRIPTS), help="the scripts to run (default: all)")
    options = parser.parse_args()
    told, failed = sections(options.report), []
    print(heading(), flush=True)
    for script in options.only.split(","):
        print(f"\n{script}", flush=True)
        told[script], well = section(script, options_of(script, options.runs, options.folder, options.smoke))
        if not well:
            failed.append(script)
        if options.report:
            whole = [heading(), *(told[each].rstrip("\n") + "\n" for each in SCRIPTS if each in told)]
            options.report.write_text("\n".join(whole), encoding="utf-8")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
