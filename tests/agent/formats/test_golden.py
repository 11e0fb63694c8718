"""Golden records: real-looking lines of every preset beside the column values they must give.

A golden file holds lines of the log, each followed by what it gives, indented: `column = value` (columns that are not listed are
NULL), `! reason` for a rejected line, `# comment` for one that is neither. A value between double quotes is JSON.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

from elf.agent.formats.formats import column_types
from elf.agent.formats.parser import Parser
from elf.agent.formats.presets import PRESETS
from elf.jobmaster.values.sql_types import TIMESTAMP
from tests.rigs import paths

GOLDEN = paths.GOLDEN / "formats"


class Entry(NamedTuple):
    line: bytes
    values: dict[str, str] | None  # None: not a record
    reason: str


def entries(name: str) -> list[Entry]:
    out: list[Entry] = []
    for text in (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if not text.strip():
            continue
        if not text.startswith("    "):
            out.append(Entry(text.encode(), {}, ""))
        elif text.startswith("    ! "):
            out[-1] = out[-1]._replace(values=None, reason=text[6:])
        elif text.startswith("    # "):
            out[-1] = out[-1]._replace(values=None)
        else:
            column, _, value = text.strip().partition(" = ")
            values = out[-1].values
            assert values is not None
            values[column] = json.loads(value) if value.startswith('"') else value
    return out


def shown(value: object, column: str, types: dict[str, object]) -> str | None:
    if value is None:
        return None
    if types[column] == TIMESTAMP:
        assert isinstance(value, int)
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return str(value)


@pytest.mark.parametrize("name", PRESETS)
def test_every_line_gives_its_golden_record(name: str) -> None:
    plan = PRESETS[name]
    expected = entries(name)
    columns = tuple(plan.columns())
    batch = Parser(plan, columns).parse(b"".join(entry.line + b"\n" for entry in expected))
    records = [entry.values for entry in expected if entry.values is not None]
    reasons = [entry.reason for entry in expected if entry.reason]
    assert [sample.reason.value for sample in batch.samples] == reasons
    assert sum(batch.rejects.values()) == len(reasons)
    assert batch.lines == len(records) + len(reasons)
    assert batch.rows == len(records)
    types: dict[str, object] = dict(column_types(plan))
    for column in columns:
        got = [shown(v, column, types) for v in batch.columns[column].to_python()]
        assert got == [record.get(column) for record in records], column


@pytest.mark.parametrize("name", PRESETS)
def test_golden_records_cover_every_column(name: str) -> None:
    covered = {column for entry in entries(name) if entry.values for column in entry.values}
    assert covered == set(PRESETS[name].columns())


@pytest.mark.parametrize("name", PRESETS)
def test_acceptance_does_not_depend_on_the_columns_asked_for(name: str) -> None:
    plan = PRESETS[name]
    block = b"".join(entry.line + b"\n" for entry in entries(name))
    whole = Parser(plan, tuple(plan.columns())).parse(block)
    for columns in ((), ("time",), ("status",)):
        part = Parser(plan, columns).parse(block)
        assert (part.rows, dict(part.rejects), part.lines) == (whole.rows, dict(whole.rejects), whole.lines)
        assert part.reject_rows.tolist() == whole.reject_rows.tolist()


@pytest.mark.parametrize("name", PRESETS)
def test_the_sources_time_zone_applies_only_where_the_log_has_none(name: str) -> None:
    block = b"".join(entry.line + b"\n" for entry in entries(name))
    utc = Parser(PRESETS[name], ("time",)).parse(block).columns["time"].values
    local = Parser(PRESETS[name], ("time",), timezone="Asia/Tokyo").parse(block).columns["time"].values
    moved = 0 if PRESETS[name].zone else 9 * 3600 * 1_000_000
    assert ((utc - local) == moved).all()
