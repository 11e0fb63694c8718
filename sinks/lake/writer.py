"""The short-lived process that writes Parquet: `python -m elf.sinks.lake.writer`, frames in on stdin, answers on stdout.

It exists so that the agent never holds pyarrow (about 50 MB) in its own memory. Panes that it answers for are durable.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def do_without_numpy() -> None:
    """For a process that only writes and compacts: pyarrow works without numpy, and is there in half the time."""
    sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]


def main() -> None:
    """Serve one request stream and exit. Failures are reported as answers, not as tracebacks."""
    with suppress(OSError):
        os.nice(5)  # the web server on this host has priority
    if "--merging" not in sys.argv:
        do_without_numpy()
    from elf.sinks.lake.frames import Request, read_frames, write_frame
    from elf.sinks.lake.requests import serve

    try:
        for answer in serve(list(read_frames(sys.stdin.buffer, Request))):
            write_frame(sys.stdout.buffer, answer)
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)  # the agent was killed; a normal exit would print that it cannot flush


if __name__ == "__main__":
    main()
