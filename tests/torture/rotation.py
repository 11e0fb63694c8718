"""Rotation of logs by the real logrotate, in a different way for each server."""

from __future__ import annotations

import shutil
import subprocess
import threading
from dataclasses import dataclass

from tests.torture.servers import Server, find

ROTATE_S_MAX = 60.0
REOPEN = 'test -s {pid} && kill -USR1 "$(cat {pid})"'
"""Servers reopen their logs a moment later; compression at once has to wait, or the last lines are lost with the file."""


@dataclass(frozen=True)
class Mode:
    """`directives` of logrotate. is_lossy: a writer that keeps writing inevitably loses lines."""

    name: str
    directives: tuple[str, ...]
    is_lossy: bool = False
    wait_s: int = 0


CREATE = Mode("create", ("create 0644 root root",))
DELAYED = Mode("delaycompress", ("create 0644 root root", "compress", "delaycompress"))
DATED = Mode("dateext", ("create 0644 root root", "compress", "dateext", "dateformat -%Y%m%d-%s"), wait_s=1)
ZSTD = Mode(
    "zst",
    (
        "create 0644 root root",
        "compress",
        "delaycompress",
        "compresscmd /usr/bin/zstd",
        "compressext .zst",
        "compressoptions -q --rm",
    ),
)
COPIED = Mode("copytruncate", ("copytruncate",), is_lossy=True)
COMPRESSED = Mode("compress", ("create 0644 root root", "compress"), wait_s=1)
MODES = {each.name: each for each in (CREATE, DELAYED, DATED, ZSTD, COPIED, COMPRESSED)}


def missing() -> str:
    """A program that is not installed; "" if all are."""
    return next((each for each in ("logrotate", "gzip", "zstd") if find(each) is None), "")


class Rotation:
    """Rotates one server's log. All rotated files are kept, so that late reads find them."""

    def __init__(self, server: Server, mode: Mode) -> None:
        self.server, self.mode = server, mode
        self._conf = server.folder / "logrotate.conf"
        self._lock = threading.Lock()
        reopen = REOPEN.format(pid=server.pid_file) + (f" && sleep {mode.wait_s}" if mode.wait_s else "")
        script = [] if mode.is_lossy else ["postrotate", reopen, "endscript"]
        lines = ["rotate 1000", "missingok", "notifempty", *mode.directives, *script]
        body = "\n".join(f"    {line}" for line in lines)
        self._conf.write_text(f"{server.log} {{\n{body}\n}}\n")
        self._conf.chmod(0o644)

    def rotate(self) -> None:
        """Rotate now. Raises OSError with logrotate's error."""
        with self._lock:
            done = subprocess.run(
                [
                    find("logrotate") or "logrotate",
                    "-f",
                    "-s",
                    str(self._conf.with_suffix(".state")),
                    str(self._conf),
                ],
                capture_output=True,
                text=True,
                timeout=ROTATE_S_MAX,
                check=False,
            )
        if done.returncode:
            raise OSError(f"logrotate of {self.server.name}: {done.stderr.strip()}")


def open_text(path: str) -> bytes:
    """All bytes of a log, compressed or not."""
    for suffix, command in ((".gz", "gzip"), (".zst", "zstd")):
        if path.endswith(suffix):
            return subprocess.run(
                [shutil.which(command) or command, "-dc", path], capture_output=True, check=True
            ).stdout
    with open(path, "rb") as file:
        return file.read()
