"""Windows as rows of Parquet files: what a reader of Parquet sees after revisions, withdrawals and changes."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

from elf.jobmaster.windows.result import ColumnInfo, Lines, Window
from elf.sinks.console.jsonlines import window_object
from elf.sinks.delivery.contract import DeclinedError, DeliveryError, WindowMessage
from elf.sinks.results import writer
from elf.sinks.results.carrier import ResultsCarrier
from elf.sinks.results.frames import ResultRequest, ResultWindow
from elf.sinks.results.writer import HOUR_US, write

HOUR = 1_764_248_400_000_000  # 2025-11-27 13:00 UTC
COLUMNS = (("window", "struct<start:timestamp,end:timestamp>"), ("status", "int"), ("hits", "bigint"))
Row = tuple[Any, ...]


def of(
    start: int,
    rows: list[Row],
    revision: int = 1,
    *,
    status: str = "final",
    version: str = "v1",
    columns: tuple[tuple[str, str], ...] = COLUMNS,
    job: str = "hits",
) -> ResultWindow:
    """A window as an agent makes it: its text is that of `window_object`."""
    infos = tuple(ColumnInfo(*each) for each in columns)
    about = (job, version, start, start + 10_000_000, status, (1, 7, revision), Lines(1, 1, 0, 0))
    body = window_object(Window(*about, infos, tuple(rows)))
    return ResultWindow(job, version, start, status, f"1.{7:048x}.{revision}", columns, body)


def rows_of(start: int, *counts: tuple[int, int]) -> list[Row]:
    return [((start, start + 10_000_000), status, hits) for status, hits in counts]


def put(folder: Path, *windows: ResultWindow) -> None:
    folder.mkdir(exist_ok=True)
    answer = write(ResultRequest(str(folder), list(windows)))
    assert (answer.failed, answer.declined, sorted(answer.written)) == ("", {}, list(range(len(windows))))


def read(folder: Path) -> list[tuple[int, int, int]]:
    """(start, status, hits) of all rows, in the order of the files."""
    rows = pq.read_table(folder).to_pylist()
    return [(round(row["window"]["start"].timestamp() * 1e6), row["status"], row["hits"]) for row in rows]


def test_three_readers_see_the_columns_of_the_query_and_nothing_else(tmp_path: Path) -> None:
    start = HOUR + 50_000_000
    put(tmp_path / "out", of(HOUR, rows_of(HOUR, (200, 5))), of(start, rows_of(start, (404, 1), (200, 7))))
    names = [name for name, _ in COLUMNS]
    folder = tmp_path / "out" / "hits"
    assert [each.name for each in folder.iterdir()] == ["2025-11-27T13.parquet"]
    frame = pd.read_parquet(folder)
    assert (list(frame.columns), frame["hits"].tolist()) == (names, [5, 1, 7])
    polars = pl.read_parquet(folder)
    assert (polars.columns, polars["hits"].to_list()) == (names, [5, 1, 7])
    assert polars["window"].struct.field("start")[2] == datetime(2025, 11, 27, 13, 0, 50, tzinfo=UTC)
    text = f"SELECT status, sum(hits) AS n FROM '{folder}/*.parquet' GROUP BY status ORDER BY status"
    found = duckdb.connect().execute(text).fetchall()
    assert found == [(200, 12), (404, 1)]


def test_values_of_each_type_are_those_of_the_window(tmp_path: Path) -> None:
    columns = (
        ("t", "timestamp"),
        ("d", "double"),
        ("m", "decimal(38,6)"),
        ("s", "string"),
        ("b", "boolean"),
        ("i", "int"),
        ("a", "array<double>"),
        ("n", "void"),
    )
    most = Decimal("9" * 32 + ".123456")
    first = (HOUR + 1, 0.1, Decimal("1.5"), 'a"\n\\é', True, -(2**31), (0.25, None), None)
    second = (None, math.nan, most, "", None, 2**31 - 1, (), None)
    third = (None, -math.inf, None, None, False, None, None, None)
    put(tmp_path / "out", of(HOUR, [first, second, third], columns=columns))
    one, two, three = pq.read_table(tmp_path / "out" / "hits").to_pylist()
    assert one == {
        "t": datetime(2025, 11, 27, 13, 0, 0, 1, tzinfo=UTC),
        "d": 0.1,
        "m": Decimal("1.5"),
        "s": 'a"\n\\é',
        "b": True,
        "i": -(2**31),
        "a": [0.25, None],
        "n": None,
    }
    assert (math.isnan(two["d"]), two["m"], two["s"], two["a"]) == (True, most, "", [])
    assert (three["d"], three["m"], three["s"], three["b"], three["a"]) == (
        -math.inf,
        None,
        None,
        False,
        None,
    )


def test_a_revision_takes_the_place_of_the_one_before_and_never_the_other_way_round(tmp_path: Path) -> None:
    out, later = tmp_path / "out", HOUR + 10_000_000
    put(out, of(HOUR, rows_of(HOUR, (200, 5), (404, 2))), of(later, rows_of(later, (200, 1))))
    revised = of(HOUR, rows_of(HOUR, (200, 6)), 10, status="revised")
    put(out, revised)
    put(out, of(HOUR, rows_of(HOUR, (200, 5), (404, 2)), 9), revised)
    assert read(out / "hits") == [(HOUR, 200, 6), (later, 200, 1)]


def test_windows_stand_in_the_order_of_time_in_the_file_of_their_hour(tmp_path: Path) -> None:
    out, starts = tmp_path / "out", [HOUR + HOUR_US, HOUR + 20_000_000, HOUR]
    for n, start in enumerate(starts):
        put(out, of(start, rows_of(start, (200, n))))
    assert sorted(each.name for each in (out / "hits").iterdir()) == [
        "2025-11-27T13.parquet",
        "2025-11-27T14.parquet",
    ]
    assert read(out / "hits") == [(HOUR, 200, 2), (starts[1], 200, 1), (starts[0], 200, 0)]


def test_a_large_hour_has_several_files_and_a_revision_stays_in_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PART_ROWS", 4)
    out, starts = tmp_path / "out", [HOUR + n * 10_000_000 for n in range(5)]
    put(out, *(of(start, rows_of(start, (200, n), (404, n))) for n, start in enumerate(starts[:3])))
    for n, start in enumerate(starts[3:], 3):
        put(out, of(start, rows_of(start, (200, n), (404, n))))
    put(
        out,
        of(starts[0], rows_of(starts[0], (200, 9)), 2),
        of(starts[3], [], 2, status="withdrawn", columns=()),
    )
    files = {each.name: each for each in (out / "hits").iterdir()}
    assert sorted(files) == ["2025-11-27T13.parquet", "2025-11-27T13~2.parquet", "2025-11-27T13~3.parquet"]
    assert read(files["2025-11-27T13.parquet"]) == [
        (starts[0], 200, 9),
        (starts[1], 200, 1),
        (starts[1], 404, 1),
    ]
    assert read(files["2025-11-27T13~2.parquet"]) == [(starts[2], 200, 2), (starts[2], 404, 2)]
    assert read(files["2025-11-27T13~3.parquet"]) == [(starts[4], 200, 4), (starts[4], 404, 4)]


def test_a_withdrawn_window_leaves_no_row_and_does_not_come_back(tmp_path: Path) -> None:
    out, only = tmp_path / "out", of(HOUR, rows_of(HOUR, (200, 5)))
    put(out, only)
    put(out, of(HOUR, [], 2, status="withdrawn", columns=()))
    put(out, only)
    assert read(out / "hits") == []
    put(out, of(HOUR, rows_of(HOUR, (200, 8)), 3, status="revised"))
    assert read(out / "hits") == [(HOUR, 200, 8)]
    put(out, of(HOUR, [], 4, status="withdrawn", columns=(), version="of no file"))
    assert read(out / "hits") == [(HOUR, 200, 8)]


def test_a_final_window_without_rows_is_a_file_that_readers_take(tmp_path: Path) -> None:
    put(tmp_path / "out", of(HOUR, []))
    table = pq.read_table(tmp_path / "out" / "hits")
    assert (table.column_names, table.num_rows) == ([name for name, _ in COLUMNS], 0)


def test_versions_with_the_same_columns_share_files_and_others_have_a_folder_of_their_own(
    tmp_path: Path,
) -> None:
    out, wider = tmp_path / "out", (*COLUMNS, ("bytes", "decimal(38,0)"))
    put(out, of(HOUR, rows_of(HOUR, (200, 5))), of(HOUR, rows_of(HOUR, (200, 3)), version="v2"))
    rows = [(*row, Decimal(70)) for row in rows_of(HOUR, (200, 1))]
    put(out, of(HOUR, rows, version="v3", columns=wider), of(HOUR, rows_of(HOUR, (200, 9)), 2))
    assert sorted(each.name for each in out.iterdir() if each.is_dir()) == ["hits", "hits~2"]
    assert read(out / "hits") == [(HOUR, 200, 3), (HOUR, 200, 9)]
    assert pq.read_table(out / "hits~2").column("bytes").to_pylist() == [Decimal(70)]
    put(out, of(HOUR, [], 5, status="withdrawn", columns=(), version="v3"))
    assert (len(read(out / "hits")), read(out / "hits~2")) == (2, [])


def test_a_file_that_is_none_of_these_is_named_and_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put(out, of(HOUR, rows_of(HOUR, (200, 5))))
    (path,) = (out / "hits").iterdir()
    foreign = pd.DataFrame({"x": [1]})
    for damage in (lambda: path.write_bytes(path.read_bytes()[:-9]), lambda: foreign.to_parquet(path)):
        damage()
        before = path.read_bytes()
        other = of(HOUR + HOUR_US, rows_of(HOUR, (200, 1)), job="others")
        answer = write(ResultRequest(str(out), [other, of(HOUR, rows_of(HOUR, (200, 6)), 2)]))
        assert (answer.written, path.read_bytes()) == ([0], before)
        assert answer.failed == f"{path}: is no file of this sink, or damaged; move it away"


def test_a_window_that_no_column_can_hold_is_declined_and_the_others_are_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    far = of(HOUR, [((HOUR, HOUR), 10**12, 1)])
    answer = write(ResultRequest(str(out), [far, of(HOUR + 10_000_000, rows_of(HOUR, (200, 1)))]))
    assert (answer.written, list(answer.declined), answer.failed) == ([1], [0], "")
    assert "fits no Parquet column" in answer.declined[0]


def message(start: int, hits: int, size: int = 0) -> WindowMessage:
    window = of(start, rows_of(start, (size or 200, hits)))
    about = ("id", "hits", "v1", "final", window.revision, "ff", window.body, True, 3600)
    return WindowMessage(*about, start_us=start, columns=COLUMNS)


@pytest.mark.process
def test_the_carrier_writes_what_waits_in_one_process_and_says_why_it_cannot(tmp_path: Path) -> None:
    carrier = ResultsCarrier(tmp_path / "out")

    async def work() -> None:
        await carrier.connect()
        windows = [carrier.deliver(message(HOUR + n * 10_000_000, n)) for n in range(5)]
        bad = carrier.deliver(message(HOUR + HOUR_US, 1, 10**12))
        *done, declined = await asyncio.gather(*windows, bad, return_exceptions=True)
        assert (done, type(declined)) == ([None] * 5, DeclinedError)
        (path,) = (tmp_path / "out" / "hits").iterdir()
        path.write_bytes(b"no Parquet")
        with pytest.raises(DeliveryError, match=r"13\.parquet: is no file of this sink, or damaged; move it"):
            await carrier.deliver(message(HOUR, 9))
        path.unlink()
        await carrier.deliver(message(HOUR, 9))
        await carrier.close()

    asyncio.run(work())
    assert read(tmp_path / "out" / "hits") == [(HOUR, 200, 9)]
