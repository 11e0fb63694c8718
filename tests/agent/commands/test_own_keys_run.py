"""`elf run` and `elf parse` over lines that name their values: any key is a column, and nothing is silently NULL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import elf
from elf.__main__ import main
from elf.agent.commands.parse import _account, read
from elf.agent.run.engine import RunOptions, run
from elf.jobmaster.windows.result import Window
from elf.sinks.console.grid import Style
from elf.sinks.console.jsonlines import meta_json

SECOND_US = 1_000_000


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    start = {"time": "2024-05-17T10:00:00Z"}
    lines = [
        json.dumps({**start, "time": f"2024-05-17T10:{at // 60:02}:{at % 60:02}Z", **one})
        for at, one in enumerate(records)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


class Kept:
    wants_open = wants_state = False

    def __init__(self) -> None:
        self.windows: list[Window] = []

    def put(self, window: Window) -> None:
        self.windows.append(window)

    def put_state(self, state: object) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def rows(query: str, *paths: Path) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in elf.run(query, list(paths)).rows()]


def noticed(query: str, *paths: Path) -> list[str]:
    told: list[str] = []
    run(RunOptions(query, tuple(map(str, paths))), [Kept()], notices=told.append)
    return [notice for notice in told if ": format " not in notice]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write(
        tmp_path / "app.json",
        [
            {
                "request": {"headers": {"Host": [f"h{at % 2}"]}},
                "ms": at,
                "cpu": at / 4,
                "ok": at % 3 == 0,
                "x y": "`",
                "Status": 204,
            }
            for at in range(12)
        ],
    )


def test_nested_and_odd_names_with_their_types(log: Path) -> None:
    query = (
        "SELECT request.headers.Host, sum(ms) AS ms, max(access.cpu) AS cpu, count_if(ok) AS n, max(length(`x y`)) AS l"
        " FROM access WHERE status = 204 GROUP BY 1 ORDER BY 1"
    )
    result = elf.run(query, log)
    assert {one.name: one.type for one in result.columns} == {
        "request.headers.Host": "string",
        "ms": "bigint",
        "cpu": "double",
        "n": "bigint",
        "l": "int",
    }
    assert [tuple(row.values()) for row in result.rows()] == [("h0", 30, 2.5, 2, 1), ("h1", 36, 2.75, 2, 1)]
    assert noticed(query, log) == []
    assert rows("SELECT `request.headers.Host.0` AS h, count(*) FROM access GROUP BY h", log) == [
        ("h0", 6),
        ("h1", 6),
    ]


def test_a_file_without_the_keys_is_an_error_that_lists_them(log: Path, tmp_path: Path) -> None:
    with pytest.raises(
        elf.ElfError,
        match=r"app\.json: no line has bytes; the keys are time, request\.headers\.Host, ms, cpu",
    ):
        elf.run("SELECT sum(bytes) FROM access", log)
    with pytest.raises(elf.ElfError, match=r"no line has hots; the keys are request\.headers\.Host"):
        elf.run("SELECT hots, count(*) FROM access GROUP BY hots", log)
    other = write(tmp_path / "other.json", [{"bytes": 5}])
    query = "SELECT sum(bytes) FROM access"
    assert rows(query, log, other) == [(5,)]
    (notice,) = noticed(query, log, other)
    assert "app.json: no line has bytes; the keys are " in notice
    assert rows("SELECT count(*) FROM access", log) == [(12,)]


def test_a_column_that_no_line_names_is_told(log: Path, tmp_path: Path) -> None:
    query = "SELECT ms, count(*) FROM access WHERE bytes > 5 GROUP BY ms"
    assert noticed(query, log) == ["no line has bytes: it is NULL throughout"]
    assert noticed(query.replace("bytes", "host"), log) == [
        "no line has host (nearest: request.headers.Host): it is NULL throughout"
    ]
    plain = tmp_path / "c.log"
    plain.write_text('10.0.0.1 - - [17/May/2024:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "-"\n')
    assert noticed(query, log, plain) == []


def test_a_key_that_comes_later_is_read(tmp_path: Path) -> None:
    pad = {"pad": "x" * 2000}
    log = write(tmp_path / "a.json", [*[pad] * 50, *[{"late": 5, **pad}] * 3])
    query = "SELECT late, sum(late) AS s FROM access WHERE late > 4 GROUP BY late"
    assert rows(query, log) == [("5", 15.0)]
    assert noticed(query, log) == ["no key late in the first lines; it is read as a string where it comes"]


def test_what_does_not_convert_is_counted_by_window_and_column(tmp_path: Path) -> None:
    pad = "x" * 2000
    records = [{"ms": at, "pad": pad} for at in range(60)]
    records += [{"ms": "slow" if at % 4 == 0 else at, "ok": True, "pad": pad} for at in range(60)]
    log, sink = write(tmp_path / "a.json", records), Kept()
    query = "SELECT window, sum(ms) AS ms, count(ok) AS n FROM access GROUP BY window(time, '30 seconds')"
    summary = run(RunOptions(query, (str(log),)), [sink])
    assert summary.not_converted == {"ms": 15}
    assert [window.lines.not_converted for window in sink.windows] == [(), (), (("ms", 8),), (("ms", 7),)]
    assert json.loads(meta_json(sink.windows[2]))["not_converted"] == {"ms": 8}
    assert "not_converted" not in json.loads(meta_json(sink.windows[0]))
    since = RunOptions(query, (str(log),), since_us=sink.windows[3].start)
    assert run(since, [Kept()]).not_converted == {"ms": 7}
    account = _account(read(str(log), "auto", 1, "UTC"), "auto", Style(False))
    assert "15 values of ms did not convert to bigint: NULL" in account
    assert sum("'slow' in {" in line for line in account) == 3


def test_mixed_kinds_are_told_and_read_as_text(tmp_path: Path) -> None:
    log = write(tmp_path / "a.json", [{"id": 5}, {"id": "x"}, {"id": 5}])
    assert rows("SELECT id, count(*) FROM access GROUP BY id", log) == [("5", 2), ("x", 1)]
    (notice,) = noticed("SELECT id, count(*) FROM access GROUP BY id", log)
    assert (
        notice
        == "the values of id are of several kinds (lines: whole number in 2, text in 1); it is read as a string"
    )


def test_files_of_several_formats_and_types(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.json", [{"x": 1, "path": "/"}])
    real = write(tmp_path / "b.json", [{"x": 2.5, "path": "/"}])
    plain = tmp_path / "c.log"
    plain.write_text('10.0.0.1 - - [17/May/2024:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "-"\n')
    query = "SELECT path, sum(x) AS s, min(x) AS low, max(x) AS high, count(*) AS n FROM access GROUP BY path"
    assert rows(query, whole, real, plain) == [("/", 3.5, 1.0, 2.5, 3)]


def test_the_command_says_what_was_lost_and_which_file_has_no_key(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pad = "x" * 2000
    log = write(tmp_path / "a.json", [{"ms": 5 if at < 50 else "slow", "pad": pad} for at in range(52)])
    other = write(tmp_path / "other.json", [{"took_seconds": 5}])
    assert main(["run", "SELECT sum(ms) AS s FROM access", str(log)]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == {"s": 250}
    assert "elf: values that did not convert to their column's type, so NULL: 2 of ms\n" in err
    assert f"elf: see them with: elf parse {log}\n" in err
    assert main(["run", "SELECT sum(ms) AS s FROM access", str(log), str(other)]) == 1
    out, err = capfd.readouterr()
    assert json.loads(out) == {"s": 250}
    assert f"elf: {other}: no line has ms; the keys are time, took_seconds\n" in err
    assert main(["run", "SELECT sum(ms) AS s FROM access", str(other)]) == 2
    out, err = capfd.readouterr()
    assert (out, f"elf: {other}: no line has ms; the keys are time, took_seconds\n" in err) == ("", True)
    assert main(["parse", str(log), "--limit", "1"]) == 0
    out, _ = capfd.readouterr()
    assert "2 values of ms did not convert to bigint: NULL\n  'slow' in {" in out
