"""The short-lived process that writes Parquet: `python -m elf.sinks.lake.writer`, frames in on stdin, answers on stdout.

It exists so that the agent never holds pyarrow (about 50 MB) in its own memory. Panes that it answers for are durable.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def main() -> None:
    """Serve one request stream and exit. Failures are reported as answers, not as tracebacks."""
    with suppress(OSError):
        os.nice(5)  # the web server on this host has priority
    # pyarrow works without numpy, which only merging needs; without it the process starts in half the time.
    if "--merging" not in sys.argv:
        sys.modules["numpy"] = None  # type: ignore[assignment]
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
