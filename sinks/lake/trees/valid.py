"""The rows of one day that count: of each pane its highest revision, withdrawn ones left out or not. Imports pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elf.sinks.lake import layout
from elf.sinks.lake.compact import highest
from elf.sinks.lake.files import decoding


def valid_rows(folder: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """The rows of the panes of a day folder at their highest revision, withdrawn ones included, with these columns, of which one
    is `_pane_start` (None: all): a table for each row group. Raises OSError, DamagedError."""
    wanted: dict[Path, set[int]] = {}
    for pane, path in highest(file.path for file in layout.files(folder)).values():
        wanted.setdefault(path, set()).add(pane.start)
    for path, starts in sorted(wanted.items()):
        values = pa.array(starts, pa.int64())
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                with decoding(path):
                    table = file.read_row_group(group, columns=columns)
                at = pc.fill_null(table.column("_pane_start").cast(pa.int64()), 0)
                yield table.filter(pc.is_in(at, value_set=values))
