"""A cgroup that limits the memory of a test's processes, including the kernel's for their files; beyond that the kernel kills
one.

    with memory_group(384 << 20) as group:
        if group is not None: ...   # nobody here may make one: measure instead

Of version 1 or 2, below this process's own or beside it: where the memory controller can be had.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

GONE_S = 5.0
"""A group is busy for a moment after its last process ended."""


class MemoryGroup:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def prefix(self) -> Sequence[str]:
        """The prefix of a command that runs in it."""
        return ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"))

    @property
    def kills(self) -> int:
        """Processes that the kernel has killed for want of memory."""
        for name in ("memory.events", "memory.oom_control"):
            with suppress(FileNotFoundError):
                told = dict(line.split() for line in (self.folder / name).read_text().splitlines())
                return int(told["oom_kill"])
        raise AssertionError(f"{self.folder} tells of no kills")


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup | None]:
    """None where none can be made: no root, no controller, another system."""
    group = next(filter(None, (_made(parent, limit_bytes) for parent in _parents())), None)
    try:
        yield group
    finally:
        if group is not None:
            _remove(group.folder)


def _made(parent: Path, limit_bytes: int) -> MemoryGroup | None:
    folder = parent / f"elf-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        name = next(each for each in ("memory.max", "memory.limit_in_bytes") if (folder / each).exists())
        (folder / name).write_text(str(limit_bytes))
        for name, swap in (("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", limit_bytes)):
            if (folder / name).exists():
                (folder / name).write_text(str(swap))
    except (OSError, StopIteration):  # the controller is not handed on to here
        _remove(folder)
        return None
    return MemoryGroup(folder)


def _remove(folder: Path) -> None:
    until = time.monotonic() + GONE_S
    while folder.exists() and time.monotonic() < until:
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.01)


def _parents() -> Iterator[Path]:
    """Where a group can be made: in this process's own one, beside it, and at the top."""
    try:
        own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
        mounts = [line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return
    for where, what in mounts:
        root, mount = where.split()[3:5]
        kind, _, options = what.split()
        names = [name for name in own if "memory" in name.split(",")] if kind == "cgroup" else [""]
        if kind not in ("cgroup", "cgroup2") or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        for name in names:
            inside = Path(mount) / os.path.relpath(own.get(name, "/"), root)
            yield from (inside, inside.parent, Path(mount))
