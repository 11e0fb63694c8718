"""Panes merged into longer ones: a table of their rows at a time in, the states of the longer panes out.

    tables -> `LongerPanes.add` -> the engine's trees -> `framed`, as a sink would send them -> `tables`, as the lake stores them

Imports pyarrow and numpy.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elf.cbt._kernel import make_rows
from elf.cbt.budget import Budget
from elf.cbt.rows import Rows
from elf.jobmaster.plan.codec import decode
from elf.jobmaster.plan.plan import WindowSpec
from elf.jobmaster.windows.counters import lost_rows
from elf.jobmaster.windows.lanes import LINE_OPS
from elf.jobmaster.windows.panes import Panes
from elf.jobmaster.windows.result import COUNTERS, PaneState, Revision
from elf.jobmaster.windows.state import StateMaker
from elf.sinks.lake.cells.tables import pane_tables
from elf.sinks.lake.frames import PaneFrame, Schema
from elf.sinks.lake.parquet import FramedPane
from elf.sinks.lake.trees.state_rows import rows_of

MEMORY_BYTES = 160 << 20
"""Of the trees; what is above goes to disk."""
_REVISION = ("_revision_epoch", "_revision_node", "_revision_n")
_COVERAGE = ("_agents_reporting", "_agents_expected", *(f"_lines_{name}" for name in COUNTERS))
HEAD = ("_pane_start", "_empty", "_status", *_REVISION, *_COVERAGE, "_not_converted")
"""The columns that `add` needs, besides those of the state."""


class _Head(msgspec.Struct):
    """What a longer pane says of itself, from those that it is made of. lacking: (agents missing, -reporting, expected) of that
    which lacks most."""

    withdrawn: bool = True
    revised: bool = False
    lacking: tuple[int, int, int] = (-1, 0, 0)
    lines: tuple[int, ...] = (0,) * len(COUNTERS)
    lost: dict[str, int] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        if row["_status"] == "withdrawn":
            return
        self.withdrawn = False
        self.revised |= row["_status"] == "revised"
        reporting, expected = row["_agents_reporting"], row["_agents_expected"]
        self.lacking = max(self.lacking, (expected - reporting, -reporting, expected))
        self.lines = tuple(
            known + row[f"_lines_{name}"] for known, name in zip(self.lines, COUNTERS, strict=True)
        )
        for name, count in row["_not_converted"] or ():
            self.lost[name] = self.lost.get(name, 0) + count


class LongerPanes:
    """Panes of `pane_us`, which contain whole panes of one version of a job. A context: afterwards its memory is free.

    All have the highest revision of the panes they are made of, so that one file can hold them all. before: panes added.
    """

    def __init__(self, known: Mapping[str, Any], directory: str, pane_us: int) -> None:
        """known: the metadata of one of the files. Raises PeerError for a plan of another version of elf, KeyError."""
        window = WindowSpec(pane_us, pane_us)
        self._plan = msgspec.structs.replace(decode(base64.b64decode(known["plan"])), window=window)
        self._pane_us = pane_us
        self._budget = Budget(MEMORY_BYTES)
        self._panes = Panes(self._plan, self._budget)
        self._maker = StateMaker(known["job"], known["version"], self._plan, self._budget)
        self.schema = Schema(
            0,
            directory,
            known["job"],
            known["version"],
            self._maker.columns,
            base64.b64decode(known["plan"]),
            json.dumps(known["recipe"], separators=(",", ":")).encode(),
            known["elf_version"],
        )
        keys = [column for column in known["columns"] if column["role"] == "key"]
        self._names = {f"#k{i}": column["stored"] for i, column in enumerate(keys)}
        self._names |= {c["name"]: c["stored"] for c in known["columns"] if c["role"] != "key"}
        self._heads: dict[int, _Head] = {}
        self._seen: set[int] = set()
        self._revision: Revision = (0, 0, 0)

    def __enter__(self) -> LongerPanes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._panes.close()
        self._budget.close()

    @property
    def before(self) -> int:
        return len(self._seen)

    @property
    def after(self) -> int:
        return len(self._heads)

    def add(self, table: Any) -> None:
        """Rows of panes at their newest revision: the columns `HEAD` and those of the state. A pane may be in several tables."""
        starts = table.column("_pane_start").cast(pa.int64()).to_numpy(zero_copy_only=False)
        longer = starts - np.mod(starts, self._pane_us)
        fresh = np.unique(starts, return_index=True)[1]
        rows = table.select(HEAD).take(pa.array(fresh, pa.int64())).to_pylist()
        for at, row in zip(fresh.tolist(), rows, strict=True):
            if int(starts[at]) not in self._seen:
                self._seen.add(int(starts[at]))
                self._heads.setdefault(int(longer[at]), _Head(lost={})).add(row)
                epoch, node, n = (row[name] for name in _REVISION)
                self._revision = max(self._revision, (epoch, int(node, 16), n))
        is_valid = pc.not_equal(table.column("_status"), "withdrawn")
        has_groups = pc.and_(pc.invert(table.column("_empty")), is_valid)
        groups = table.filter(has_groups)
        if groups.num_rows:
            into = longer[has_groups.to_numpy(zero_copy_only=False)]
            self._panes.merge(rows_of(groups, into, self._plan, self._names))

    def framed(self) -> list[FramedPane]:
        """The longer panes, in time order. Call it once."""
        self._panes.insert(1, _counters(self._heads))
        for pane, found in self._heads.items():
            if found.lost:
                rows = lost_rows({(name, pane): count for name, count in found.lost.items()})
                self._panes.insert(1, rows)
        return [FramedPane(state, 0, number) for number, state in enumerate(self._states())]

    def _states(self) -> Iterator[PaneState]:
        pieces, lines = self._panes.pieces(split=True), self._panes.lines()
        for state in self._maker.states(pieces, lines, "final", self._revision):
            head = self._heads[state.start]
            status = "withdrawn" if head.withdrawn else "revised" if head.revised else "final"
            _, reporting, expected = head.lacking
            about = {"status": status, "agents_reporting": -reporting, "agents_expected": expected}
            yield msgspec.structs.replace(state, **about)

    def tables(self, framed: Iterable[FramedPane]) -> Iterator[Any]:
        """Their rows, as `pane_tables` has them."""
        return pane_tables(self.schema, {frame_of(each): each.parts() for each in framed})


def frame_of(framed: FramedPane) -> PaneFrame:
    return msgspec.msgpack.decode(framed.head, type=PaneFrame)


def _counters(heads: Mapping[int, _Head]) -> Rows:
    """A row of line counters for each longer pane."""
    found = np.array(sorted(heads), dtype=np.int64)
    lanes = np.array([heads[pane].lines for pane in found.tolist()], dtype=np.int64).T.copy()
    none = np.empty(0, dtype=np.uint8), np.zeros(len(found), dtype=np.uint64)
    return make_rows(found, *none, None, lanes, LINE_OPS)
