"""Values of other types than the jobs of a source expect: told once for each column."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from elf.agent.formats.batch import Batch
from elf.agent.formats.own_keys import plain_name
from elf.jobmaster.values.sql_types import SqlType


class Misfits:
    """notice: takes a line for the agent's log. name: of the source."""

    def __init__(self, name: str, notice: Callable[[str], object]) -> None:
        self._name, self._notice = name, notice
        self._told: set[str] = set()

    def look(self, batch: Batch, types: Mapping[str, SqlType]) -> None:
        """types: those that jobs expect, by asked column."""
        self._report_columns(batch, types)
        self._report_values(batch)

    def _report_columns(self, batch: Batch, types: Mapping[str, SqlType]) -> None:
        """Columns whose type here differs from the one a job was compiled with: the job gets NULL (`feed.complete`)."""
        for asked, type in types.items():
            name = plain_name(asked)
            vector = batch.columns.get(asked, batch.columns.get(name))
            if vector is not None and vector.type != type and name not in self._told:
                self._told.add(name)
                self._notice(
                    f"{self._name}: column {name} is {vector.type} here, and a job expects {type}: the job reads it as NULL from "
                    "this log; give all agents a format in which the column has one type"
                )

    def _report_values(self, batch: Batch) -> None:
        """The first value of each column that does not convert to the type that jobs expect."""
        for sample in batch.lost_samples:
            if sample.column not in self._told:
                self._told.add(sample.column)
                self._notice(
                    f"{self._name}: {sample.column} is a {sample.type} for the jobs, and lines have other values"
                    f" ({sample.value!r}): these are NULL"
                )
