"""Whole processes: `elf run` beside mtail, GoAccess and mawk on the same log, one core each, alternating.

    python benchmarks/peers.py [--lines 500000] [--runs 5] [--folder /tmp/elf-bench] [--smoke]

The question is lines and bytes by path and status. mtail runs a program of two counters over the whole file and prints them;
mawk a line that does the same. GoAccess answers its own questions, all at once, so it is also measured with all panels off
but those of paths and status codes; it tells lines by status. What a peer tells must be what we say. A peer that is not
installed is left out, with a line that says so.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import measure

QUERY = "SELECT path, status, count(*) AS hits, sum(bytes) AS bytes FROM access GROUP BY path, status"
Row = tuple[str, ...]
"""path, status, lines, bytes; of GoAccess status, lines."""

MTAIL = r"""
counter hits by path, status
counter bytes by path, status

/^\S+ \S+ \S+ \[[^\]]+\] "\S+ (?P<path>[^ ?"]*)[^ "]* [^"]*" (?P<status>\d+) (?P<bytes>\d+) / {
  hits[$path][$status]++
  bytes[$path][$status] += $bytes
}
"""

MAWK = (
    '{ split($7, p, "?"); key = p[1] "," $9; hits[key]++; bytes[key] += $10 } '
    'END { print "path,status,hits,bytes"; for (key in hits) printf "%s,%d,%d\\n", key, hits[key], bytes[key] }'
)

PANELS = [
    *("VISITORS", "REQUESTS_STATIC", "NOT_FOUND", "HOSTS", "OS", "BROWSERS", "VISIT_TIMES", "VIRTUAL_HOSTS"),
    *("REFERRERS", "REFERRING_SITES", "KEYPHRASES", "GEO_LOCATION", "ASN", "REMOTE_USER", "CACHE_STATUS"),
    *("MIME_TYPE", "TLS_TYPE"),
]
"""All of GoAccess's but those of paths and status codes."""


class Peer:
    """command: with the file and a folder for its own use. rows: what it told, from its output. wanted: our speed over its."""

    def __init__(
        self,
        program: str,
        command: Callable[[Path, Path], list[str]],
        rows: Callable[[Path], Iterable[Row]],
        wanted: float | None,
        version: Sequence[str],
    ) -> None:
        self.program, self.command, self.rows, self.wanted = program, command, rows, wanted
        self._version = version

    @property
    def is_present(self) -> bool:
        return shutil.which(self.program) is not None

    def version(self) -> str:
        """What it says of itself, as far as the number."""
        told = subprocess.run([self.program, *self._version], capture_output=True, text=True, check=False)
        found = re.search(r"\d+\.[\w.~+-]*\w", told.stdout + told.stderr)
        return found.group() if found else "of unknown version"


def mtail_command(file: Path, folder: Path) -> list[str]:
    (folder / "count.mtail").write_text(MTAIL, encoding="ascii")
    options = ["-one_shot", "-one_shot_format", "json", "-log_dir", str(folder)]
    return ["mtail", *options, "-progs", str(folder / "count.mtail"), "-logs", str(file)]


def goaccess_command(file: Path, folder: Path, panels: Sequence[str] = ()) -> list[str]:
    ignored = [f"--ignore-panel={panel}" for panel in panels]
    out = ["-o", "json", "--no-global-config", "--no-progress", "--no-parsing-spinner"]
    return ["goaccess", str(file), "--log-format=COMBINED", *out, *ignored]


def mawk_command(file: Path, folder: Path) -> list[str]:
    return ["mawk", MAWK, str(file)]


def csv_rows(out: Path) -> Iterable[Row]:
    with out.open(newline="") as file:
        yield from map(tuple, list(csv.reader(file))[1:])


def mtail_rows(out: Path) -> Iterable[Row]:
    metrics = json.loads(out.read_text())
    found: dict[tuple[str, str], list[str]] = {}
    for name in ("hits", "bytes"):
        for value in metrics[name][0]["LabelValues"]:
            path, status = value["Labels"]
            found.setdefault((path, status), []).append(str(value["Value"]["Value"]))
    for key, numbers in found.items():
        yield *key, *numbers


def goaccess_rows(out: Path) -> Iterable[Row]:
    for group in json.loads(out.read_text())["status_codes"]["data"]:
        for item in group.get("items", []):
            yield item["data"].split(" ")[0], str(item["hits"]["count"])


