"""A live query, `elf run --follow`: how soon it shows something, how fast it catches up, what it costs while it runs.

    python benchmarks/follow.py [--smoke] [--lines 1000000] [--seconds 20] [--starts 5] [--elf PROGRAM]

first row: from the start of the process to the first row of a log of one line. catching up: a log of a day, 1,440 windows of a
minute, as a file and through a pipe, until the last final window; the rows must be those of `elf run`. cost: processor time and
memory with 50 lines a second, every open window shown, and then with none. --elf: another version's command, to compare.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import measure

DAY_S = 86_400
PATHS = "SELECT window, path, count(*) AS n FROM access GROUP BY window(time, '10 seconds'), path"
MINUTES = "SELECT window, status, count(*) AS n, sum(bytes) AS bytes FROM access GROUP BY window(time, '1 minute'), status"
RATE = 50
QUIET_S = 15.0
"""After which a log without new lines costs what it costs for good."""
WAIT_S = 120.0


def line(at_s: float, number: int) -> bytes:
    at, status = datetime.fromtimestamp(at_s, UTC), (200, 200, 200, 304, 404)[number % 5]
    text = f'192.0.2.{number % 250} - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "GET /{number % 7} HTTP/1.1" {status} {number % 900}'
    return f'{text} "-" "-"\n'.encode()


def write_day(path: Path, lines: int) -> None:
    """A log of a whole day, two days ago."""
    begin = int(time.time()) // DAY_S * DAY_S - 2 * DAY_S
    with path.open("wb") as file:
        file.writelines(line(begin + number * DAY_S / lines, number) for number in range(lines))


def follow(elf: str, query: str, *about: str, stdin: int | None = None) -> subprocess.Popen[bytes]:
    command = [elf, "run", "--follow", "-q", "--output", "json", query, *about]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    process.communicate()


def first_row_s(elf: str, log: Path) -> float:
    log.write_bytes(line(time.time() - 30, 0))
    began = time.monotonic()
    process = follow(elf, PATHS, "--open", str(log))
    assert process.stdout is not None
    assert process.stdout.readline()
    took = time.monotonic() - began
    ended(process)
    return took


def catching_up(elf: str, log: Path, *, through_pipe: bool) -> tuple[float, list[bytes]]:
    """Seconds until all final rows are there, and the rows. Of a file the last window is not final, or much later."""
    wanted = subprocess.run(
        [measure.ELF, "run", "-q", "--output", "json", MINUTES, log], capture_output=True, check=True
    )
    rows = wanted.stdout.splitlines()
    began = time.monotonic()
    if through_pipe:
        with log.open("rb") as source:
            feeder = subprocess.Popen(["cat"], stdin=source, stdout=subprocess.PIPE)
            assert feeder.stdout is not None
            process = follow(elf, MINUTES, stdin=feeder.stdout.fileno())
            got = process.communicate(timeout=WAIT_S)[0].splitlines()
            feeder.wait()
        return time.monotonic() - began, rows if sorted(got) == sorted(rows) else []
    process = follow(elf, MINUTES, str(log))
    assert process.stdout is not None
    closed, got = rows[: rows.index(next(row for row in rows if row[:60] == rows[-1][:60])) - 5], []
    while len(got) < len(closed):
        got.append(process.stdout.readline().rstrip(b"\n"))
    took = time.monotonic() - began
    ended(process)
    return took, rows if sorted(got) == sorted(closed) else []


def cpu_s(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def costs(elf: str, log: Path, seconds: float) -> tuple[float, float, float]:
    """Percent of a core with lines and without, and MB."""
    log.write_bytes(line(time.time(), 0))
    process = follow(elf, PATHS, "--open", str(log))
    assert process.stdout is not None
    process.stdout.readline()
    reader = threading.Thread(target=process.stdout.read)
    reader.start()
    found = []
    for rate, warm_up in ((RATE, 3.0), (0, QUIET_S)):
        for is_measured, span in ((False, min(warm_up, seconds)), (True, seconds)):
            before, until = cpu_s(process), time.monotonic() + span
            with log.open("ab", buffering=0) as file:
                while time.monotonic() < until:
                    if rate:
                        file.write(line(time.time(), time.time_ns() // 10_000_000))
                    time.sleep(1 / RATE)
            if is_measured:
                found.append(100 * (cpu_s(process) - before) / span)
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    resident = next(int(each.split()[1]) for each in status if each.startswith("VmRSS"))
    process.send_signal(signal.SIGINT)
    process.wait()
    reader.join()
    return found[0], found[1], resident / 1000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="small: does it still work?")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--elf", default=measure.ELF)
    options = parser.parse_args(arguments)
    lines, seconds, starts = (
        (20_000, 1.0, 1) if options.smoke else (options.lines, options.seconds, options.starts)
    )
    print(measure.machine())
    print("\nA live query")
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="elf-follow-") as name:
        log = Path(name) / "access.log"
        took = [first_row_s(options.elf, log) for _ in range(starts)]
        print(f"  first row of a short log, s            {measure.spread(took)}")
        write_day(log, lines)
        for kind, through_pipe in (("file", False), ("pipe", True)):
            took_s, rows = catching_up(options.elf, log, through_pipe=through_pipe)
            wrong += not rows
            equal = "yes" if rows else "NO"
            print(
                f"  a {kind} of {lines:,} lines, s          {took_s:6.2f}; equal to elf run: {equal}",
                flush=True,
            )
        busy, quiet, resident = costs(options.elf, log, seconds)
        print(f"  {RATE} lines a second, % of a core      {busy:6.2f}")
        print(f"  no line, % of a core                 {quiet:6.2f}")
        print(f"  MB                                   {resident:6.1f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
