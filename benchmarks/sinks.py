"""How long a final window takes from the master's log to its sinks: one large window over MQTT, and many windows to four sinks of
which one takes nothing.

    python benchmarks/sinks.py [--smoke] [--only mqtt,four] [--seconds 60]

mqtt: windows of a second with 1,000 rows, from the entry in the master's log to the callback of a subscriber at a mosquitto on
this host. four: windows of 10 ms with 100 rows, to a broker, a webhook that never answers, files of JSON lines and the metrics
page, from the entry in the log until the sink has acknowledged it. A lone agent, which notes these times itself
(`delivered/sitecustomize.py`); one that serves no sink is measured in light.py.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Empty

import measure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.sinks.delivery.mosquitto import free_port, mosquitto, subscribed

NOTES = Path(__file__).with_name("delivered")
AGENT = """\
[agent]
name = "web1"
state_dir = "state"
memory_max = "64MiB"
metrics = "127.0.0.1:{metrics}"

[[source]]
name = "access"
path = "access.log"
format = "json"
"""
LINE = '{{"time":"{}","path":"/p/{}","status":200,"bytes":7}}\n'
TICK_S = 0.05


class Writer(threading.Thread):
    """Writes `rate` lines a second with `paths` paths in turn."""

    def __init__(self, log: Path, rate: int, paths: int) -> None:
        super().__init__(daemon=True)
        self._log, self._rate, self._paths = log, rate, paths
        self._over = threading.Event()

    def run(self) -> None:
        written, began = 0, time.time()
        with self._log.open("a") as log:
            while not self._over.wait(TICK_S):
                due = int((time.time() - began) * self._rate)
                log.write(
                    "".join(
                        map(
                            self._line,
                            (began + n / self._rate for n in range(written, due)),
                            range(written, due),
                        )
                    )
                )
                log.flush()
                written = due

    def _line(self, at_s: float, n: int) -> str:
        micros = round(at_s * 1e6)
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(micros // 1_000_000))
        return LINE.format(f"{text}.{micros % 1_000_000:06d}Z", n % self._paths)

    def end(self) -> None:
        self._over.set()
        self.join()


def elf(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "elf.typer_cli", *map(str, arguments)]


@contextmanager
def agent(folder: Path, sinks: str) -> Iterator[int]:
    """A lone agent. Gives its process id."""
    (folder / "access.log").touch()
    (folder / "elf.toml").write_text(AGENT.format(metrics=free_port()) + sinks)
    environment = os.environ | {"PYTHONPATH": str(NOTES)}
    with (folder / "agent.log").open("wb") as said:
        process = subprocess.Popen(
            elf("agent", "run", "-c", "elf.toml"), cwd=folder, env=environment, stdout=said, stderr=said
        )
        try:
            until = time.monotonic() + 30
            while not (folder / "state" / "control.sock").exists() and time.monotonic() < until:
                time.sleep(0.05)
            yield process.pid
        finally:
            process.terminate()
            process.wait()


def start(folder: Path, sql: str, *sinks: str) -> None:
    named = [word for sink in sinks for word in ("--sink", sink)]
    control = folder / "state" / "control.sock"
    command = elf("job", "start", "hits", "--sql", sql, "--lateness", "1s", *named, "--agent", control)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)


def notes(folder: Path) -> dict[str, dict[int, float]]:
    """what -> {start of the window: first time in seconds}"""
    found: dict[str, dict[int, float]] = {}
    for line in (folder / "delivered").read_text().splitlines():
        what, begin, at = line.split()
        found.setdefault(what, {}).setdefault(int(begin), float(at))
    return found


def resident(pid: int) -> float:
    """MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def lags(later: dict[int, float], committed: dict[int, float]) -> list[float]:
    """Milliseconds."""
    return [1e3 * (at - committed[begin]) for begin, at in later.items() if begin in committed]


def show(what: str, found: Sequence[float], bound: float) -> None:
    ordered = sorted(found)
    print(measure.target(f"{what}, ms, median", statistics.median(ordered), bound, at_most=True))
    print(f"  p99 {ordered[int(0.99 * (len(ordered) - 1))]:.1f} ms, {len(ordered):,} windows")


