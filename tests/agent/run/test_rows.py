"""Queries whose rows are lines: the same rows as a plain reading of the log, in any division into blocks and any memory."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import elf
from elf.__main__ import main
from elf.agent.formats.formats import column_types, resolve
from elf.agent.formats.parser import Parser
from elf.agent.run.rows import RowReader
from elf.agent.work.feed import complete
from elf.cbt.budget import Budget
from elf.jobmaster.compile.query import compile_for_run
from elf.jobmaster.plan import codec
from elf.jobmaster.plan.plan import RowPlan
from elf.jobmaster.values.columns import ColumnRows
from tests.rigs import paths
from tests.rigs.lines import NGINX_FORMAT, lines, records

REAL_LOG = paths.DATA / "apache_combined_10k.log"
REAL_LINE = re.compile(
    r'^(\S+) \S+ \S+ \[([^\]]+)\] "([A-Z]+) ([^ ?"]*)(?:\?[^ "]*)? ([^ "]+)" (\d{3}) (\d+|-) "[^"]*" "[^"]*"$'
)
real = pytest.mark.skipif(not REAL_LOG.exists(), reason="the sample log is not beside the project")
FORMAT = resolve(NGINX_FORMAT)
SCHEMA = {"access": dict(column_types(FORMAT))}
LINES = lines(120, seed=3)
RECORDS = records(LINES)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


def plan_of(sql: str) -> RowPlan:
    plan = compile_for_run(sql, SCHEMA)
    assert isinstance(plan, RowPlan)
    assert codec.decode_any(codec.encode_any(plan)) == plan
    return plan


def rows_of(sql: str, blocks: Iterable[list[str]], memory: int = 64 << 20) -> list[tuple[Any, ...]]:
    """The rows of a query whose lines come in these blocks; the dictionaries are emptied before each."""
    reader = RowReader(plan_of(sql), Budget(memory, None, lambda: 0))
    parser = Parser(FORMAT, [column.name for column in reader.plan.columns])
    for block in blocks:
        parser.clear()
        reader.forget()
        reader.add(complete(parser.parse("".join(f"{line}\n" for line in block).encode()), reader))
    if reader.spool is not None:
        return list(reader.spool)
    return [row for cells in reader.ready for row in ColumnRows(cells, 0, len(cells[0]))]


COLUMNS = ("user", "path", "bytes", "request_time", "status", "time", "method", "referer")


def key_of(name: str) -> Callable[[dict[str, Any]], Any]:
    if name == "request_time":
        return lambda record: None if record[name] is None else float(record[name])
    if name in ("user", "path", "method", "referer"):
        return lambda record: None if record[name] is None else record[name].encode()
    return lambda record: record[name]


@st.composite
def orders(draw: st.DrawFn) -> list[tuple[str, bool, bool | None]]:
    """Columns with DESC, and NULLS FIRST if it is said."""
    names = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3, unique=True))
    return [(name, draw(st.booleans()), draw(st.sampled_from([None, True, False]))) for name in names]


@settings(max_examples=60, deadline=None)
@given(
    order=orders(),
    limit=st.none() | st.integers(0, 40),
    cuts=st.lists(st.integers(0, len(LINES)), max_size=6).map(sorted),
    least=st.sampled_from([0, 300, 400]),
    memory=st.sampled_from([1 << 20, 64 << 20]),
)
def test_order_and_limit_as_a_sort_of_all_lines(
    order: list[tuple[str, bool, bool | None]], limit: int | None, cuts: list[int], least: int, memory: int
) -> None:
    """Spark's order: NULLs first ascending and last descending unless it is said. Ties stay in the order of the lines."""
    expected = [(number, record) for number, record in enumerate(RECORDS) if record["status"] >= least]
    for name, descending, nulls_first in reversed(order):  # a stable sort by the least important item first
        key, first = key_of(name), not descending if nulls_first is None else nulls_first
        nulls = [each for each in expected if key(each[1]) is None]
        rest = [each for each in expected if key(each[1]) is not None]
        rest.sort(key=lambda each, key=key: key(each[1]), reverse=descending)  # type: ignore[misc]
        expected = [*nulls, *rest] if first else [*rest, *nulls]
    said = {None: "", True: " NULLS FIRST", False: " NULLS LAST"}
    by = ", ".join(f"{name}{' DESC' if desc else ''}{said[nulls]}" for name, desc, nulls in order)
    sql = f"SELECT time, path, bytes WHERE status >= {least} ORDER BY {by}"
    sql += "" if limit is None else f" LIMIT {limit}"
    blocks = [LINES[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(LINES)])]
    wanted = [(record["time"], record["path"], record["bytes"]) for _, record in expected]
    assert rows_of(sql, blocks, memory) == wanted[:limit]


@settings(max_examples=30, deadline=None)
@given(
    limit=st.none() | st.integers(0, 130), cuts=st.lists(st.integers(0, len(LINES)), max_size=6).map(sorted)
)
def test_without_order_the_first_rows_of_the_log(limit: int | None, cuts: list[int]) -> None:
    sql = "SELECT path, bytes, length(path) AS n, n * 2 AS m WHERE bytes > 100"
    sql += "" if limit is None else f" LIMIT {limit}"
    blocks = [LINES[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(LINES)])]
    wanted = [
        (
            each["path"],
            each["bytes"],
            *([None] * 2 if each["path"] is None else [len(each["path"]), 2 * len(each["path"])]),
        )
        for each in RECORDS
        if each["bytes"] is not None and each["bytes"] > 100
    ]
    assert rows_of(sql, blocks) == wanted[:limit]