def by_status(rows: Iterable[Row]) -> Iterable[Row]:
    hits = Counter[str]()
    for _, status, count, _ in rows:
        hits[status] += int(count)
    return [(status, str(count)) for status, count in hits.items()]


PEERS = {
    "mtail": Peer("mtail", mtail_command, mtail_rows, 20.0, ["--version"]),
    "GoAccess": Peer("goaccess", goaccess_command, goaccess_rows, 40.0, ["--version"]),
    "GoAccess, 2 panels": Peer(
        "goaccess", partial(goaccess_command, panels=PANELS), goaccess_rows, None, ["--version"]
    ),
    "mawk": Peer("mawk", mawk_command, csv_rows, None, ["-W", "version"]),
}


KNOWN = "elf, asked again"
"""Who asks a question a second time finds it compiled."""


def asked_again(file: Path, folder: Path) -> Callable[[], measure.Run]:
    """`elf` on a query that it knows: asked once here, of a log without lines."""
    empty = folder / "empty.log"
    empty.touch()
    measure.run_elf(QUERY, empty, folder / "known.out", cache=folder / "cache")
    return partial(measure.run_elf, QUERY, file, folder / "known.out", cache=folder / "cache")


def compare(file: Path, folder: Path, runs: int) -> bool:
    """Alternate all who are present and print their figures; returns whether all told the same."""
    present = {name: peer for name, peer in PEERS.items() if peer.is_present}
    for name in PEERS.keys() - present.keys():
        print(f"  {name}: skipped, {PEERS[name].program} is not installed")
    out = {name: folder / f"{number}.out" for number, name in enumerate(["elf", *present])}
    contenders = {"elf": partial(measure.run_elf, QUERY, file, out["elf"]), KNOWN: asked_again(file, folder)}
    for name, peer in present.items():
        command = peer.command(file, folder)
        contenders[name] = partial(
            measure.run, command, stdout=out[name], env={"LC_ALL": "C"}
        )  # mawk's fastest
    found = measure.alternate(contenders, runs)
    empty = folder / "empty.log"
    empty.write_bytes(b"")
    start = measure.median([measure.run_elf(QUERY, empty, folder / "empty.out") for _ in range(runs)])
    ours = list(csv_rows(out["elf"]))
    whole, statuses = measure.digest(ours), measure.digest(by_status(ours))
    print(measure.line("elf", found["elf"], f", result {whole}, by status {statuses}"))
    same = measure.digest(csv_rows(folder / "known.out")) == whole
    print(measure.line(KNOWN, found[KNOWN], f", {'equal' if same else 'DIFFERS'}"))
    for name, peer in present.items():
        result = measure.digest(peer.rows(out[name]))
        equal = result in (whole, statuses)
        same &= equal
        print(measure.line(name, found[name], f", result {result}, {'equal' if equal else 'DIFFERS'}"))
    for name, peer in present.items():
        ratio = measure.median(found[name]) / measure.median(found["elf"])
        what = f"speed / {name} ({peer.version()})"
        print(measure.target(what, ratio, peer.wanted) if peer.wanted else f"  {what:46} {ratio:7.2f}")
        ratio = measure.median(found[name]) / measure.median(found[KNOWN])
        print(f"  {'the same, the query asked before':46} {ratio:7.2f}")
        ratio = measure.median(found[name]) / (measure.median(found["elf"]) - start)
        print(f"  {'the same less the start-up of elf':46} {ratio:7.2f}")
    print(f"  {'start-up of elf, s':46} {start:7.2f}")
    return same


def main() -> None:
    parser = measure.options(__doc__)
    parser.add_argument("--lines", type=int, default=500_000)
    options = parser.parse_args()
    lines, runs = (20_000, 1) if options.smoke else (options.lines, options.runs)
    file = measure.generated(options.folder, lines)
    print(f"{measure.machine()}\n")
    print(f"Lines and bytes by path and status; {lines:,} lines, {runs} alternating runs")
    with tempfile.TemporaryDirectory(prefix="elf-peers-") as folder:
        same = compare(file, Path(folder), runs)
    if not same:
        sys.exit("the results differ")


if __name__ == "__main__":
    main()
