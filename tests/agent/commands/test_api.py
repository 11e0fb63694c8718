"""ELF from Python."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import elf
from elf.jobmaster.values.columns import ColumnRows, column_of
from elf.jobmaster.windows.result import ColumnInfo
from elf.sinks.results import arrow
from tests.rigs.lines import NGINX_FORMAT, lines, records


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_text("\n".join(lines(200, 9)) + "\n")
    return path


def test_windows_rows_and_summary(log: Path) -> None:
    result = elf.run(
        "SELECT window, count(*) AS n FROM access GROUP BY window(time, '1 minute')",
        str(log),
        format=NGINX_FORMAT,
    )
    assert sum(row["n"] for row in result.rows()) == 200 == result.summary.parsed
    first = next(result.rows())
    earliest = min(record["time"] for record in records(log.read_text().splitlines())) // 60_000_000 * 60
    assert first["window"]["start"] == datetime.fromtimestamp(earliest, UTC)
    assert first["window"]["end"] == datetime.fromtimestamp(earliest + 60, UTC)
    assert [column.name for column in result.columns] == ["window", "n"]


def test_arrow_is_taken_by_duckdb_and_pyarrow(log: Path) -> None:
    result = elf.run(
        "SELECT window, path, count(*) AS n, sum(request_time) AS t, avg(bytes) AS a, "
        "approx_percentile(bytes, array(0.5, 0.9)) AS p FROM access GROUP BY window(time, '1 minute'), path",
        log,
        format=NGINX_FORMAT,
    )
    table = pa.table(result)
    time = pa.timestamp("us", tz="UTC")
    assert table.schema == pa.schema(
        [
            ("window", pa.struct([("start", time), ("end", time)])),
            ("path", pa.string()),
            ("n", pa.int64()),
            ("t", pa.decimal128(28, 6)),
            ("a", pa.float64()),
            ("p", pa.list_(pa.int64())),
        ]
    )
    expected = sum(Decimal(record["request_time"] or 0) for record in records(log.read_text().splitlines()))
    relation = duckdb.sql("SELECT sum(n), sum(t) FROM result")
    assert relation is not None
    assert relation.fetchall() == [(200, expected)]


def test_several_files_and_formats_are_one_source(log: Path, tmp_path: Path) -> None:
    log.write_text("\n".join(lines(200, 9, with_time=False)) + "\n")
    other = tmp_path / "other.json"
    other.write_text('{"time":"2015-05-17T10:05:03Z","status":200,"bytes":7,"path":"/json"}\n' * 3)
    result = elf.run(
        "SELECT path, count(*) AS n, count(user_agent) AS u FROM access WHERE path IN ('/json', '/a') GROUP BY path",
        [log, other],
    )
    wanted = sum(record["path"] == "/a" for record in records(log.read_text().splitlines()))
    with_agent = sum(
        record["path"] == "/a" and record["user_agent"] is not None
        for record in records(log.read_text().splitlines())
    )
    assert [tuple(row.values()) for row in result.rows()] == [("/a", wanted, with_agent), ("/json", 3, 0)]


def test_errors_are_elfs_own(log: Path) -> None:
    with pytest.raises(elf.ElfError, match="line 1, column 8"):
        elf.run("SELECT nothing FROM access GROUP BY 1", log, format=NGINX_FORMAT)
    with pytest.raises(elf.ElfError, match=r"missing\.log: no such file"):
        elf.run("SELECT count(*) FROM access", log.with_name("missing.log"))


def test_a_percentile_beside_nan_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(
        "".join(
            f'10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET /{text} HTTP/1.1" 200 5 "-" "-"\n'
            for text in ("1.5", "2.5", "3.5", "NaN")
        )
    )
    query = "SELECT approx_percentile(CAST(substring(path, 2) AS DOUBLE), array(0.5, 1.0)) AS p FROM access"
    middle, last = next(elf.run(query, path, format="combined").rows())["p"]
    assert middle == pytest.approx(2.5, rel=0.01)
    assert math.isnan(last)  # NaN is the greatest of all


def test_a_result_without_windows_has_its_columns(tmp_path: Path) -> None:
    log = tmp_path / "empty.log"
    log.touch()
    result = elf.run("SELECT window, count(*) AS n FROM access GROUP BY window(time, '1 day')", log)
    assert len(result) == 0
    assert pa.table(result).schema.names == ["window", "n"]


def test_what_cannot_be_is_told(log: Path) -> None:
    query = "SELECT count(*) AS n FROM access"
    with pytest.raises(elf.ElfError, match="memory_max: expected a size like"):
        elf.run(query, log, format=NGINX_FORMAT, memory_max="lots")
    with pytest.raises(elf.ElfError, match="no file to read"):
        elf.run(query, [])
    with pytest.raises(
        elf.ElfError, match=r"access\.log: none of 200 lines could be parsed \(200 bad JSON\)"
    ):
        elf.run(query, log, format="json")
    (row,) = elf.run(query, log, format=NGINX_FORMAT, memory_max="8MiB").rows()
    assert row == {"n": 200}


def test_sums_of_decimals_beyond_64_bits_are_exact_or_null(tmp_path: Path) -> None:
    nines = 10**38 - 1
    groups = {
        "a": [10**20 + 7, -(10**25), 3],
        "b": [nines, -nines, 5],
        "c": [nines, nines],
        "d": [-nines, -1],
    }
    log = tmp_path / "wide.ltsv"
    log.write_text(
        "".join(
            f"time:2024-05-17T10:05:03Z\tstatus:200\tpath:{key}\tuser_agent:{value}\n"
            for key, values in groups.items()
            for value in values
        )
    )
    wide = "CAST(user_agent AS DECIMAL(38,0))"
    result = elf.run(
        f"SELECT path, sum({wide}) AS s, avg({wide}) AS a, approx_count_distinct({wide}) AS d FROM access GROUP BY path",
        log,
        format="ltsv",
    )
    rows = {row["path"]: row for row in result.rows()}
    for key, values in groups.items():
        fits = abs(sum(values)) < 10**38
        assert rows[key]["s"] == (sum(values) if fits else None)
        assert rows[key]["d"] == len(set(values))
    assert Fraction(rows["a"]["a"]) == Fraction(round(Fraction(sum(groups["a"]) * 10_000, 3)), 10_000)
    assert rows["b"]["a"] == Decimal("1.6667")
    assert rows["c"]["a"] is rows["d"]["a"] is None
    assert result.summary.overflows == 4


KINDS = {
    "window": "struct<start:timestamp,end:timestamp>",
    "text": "string",
    "whole": "bigint",
    "small": "int",
    "yes": "boolean",
    "real": "double",
    "at": "timestamp",
    "money": "decimal(18,6)",
    "wide": "decimal(38,20)",
    "list": "array<double>",
    "none": "void",
}
HELD: dict[str, list[Any]] = {
    "window": [(0, 60_000_000), (-5, 7), (2**52, 2**52 + 1)],
    "text": ["é", None, ""],
    "whole": [2**63 - 1, None, -(2**63)],
    "small": [2**31 - 1, -(2**31), None],
    "yes": [True, None, False],
    "real": [math.nan, None, -0.0],
    "at": [-1, None, 1_790_000_000_000_001],
    "money": [Decimal("-0.000001"), Decimal("999999999999.999999"), None],
    "wide": [Decimal(10**38 - 1).scaleb(-20, Context(prec=40)), None, Decimal("-1E-20")],
    "list": [[1.5, None], None, []],
    "none": [None, None, None],
}


def test_columns_become_the_same_arrow_as_tuples() -> None:
    """Of every type, with NULL, cut out of the middle, in several windows, one of which is tuples."""
    columns = tuple(ColumnInfo(name, kind) for name, kind in KINDS.items())
    cells = [column_of(kind, HELD[name]) for name, kind in KINDS.items()]
    rows = ColumnRows(cells, 0, 3)
    tuples = list(zip(*HELD.values(), strict=True))
    assert [repr(row) for row in rows] == [repr(row) for row in tuples]
    for windows in ([rows], [rows[1:], rows[:0], tuples, rows[:2]], [tuples], []):
        found = arrow.table(columns, windows)
        wanted = arrow.table(columns, [list(window) for window in windows])
        found.validate(full=True)
        assert found.schema == wanted.schema
        assert repr(found.to_pylist()) == repr(wanted.to_pylist())
        assert found.num_rows == sum(map(len, windows))
    for name, got in arrow.table(columns, [rows]).to_pydict().items():
        if name not in ("window", "at"):
            assert repr(got) == repr(HELD[name])
    assert arrow.table(columns, [rows])["at"].cast(pa.int64()).to_pylist() == HELD["at"]


def test_a_result_keeps_columns_and_only_its_own_rows(log: Path) -> None:
    query = "SELECT path, count(*) AS n FROM access GROUP BY path ORDER BY n DESC, path LIMIT 2"
    result = elf.run(query, log, format=NGINX_FORMAT)
    rows = result.windows[0].rows
    assert isinstance(rows, ColumnRows)
    assert [
        len(column.values.base if column.values.base is not None else column.values) for column in rows.cells
    ] == [2, 2]
    counts = Counter(record["path"] for record in records(log.read_text().splitlines()))
    best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:2]
    assert list(rows) == best
    assert pa.table(result).to_pylist() == [{"path": path, "n": n} for path, n in best]
