"""The independent count of the demo: one pass over the raw lines, without our parser, window by window and version by version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from elf.agent.run.progress import count

Cell = tuple[str, int, int]
"""(version, start of the window in microseconds, status)."""
Row = tuple[int, int, int]
"""(hits, bytes, large answers)."""
Totals = dict[Cell, Row]


class Meaning(msgspec.Struct, frozen=True):
    """What a version of the job counts as a large answer: at least `least` bytes, to anyone or to people only."""

    least: int
    people_only: bool

    def is_large(self, size: int, agent: bytes) -> bool:
        return size >= self.least and not (self.people_only and b"bot" in agent)


class Stretch(msgspec.Struct, frozen=True):
    """A version in force for the event times [since_us, until_us)."""

    version: str
    since_us: int
    until_us: int
    meaning: Meaning


def count_logs(paths: Iterable[Path], stretches: Sequence[Stretch], width_us: int) -> Totals:
    """Totals of all lines: status, bytes and browser stand at fixed places behind the request."""
    totals: Totals = {}
    for path in paths:
        with path.open("rb") as lines:
            for line in lines:
                at_us, status, size, agent = fields(line)
                stretch = next(each for each in stretches if each.since_us <= at_us < each.until_us)
                cell = (stretch.version, at_us // width_us * width_us, status)
                hits, so_far, large = totals.get(cell, (0, 0, 0))
                totals[cell] = (hits + 1, so_far + size, large + stretch.meaning.is_large(size, agent))
    return totals


def fields(line: bytes) -> tuple[int, int, int, bytes]:
    """(time in microseconds, status, bytes, browser) of a line in the demo's format."""
    head, _, numbers, _, _, browser, _ = line.split(b'"')
    status, size = map(int, numbers.split())
    moment = head[head.index(b"[") + 1 : head.index(b"]")].decode()
    seconds = int(datetime.strptime(moment, "%d/%b/%Y:%H:%M:%S %z").timestamp())
    return seconds * 1_000_000, status, size, browser


def compare(counted: Totals, stored: Totals, stretches: Sequence[Stretch], say: Callable[[str], None]) -> int:
    """Print whether the lake's windows are the logs'. Returns the exit code."""
    for status in sorted({status for _, _, status in counted.keys() | stored.keys()}):
        ours, theirs = _of_status(stored, status), _of_status(counted, status)
        verdict = "equal" if ours == theirs else f"the logs have {theirs[0]:,} hits, {theirs[1]:,} bytes"
        say(f"status {status}: {ours[0]:,} hits, {ours[1]:,} bytes in the lake: {verdict}")
    for version in dict.fromkeys(each.version for each in stretches):
        cells = {cell for cell in counted.keys() | stored.keys() if cell[0] == version}
        wrong = sum(stored.get(cell) != counted.get(cell) for cell in cells)
        windows = len({start for _, start, _ in cells})
        verdict = f"{wrong} of them DIFFER from the logs" if wrong else "all equal"
        say(f"version {version}: {count(len(cells), 'row')} in {count(windows, 'window')}: {verdict}")
    hits = sum(row[0] for row in counted.values())
    if counted == stored:
        say(
            f"the lake's rows are those of the raw logs, counted in one pass, window by window and version by version: "
            f"{hits:,} lines, each counted once"
        )
        return 0
    say(f"the lake's rows DIFFER from the raw logs' {hits:,} lines")
    return 1


def _of_status(totals: Totals, status: int) -> tuple[int, int]:
    rows = [row for cell, row in totals.items() if cell[2] == status]
    return sum(row[0] for row in rows), sum(row[1] for row in rows)
