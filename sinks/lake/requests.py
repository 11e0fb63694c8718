"""Serves the requests to the writer process: writes panes, compacts folders, finds withdrawn panes."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from pathlib import Path

from elf.sinks.lake import layout
from elf.sinks.lake.files import Panes, withdrawn_panes, write_panes
from elf.sinks.lake.frames import (
    Answer,
    CompactFrame,
    Done,
    Failed,
    PaneFrame,
    PartFrame,
    ReadFrame,
    Request,
    Schema,
    Withdrawn,
)


def serve(requests: Iterable[Request]) -> Iterator[Answer]:
    """Serve the requests, with an answer after each durable file; ends at the first failure."""
    schemas = {request.number: request for request in requests if isinstance(request, Schema)}
    panes = _panes(requests)
    try:
        yield from write_panes(schemas, panes)
        for request in requests:
            if isinstance(request, CompactFrame):
                from elf.sinks.lake.compact import compact_folder

                for job, version, folder in layout.old_folders(request.directory, request.older_than):
                    yield Done(removed=compact_folder(job, version, folder))
            elif isinstance(request, ReadFrame):
                yield Withdrawn(request.folder, tuple(withdrawn_panes(Path(request.folder))))
    except OSError as error:
        yield Failed(error.errno or errno.EIO, error.strerror or str(error), error.filename)
    except Exception as error:
        yield Failed(errno.EIO, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _panes(requests: Iterable[Request]) -> Panes:
    panes: dict[PaneFrame, list[PartFrame]] = {}
    parts: list[PartFrame] = []
    for request in requests:
        if isinstance(request, PaneFrame):
            parts = panes[request] = []
        elif isinstance(request, PartFrame):
            parts.append(request)
    return panes