@real
def test_the_real_log(capfd: pytest.CaptureFixture[str]) -> None:
    """Against one regular expression that knows nothing of elf."""
    matches = [match for line in REAL_LOG.read_text().splitlines() if (match := REAL_LINE.match(line))]
    wanted = [
        [match[1], match[3], match[4], match[6], match[7].replace("-", "0")]
        for match in matches
        if int(match[6]) >= 400 and match[3] == "GET"
    ]
    query = "SELECT client_ip, method, path, status, bytes WHERE status >= 400 AND method = 'GET'"
    assert main(["run", query, str(REAL_LOG), "--output", "csv", "-q"]) == 0
    header, *rows = csv.reader(io.StringIO(capfd.readouterr().out))
    assert header == ["client_ip", "method", "path", "status", "bytes"]
    assert len(rows) > 100
    assert rows == wanted

    largest = elf.run("SELECT bytes, path ORDER BY bytes DESC, path LIMIT 7", REAL_LOG)
    sizes = sorted(
        ((-int(m[7]), m[4]) for m in matches if m[7] != "-"), key=lambda pair: (pair[0], pair[1].encode())
    )
    assert [(row["bytes"], row["path"]) for row in largest.rows()] == [
        (-size, path) for size, path in sizes[:7]
    ]

    distinct = elf.run("SELECT DISTINCT status, method FROM access ORDER BY status DESC, method", REAL_LOG)
    pairs = {(int(m[6]), m[3]) for m in matches}
    found = [(row["status"], row["method"]) for row in distinct.rows()]
    assert set(found) >= pairs
    assert found == sorted(set(found), key=lambda pair: (-pair[0], pair[1]))


@real
def test_a_star_is_the_columns_of_the_format_in_its_order() -> None:
    result = elf.run("SELECT *, length(path) AS n FROM access LIMIT 3", REAL_LOG)
    names = [column.name for column in result.columns]
    assert names == [*resolve("combined").columns(), "n"]
    assert len(result) == 1
    first = next(result.rows())
    assert (first["client_ip"], first["status"], first["n"]) == ("83.149.9.216", 200, 64)
    assert result.to_arrow().num_rows == 3
    assert result.summary.lines < 10_000  # reading stopped at LIMIT


@real
def test_one_window_in_python_however_many_blocks() -> None:
    result = elf.run("SELECT path, bytes FROM access", REAL_LOG)
    assert len(result) == 1
    assert result.to_arrow().num_rows == len(list(result.rows())) == result.summary.parsed == 9_999
    for query in (
        "SELECT path WHERE false",
        "SELECT path WHERE false ORDER BY path",
        "SELECT path ORDER BY path LIMIT 0",
    ):
        nothing = elf.run(query, REAL_LOG)
        assert (list(nothing.rows()), nothing.to_arrow().num_rows, len(nothing)) == ([], 0, 1)


@real
def test_order_beyond_memory_is_spilled_and_the_same(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(REAL_LOG.read_bytes() * 2)
    query = "SELECT path, user_agent, bytes FROM access ORDER BY user_agent, bytes"
    small = elf.run(query, log, memory_max="1MiB")
    assert small.summary.spilled_bytes > 0
    assert list(small.rows()) == list(elf.run(query, log).rows())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SELECT path ORDER BY path", "--follow"], "--follow has no last one"),
        (["SELECT path", "--sink", "parquet:lake"], "this query returns lines"),
        (["SELECT path, path"], "two columns are named path"),
        (["SELECT *, count(*)"], "* cannot be used here"),
        (["SELECT path ORDER BY 3"], "ORDER BY 3: SELECT has 1 items"),
        (["SELECT n, length(path) AS n"], "it is an alias of SELECT"),
    ],
)
def test_refused(
    arguments: list[str],
    message: str,
    log: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(log.parent)
    query, *rest = arguments
    assert main(["run", query, str(log), "--format", NGINX_FORMAT, *rest]) == 2
    assert message in capfd.readouterr().err


def test_explain(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["explain", "SELECT path WHERE status > :s ORDER BY time DESC LIMIT 2", "--param", "s=499"]) == 0
    )
    assert capfd.readouterr().out.splitlines() == [
        "plan      rows of access, each of one line",
        "reads     path string, status bigint, time timestamp",
        "where     (status > :s)",
        "returns   path string",
        "order     time descending",
        "limit     2",
        "values    s bigint = 499",
    ]


def test_following_ends_at_the_limit(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The only way to end without a signal: rows come without a last line of the log."""
    query = "SELECT time, path WHERE status >= 400 LIMIT 3"
    assert main(["run", query, str(log), "--format", NGINX_FORMAT, "--follow", "-q"]) == 0
    followed = capfd.readouterr().out
    assert main(["run", query, str(log), "--format", NGINX_FORMAT, "-q"]) == 0
    assert followed == capfd.readouterr().out
    assert len(followed.splitlines()) == 3
