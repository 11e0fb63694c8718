"""Standard input that a signal can end. A read that waits on a pipe or a terminal does not see that it should stop."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

COPY_BYTES = 1 << 20


@contextmanager
def ends_on(stop: Event) -> Iterator[None]:
    """Within, descriptor 0 ends when its source does, or within 0.1 s of `stop` being set.

    A thread moves the bytes through a pipe of our own, inside the kernel where it can. A file is left as it is.
    """
    if stat.S_ISREG(os.fstat(0).st_mode):
        yield
        return
    source = os.dup(0)
    read_end, write_end = os.pipe()
    os.dup2(read_end, 0)
    os.close(read_end)
    done = Event()
    Thread(target=_move, args=(source, write_end, stop, done), name="stdin", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        os.dup2(source, 0)


def _move(source: int, target: int, stop: Event, done: Event) -> None:
    """Copy until the end of `source`, `stop` or `done`; `target` is closed then."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    copy = _splice if stat.S_ISFIFO(os.fstat(source).st_mode) else _copy
    try:
        while not stop.is_set() and not done.is_set():
            if poll.poll(100) and not copy(source, target):
                return
    except BrokenPipeError:
        pass  # the reader has gone: the run has ended
    finally:
        os.close(target)


def _splice(source: int, target: int) -> int:
    return os.splice(source, target, COPY_BYTES)


def _copy(source: int, target: int) -> int:
    data = os.read(source, COPY_BYTES)
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
    return len(data)
