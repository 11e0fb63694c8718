"""Queries for readers of plain Parquet, which give the rows that a reader of the table's Delta log sees."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path

from elf.sinks.lake import layout

_PANE = "version, _pane_start"
_LENGTH = "(_pane_end - _pane_start)"
_ORDER = ("_revision_epoch", "_revision_node", "_revision_n", "_digest")
READERS = ("duckdb", "pandas")


def views(directory: Path, job: str, reader: str) -> Iterator[str]:
    """A line for each of the job's tables, the newest last; only that has the job's name. Raises UsageError without the job."""
    found = layout.existing_tables(directory, job)
    tables = sorted(filter(_newest, found), key=lambda table: (_newest(table), table))
    for table in tables:
        if reader == "duckdb":
            yield _duckdb(table, job if table is tables[-1] else f"{job} {table.name}")
        else:
            yield _pandas(table)


def _newest(table: Path) -> str:
    """The newest day of a table that has files; empty if it has none."""
    return max((folder.name for folder in layout.day_folders(table) if layout.files(folder)), default="")


def _duckdb(table: Path, name: str) -> str:
    """A pane may be in several files: the last order is that of files, so that one of equal copies counts. Of panes of several
    lengths in one day the longest count."""
    pattern = f"{glob.escape(str(table))}/version=*/date=*/*.parquet".replace("'", "''")
    identifier = name.replace('"', '""')
    order = ", ".join(f"{column} DESC" for column in (*_ORDER, "filename"))
    return (
        f'CREATE OR REPLACE VIEW "{identifier}" AS SELECT * EXCLUDE (filename) '
        f"FROM read_parquet('{pattern}', hive_partitioning = true, filename = true) "
        f"QUALIFY rank() OVER (PARTITION BY {_PANE} ORDER BY {_LENGTH} DESC, {order}) = 1 "
        f"AND _status <> 'withdrawn' AND NOT _empty "
        f"AND {_LENGTH} IS NOT DISTINCT FROM max({_LENGTH}) FILTER (NOT _empty) OVER (PARTITION BY version, date);"
    )


def _pandas(table: Path) -> str:
    """Columns keep their Arrow types: a BIGINT that may be NULL would become a double."""
    order, pane = [*_ORDER, "__filename"], _PANE.split(", ")
    day = ["version", "date"]
    return (
        "import pandas, pyarrow, pyarrow.dataset as ds; "
        "parts = ds.partitioning(pyarrow.schema({'version': pyarrow.string(), 'date': pyarrow.date32()}), flavor='hive'); "
        f"d = ds.dataset({str(table)!r}, partitioning=parts); "
        "t = d.to_table(columns=[*d.schema.names, '__filename']).to_pandas(types_mapper=pandas.ArrowDtype); "
        "t['__us'] = (t._pane_end - t._pane_start).astype('duration[us][pyarrow]').astype('int64[pyarrow]').fillna(0); "
        f"longest = t[~t._empty].groupby({day}, dropna=False).__us.max().rename('__longest').reset_index(); "
        f"t = t.merge(longest, how='left', on={day}).query('__longest.isna() or __us == __longest'); "
        f"best = t[{pane + order}].sort_values({order}).drop_duplicates({pane}, keep='last'); "
        "panes = t.merge(best).query(\"_status != 'withdrawn' and not _empty\").drop(columns=['__filename', '__us', '__longest'])"
    )
