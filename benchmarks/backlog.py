"""An agent that begins with an old log of very many windows: whether its sink gets each of them, and how fast.

    python benchmarks/backlog.py [--smoke] [--windows 20000]

An agent without a mesh reads a log of so many minutes, three lines in each, of which it retains an hour, and writes the windows
on its standard output, or into a lake. Measured from the start of the process until all windows are there but the last, which are
not final yet; each must have the rows that `elf run` gives for the file.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import measure

MINUTE_S = 60
OPEN = 5
"""The last windows, whose lateness is not over when the log ends."""
SQL = "SELECT window, count(*) AS hits, sum(bytes) AS bytes FROM access GROUP BY window(time, '1 minute')"
CONFIG = """\
[agent]
name = "bench"
state_dir = "state"

[[source]]
name = "access"
path = "access.log"
format = "combined"
start = "beginning"

[[sink]]
name = "out"
{sink}

[[job]]
name = "hits"
sql = "{sql}"
lateness = "1m"
sinks = ["out"]
"""
PATIENCE_S = 60.0
Windows = dict[str, tuple[int, int]]


def write_log(path: Path, windows: int) -> None:
    """The log ends a week ago."""
    begin = int(time.time()) // MINUTE_S * MINUTE_S - 7 * 86_400 - windows * MINUTE_S
    with path.open("w") as file:
        for number in range(3 * windows):
            at = datetime.fromtimestamp(begin + 20 * number, UTC)
            file.write(
                f'192.0.2.{number % 250} - - [{at:%d/%b/%Y:%H:%M:%S +0000}] "GET /p/{number % 50} HTTP/1.1" '
                f'200 {number % 1000} "-" "-"\n'
            )


def rows_of(text: str) -> Windows:
    """The hits and bytes of each window, by its start."""
    found = {}
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            row: dict[str, Any] = json.loads(line)
            found[row["window"]["start"]] = row["hits"], row["bytes"]
    return found


def elf(folder: Path, *about: str) -> str:
    return subprocess.run(
        [measure.ELF, *about], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def printed(folder: Path) -> Windows:
    return rows_of((folder / "out").read_text())


def stored(folder: Path) -> Windows:
    with suppress(subprocess.CalledProcessError):  # no lake yet
        return rows_of(elf(folder, "report", "lake", "--every", "1m", "--output", "json"))
    return {}


def count_printed(folder: Path) -> int:
    return (folder / "out").read_bytes().count(b"\n")


def count_stored(folder: Path) -> int:
    with suppress(subprocess.CalledProcessError, ValueError):
        return int(json.loads(elf(folder, "lake", "show", "lake", "--output", "json"))["windows"])
    return 0


def measured(
    windows: int, sink: str, count: Callable[[Path], int], read: Callable[[Path], Windows], look_s: float
) -> tuple[float, bool]:
    """Windows a second, and whether the sink has what `elf run` gives. look_s: how often to count."""
    with tempfile.TemporaryDirectory(prefix="elf-backlog-") as name:
        folder = Path(name)
        write_log(folder / "access.log", windows)
        (folder / "elf.toml").write_text(CONFIG.format(sink=sink, sql=SQL))
        wanted = rows_of(elf(folder, "run", SQL, "access.log", "--format", "combined", "--output", "json"))
        assert len(wanted) == windows
        with (folder / "out").open("wb") as out:
            agent = subprocess.Popen(
                [measure.ELF, "agent", "run", "-c", "elf.toml"],
                cwd=folder,
                stdout=out,
                stderr=subprocess.DEVNULL,
            )
            began = last = time.monotonic()
            seen = 0
            try:
                while seen < windows - OPEN and time.monotonic() - last < PATIENCE_S:
                    time.sleep(look_s)
                    if (now := count(folder)) > seen:
                        seen, last = now, time.monotonic()
            finally:
                agent.send_signal(signal.SIGTERM)
                agent.wait()
        found = read(folder)
    closed = sorted(wanted)[: windows - OPEN]
    is_exact = all(found.get(start) == wanted[start] for start in closed) and found.items() <= wanted.items()
    return seen / (last - began), is_exact


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="small: does it still work?")
    parser.add_argument("--windows", type=int, default=20_000)
    options = parser.parse_args(arguments)
    windows = 300 if options.smoke else options.windows
    print(measure.machine())
    print(f"\nAn agent that begins with a log of {windows:,} windows of a minute")
    wrong = 0
    for name, sink, *about in (
        ("on standard output", 'console = "json"', count_printed, printed, 0.2),
        ("into a lake", 'parquet = "lake"', count_stored, stored, 2.0),
    ):
        rate, is_exact = measured(windows, str(sink), *about)  # type: ignore[arg-type]
        print(
            f"  {name:20} {rate:7.0f} windows/s; equal to elf run: {'yes' if is_exact else 'NO'}", flush=True
        )
        wrong += not is_exact
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