def over_mqtt(seconds: float) -> None:
    print(f"\nWindows of 1,000 rows over MQTT, mosquitto on this host, {seconds:g} s")
    with tempfile.TemporaryDirectory(prefix="elf-sinks-") as name:
        folder = Path(name)
        (folder / "broker").mkdir()
        with mosquitto(folder / "broker") as broker, subscribed(broker.port) as inbox:
            sink = f'\n[[sink]]\nname = "broker"\nmqtt = "mqtt://127.0.0.1:{broker.port}"\n'
            with agent(folder, sink):
                sql = "SELECT window, path, count(*) AS hits FROM access GROUP BY window(time, '1 second'), path"
                start(folder, sql, "broker")
                writer = Writer(folder / "access.log", 2_000, 1_000)
                writer.start()
                heard: dict[int, float] = {}
                until, rows = time.monotonic() + seconds, 0
                while time.monotonic() < until:
                    try:
                        message = inbox.get(timeout=1)
                    except Empty:
                        continue
                    at = time.time()
                    if not message.topic.endswith("/window"):
                        continue
                    body = json.loads(message.payload)
                    rows = len(body["rows"])
                    begin = body["_elf"]["window"]["start"]
                    heard.setdefault(_micros(begin), at)
                writer.end()
            show(f"to the subscriber, {rows:,} rows", lags(heard, notes(folder)["committed"]), 50)


def _micros(text: str) -> int:
    from datetime import datetime

    return round(datetime.fromisoformat(text).timestamp() * 1e6)


def four(seconds: float) -> None:
    print(f"\n100 windows/s of 100 rows to four sinks, one of which takes nothing, {seconds:g} s")
    with tempfile.TemporaryDirectory(prefix="elf-sinks-") as name, closing(_hole()) as hole:
        folder = Path(name)
        (folder / "broker").mkdir()
        (folder / "hook.secret").touch(0o600)
        (folder / "hook.secret").write_text("whsec_" + "A" * 32)
        with mosquitto(folder / "broker") as broker:
            sinks = (
                f'\n[[sink]]\nname = "broker"\nmqtt = "mqtt://127.0.0.1:{broker.port}"\n'
                f'\n[[sink]]\nname = "hook"\nwebhook = "http://127.0.0.1:{hole.getsockname()[1]}/in"\n'
                'secret = "hook.secret"\nprivate = true\n'
                '\n[[sink]]\nname = "files"\njsonl = "windows"\n'
                '\n[[sink]]\nname = "page"\nprometheus = "scrape"\n'
            )
            with agent(folder, sinks) as pid:
                sql = "SELECT window, path, count(*) AS hits FROM access GROUP BY window(time, '10 milliseconds'), path"
                start(folder, sql, "broker", "hook", "files", "page")
                writer = Writer(folder / "access.log", 10_000, 100)
                writer.start()
                highest, until = 0.0, time.monotonic() + seconds
                while time.monotonic() < until:
                    time.sleep(0.5)
                    highest = max(highest, resident(pid))
                writer.end()
            found = notes(folder)
            committed = found["committed"]
            steady = {
                begin: at for begin, at in committed.items() if at > min(committed.values()) + seconds / 6
            }
            print(f"  {len(steady) / (max(steady.values()) - min(steady.values())):.0f} windows/s are final")
            for each in ("broker", "files", "page"):
                show(f"acknowledged by {each}", lags(found.get(each, {}), steady), 250)
            print(f"  resident at most {highest:.0f} MiB, 64 of them the cap beside the bare process")


def _hole() -> socket.socket:
    """Takes connections, and answers nothing."""
    return socket.create_server(("127.0.0.1", 0))


PARTS: dict[str, Callable[[float], None]] = {"mqtt": over_mqtt, "four": four}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    for each in given.only.split(","):
        PARTS[each](8.0 if given.smoke else given.seconds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
