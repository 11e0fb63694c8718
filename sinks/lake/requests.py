"""Serves the requests to the writer process: writes panes, compacts folders, finds withdrawn panes."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from elf.sinks.lake import layout
from elf.sinks.lake.cells.tables import Panes
from elf.sinks.lake.files import withdrawn_panes, write_panes
from elf.sinks.lake.frames import (
    Answer,
    CompactFrame,
    Done,
    Failed,
    Level,
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
        touched: set[Path] = set()
        yield from write_panes(schemas, panes, touched)
        if touched:
            _show(touched)
        for request in requests:
            if isinstance(request, CompactFrame):
                from elf.sinks.lake.compact import compact_table

                if request.expire_before is not None:
                    yield Done(removed=_expire(Path(request.directory), request.expire_before))
                damaged: set[Path] = set()
                if request.levels:
                    yield Done(removed=_coarsen(Path(request.directory), request.levels, damaged))
                for job in layout.jobs(request.directory):
                    for table in layout.tables(request.directory, job):
                        ages = request.older_than, request.days_before
                        yield Done(removed=compact_table(table, *ages, damaged))
                if damaged:
                    names = ", ".join(map(str, sorted(damaged)))
                    yield Failed(errno.EIO, f"damaged, so the days of these files are not compacted: {names}")
            elif isinstance(request, ReadFrame):
                yield Withdrawn(request.folder, tuple(withdrawn_panes(Path(request.folder))))
    except OSError as error:
        yield Failed(error.errno or errno.EIO, error.strerror or str(error), error.filename)
    except Exception as error:
        yield Failed(errno.EIO, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _expire(directory: Path, before_us: int) -> int:
    """Returns the number of files removed. Raises OSError, ElfError."""
    from elf.sinks.lake.expire import expire_lake

    return (
        sum(table.files for table in expire_lake(directory, None, before_us)) if layout.jobs(directory) else 0
    )


def _coarsen(directory: Path, levels: tuple[Level, ...], damaged: set[Path]) -> int:
    """Returns the number of files removed. damaged: is told of files that cannot be read. Raises ElfError."""
    from elf.sinks.lake.trees.coarsen import coarsen_lake

    removed = 0
    for table in coarsen_lake(directory, None, levels) if layout.jobs(directory) else ():
        removed += table.removed
        damaged.update(directory / table.folder / path for path in table.damaged)
    return removed


def _show(folders: set[Path]) -> None:
    """Let the logs of the tables show what is in these day folders. The panes are durable whatever becomes of that: a log that is
    damaged stays as it is until `elf lake verify --repair`."""
    from elf.sinks.lake.delta import LogError
    from elf.sinks.lake.index import Index

    for table in {folder.parent.parent for folder in folders}:
        with suppress(LogError):
            Index(table).update(folder for folder in folders if folder.parent.parent == table)


def _panes(requests: Iterable[Request]) -> Panes:
    panes: dict[PaneFrame, list[PartFrame]] = {}
    parts: list[PartFrame] = []
    for request in requests:
        if isinstance(request, PaneFrame):
            parts = panes[request] = []
        elif isinstance(request, PartFrame):
            parts.append(request)
    return panes
