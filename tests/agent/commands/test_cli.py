"""The `elf` command as people and scripts meet it: messages and exit codes, within this process."""

from __future__ import annotations

import json
import lzma
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from elf.__main__ import main
from elf.agent.config.specs import own_sink
from elf.sinks.spec import parse
from tests.rigs import paths

HEAD = "192.0.2.{0} - - [17/May/2015:10:05:{1:02} +0000]"
LINES = [
    f'{HEAD.format(n % 7, n)} "GET /{n % 3} HTTP/1.1" {200 if n % 4 else 404} {n} "-" "curl/8"\n'
    for n in range(40)
]
BAD = '192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "-" "unterminated\n'
QUERY = "SELECT status, count(*) AS hits, sum(bytes) AS bytes FROM access GROUP BY status ORDER BY status"


FROM_TO = "elf: nothing fits the query; the lines are from 2015-05-17 10:05:00 to 2015-05-17 10:05:39 UTC\n"
ODD = str(paths.TESTS / "conftest.py")
"""A file that is no log."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_text("".join(LINES))
    return path


def elf(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command run within this process."""
    code = main([str(argument) for argument in arguments])
    out, err = capfd.readouterr()
    return code, out, err


class TestHelp:
    def test_version_tells_how_it_was_built(self, capfd: pytest.CaptureFixture[str]) -> None:
        code, out, _ = elf(capfd, "--version")
        assert code == 0
        assert out.startswith("elf ")
        assert "python: " in out
        assert "build: " in out or "compiler: " in out


def test_a_configuration_without_its_option_is_answered_with_the_option(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code, _, err = elf(capfd, "validate", "x.toml")
    assert code == 2
    assert (
        err
        == "elf: got unexpected extra argument(s) (x.toml); a configuration is given with --config; see elf validate --help\n"
    )


class TestTypes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["parse", "x", "--limit", "-3"], "'--limit': expected a whole number from 0, found '-3'"),
            (["parse", "x", "--limit", "many"], "'--limit': expected a whole number from 0, found 'many'"),
            (["demo", "--seconds", "5"], "'--seconds': expected a whole number from 20 to 3600, found '5'"),
            (["run", "q", "x", "--color", "red"], "'--color': expected auto, always, never, found 'red'"),
            (["explain", "q", "--output", "xml"], "'--output': expected text, json, found 'xml'"),
        ],
    )
    def test_what_does_not_fit_is_told(
        self, capfd: pytest.CaptureFixture[str], arguments: Sequence[str], message: str
    ) -> None:
        code, _, err = elf(capfd, *arguments)
        assert code == 2
        assert err.startswith(f"elf: invalid value for {message}")


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["rnu"], "elf: no such command 'rnu'. Did you mean 'run'?; see elf --help"),
            (["run", "--fromat", "x", "q", "f"], "elf: no such option: --fromat"),
            (
                ["run"],
                "elf: missing argument 'QUERY', a file of it with --file, or a usual question with --report NAME",
            ),
            (["run", "--report", "traffic"], "elf: no file to read; name one, or - for stdin"),
            (["run", QUERY, "x", "--report", "traffic"], "elf: QUERY and --report are both given; leave one"),
            (
                ["run", QUERY, "x", "--since", "2024-05-18", "--until", "2024-05-17"],
                "elf: --since: 2024-05-18 is not before --until 2024-05-17",
            ),
            (["run", QUERY, ODD, __file__], f"elf: {ODD}: format auto: none of "),
            (["run", QUERY], "elf: no file to read; name one, or - for stdin"),
            (["run", QUERY, "x", "--memory-max", "lots"], "elf: --memory-max: expected a size like"),
            (
                ["run", QUERY, "x", "--memory-max", "64"],
                "elf: --memory-max: expected at least 1MiB, found '64'",
            ),
            (["run", QUERY, "x", "--since", "noon"], "elf: --since: expected a time like"),
            (["run", QUERY, "x", "--timezone", "Mars/Base"], "elf: --timezone: expected a name like"),
            (
                ["run", QUERY, "x", "--sink", "s3:y"],
                'elf: --sink: expected "console", "console:table" (or json, csv), or "parquet:DIR", found',
            ),
            (
                ["run", QUERY, "x", "--output", "xml"],
                "elf: --output: expected table, json, csv, or html:FILE with --report all; found 'xml'\n",
            ),
            (
                ["run", "a.log", "SELECT 1", "b c.log"],
                "elf: the query comes first, then the files: elf run 'SELECT 1' a.log 'b c.log'\n",
            ),
            (["run", ODD], f"elf: {ODD}: is a file, where the query should be: elf run QUERY {ODD}; "),
            (
                ["run", f"select * from '{ODD}' limit 2"],
                f"elf: FROM {ODD}: a query reads FROM access, and its files follow it: elf run"
                f" 'select * FROM access limit 2' {ODD}\n",
            ),
            (
                ["run", "select", "status", "from", "access", ODD],
                f"elf: the query must be one argument, between quotes: elf run 'select status from access' {ODD}\n",
            ),
            (
                ["run", "SELECT", "status"],
                "elf: the query must be one argument, between quotes: elf run 'SELECT status' FILE",
            ),
            (["run", "q.sql", "x"], "elf: q.sql: no such file, and no query; a query in a file is -F FILE"),
            (
                ["run", QUERY, "x", "--timezone", "new york"],
                "elf: --timezone: expected a name like \"Europe/Berlin\", found 'new york'; did you mean America/New_York?",
            ),
            (["run", "--file", "/nowhere/q.sql", "x"], "elf: --file: /nowhere/q.sql: No such file"),
            (["run", "-F", "/dev/null", "x"], "elf: --file: /dev/null: is empty"),
            (["run", "-F", "q", "--report", "paths"], "elf: --report and --file are both given; leave one"),
            (["run", QUERY, "x", "--lateness", "5s"], "elf: --lateness: is for live logs; give --follow"),
            (
                ["run", QUERY, "x", "--display-timezone", "X/Y"],
                "elf: --display-timezone: expected a name like",
            ),
            (
                ["report", "x", "--display-timezone", "Tokyo"],
                "elf: --display-timezone: expected a name like",
            ),
            (["run", QUERY, "x", "--open"], "elf: --open: is for live logs; give --follow"),
            (["run", QUERY, "x", "-f", "--lateness", "5"], "elf: --lateness: expected a duration like"),
            (["run", QUERY, "x", "-f", "--emit", "1ms"], "elf: --emit: expected at least 10ms, found '1ms'"),
            (["run", QUERY, "/nowhere/x.log"], "elf: /nowhere/x.log: no such file"),
            (
                ["run", "--report", "trafic", "x"],
                "elf: --report: expected traffic, paths, errors, clients, latency or all, found 'trafic'\n",
            ),
            (["explain"], "elf: name a query, or a usual question with --report NAME"),
            (
                ["explain", "--report", "all"],
                "elf: --report all is many queries; name one of the usual questions\n",
            ),
            (["explain", "SELECT"], "elf: query: "),
            (["formats", "combned"], "elf: format 'combned' is not known; did you mean combined?"),
            (["functions", "spilt"], "elf: query: there is no function spilt; did you mean split?"),
            (["help", "qery"], "elf: there is no page qery; did you mean query?"),
            (["parse", "/nowhere/x.log"], "elf: /nowhere/x.log: no such file"),
        ],
    )
    def test_a_mistake_is_one_line_and_exit_code_2(
        self, capfd: pytest.CaptureFixture[str], arguments: Sequence[str], message: str
    ) -> None:
        code, out, err = elf(capfd, *arguments)
        assert (code, out) == (2, "")
        assert err.startswith(message)
        assert err.count("\n") == 1

    def test_bare_elf_shows_its_help(self, capfd: pytest.CaptureFixture[str]) -> None:
        code, _, err = elf(capfd)
        assert code == 2
        assert err.startswith("Usage: elf")

    def test_debug_shows_the_traceback_wherever_it_stands(self, capfd: pytest.CaptureFixture[str]) -> None:
        _, _, err = elf(capfd, "run", QUERY, "/nowhere/x.log", "--debug")
        assert "Traceback" in err
        assert err.splitlines()[-1].startswith("elf: /nowhere/x.log")

    def test_a_bug_of_ours_is_one_line_too(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("elf.agent.commands.formats.describe", None)
        code, _, err = elf(capfd, "formats", "combined")
        assert code == 1
        assert err.startswith("elf: internal error: TypeError")
        assert err.count("\n") == 1


class TestRun:
    def test_piped_output_is_json_lines(self, capfd: pytest.CaptureFixture[str], log: Path) -> None:
        code, out, err = elf(capfd, "run", QUERY, log)
        assert code == 0
        assert [json.loads(line) for line in out.splitlines()] == [
            {"status": 200, "hits": 30, "bytes": sum(n for n in range(40) if n % 4)},
            {"status": 404, "hits": 10, "bytes": sum(n for n in range(40) if not n % 4)},
        ]
        assert "elf: 1 file, 40 lines, 0 rejected, 0 late, 0 B spilled, " in err

    @pytest.mark.parametrize(
        ("query", "said"),
        [
            ("SELECT path FROM access WHERE time > '2100-01-01'", FROM_TO),
            (
                "SELECT window, count(*) AS n FROM access WHERE status = 1 GROUP BY window(time, '1 day')",
                FROM_TO,
            ),
            ("SELECT path, count(*) AS n FROM access GROUP BY path HAVING n > 1000", FROM_TO),
            ("SELECT count(*) AS n FROM access WHERE status = 1", ""),
        ],
    )
    def test_where_nothing_fits_it_says_so(
        self, capfd: pytest.CaptureFixture[str], log: Path, query: str, said: str
    ) -> None:
        code, _, err = elf(capfd, "run", query, log)
        assert code == 0
        assert err.partition("lines/s)\n")[2] == said

    def test_values_of_parameters(self, capfd: pytest.CaptureFixture[str], log: Path) -> None:
        query = QUERY.replace("FROM access", "FROM access WHERE status >= :least") + " LIMIT :rows"
        values = ("--param", "least=404", "--param=rows=5")
        code, out, _ = elf(capfd, "run", query, log, *values, "--output", "csv", "-q")
        assert (code, out) == (0, "status,hits,bytes\n404,10,180\n")
        for more, said in {
            (
                "--param",
                "rows=5",
            ): "query: line 1, column 82: the parameter least has no value; give it one (--param",
            (*values, "--param", "x=5"): "query: the query has no parameter 'x'; it has least, rows",
            ("--param", "least"): "--param: expected NAME=VALUE, found 'least'",
            ("--param", "=5"): "--param: expected NAME=VALUE, found '=5'",
            (*values, "--param", "least=5"): "--param: least is given twice",
            (*values[:1], "least=-", *values[2:]): "expected a whole number (BIGINT), found '-'",
        }.items():
            code, out, err = elf(capfd, "run", query, log, *more)
            assert (code, out) == (2, "")
            assert said in err

    def test_a_query_in_a_file(self, capfd: pytest.CaptureFixture[str], log: Path, tmp_path: Path) -> None:
        (tmp_path / "q.sql").write_text(f"\ufeff-- by status\n{QUERY};\n")
        code, out, _ = elf(capfd, "run", "-q", "-F", tmp_path / "q.sql", log)
        assert (code, out) == (0, elf(capfd, "run", "-q", QUERY, log)[1])

    def test_a_line_in_the_future_is_rejected_everywhere(
        self, capfd: pytest.CaptureFixture[str], log: Path
    ) -> None:
        with log.open("a") as file:
            file.write(LINES[0].replace("2015", "2915"))
        code, out, err = elf(capfd, "run", "SELECT count(*) AS n FROM access", log)
        assert (code, json.loads(out)["n"]) == (0, len(LINES))
        assert "elf: rejected: 1 time in the future; see them with: elf parse" in err
        _, out, _ = elf(capfd, "parse", log)
        assert out.splitlines()[-4:] == [
            "1 rejected: time in the future",
            "  in time, at byte 0: expected a time at most 5 minutes ahead of this machine's clock (or is --timezone missing?)",
            "  2915-05-17T10:05:00.000000Z",
            "  ^",
        ]

    def test_times_in_another_zone(self, capfd: pytest.CaptureFixture[str], log: Path) -> None:
        query = "SELECT window, min(time) AS first FROM access GROUP BY window(time, '1 day')"
        code, out, _ = elf(capfd, "run", "-q", "--display-timezone", "Europe/Berlin", query, log)
        assert (code, json.loads(out)) == (
            0,
            {
                "window": {"start": "2015-05-17T00:00:00+02:00", "end": "2015-05-18T00:00:00+02:00"},
                "first": "2015-05-17T12:05:00+02:00",
            },
        )
        assert "2015-05-17T10:05:00Z" in elf(capfd, "run", "-q", query, log)[1]

    def test_csv_without_rows_has_a_header(
        self, capfd: pytest.CaptureFixture[str], log: Path, tmp_path: Path
    ) -> None:
        query = "SELECT window, status, count(*) AS n FROM access GROUP BY window(time, '1 minute'), status"
        empty = tmp_path / "empty.log"
        empty.touch()
        for more in ([log, "--since", "2016-01-01T00:00:00Z"], [empty, "--format", "combined"]):
            code, out, _ = elf(capfd, "run", query, *more, "--output", "csv", "-q")
            assert (code, out) == (0, "window_start,window_end,status,n\n")

    def test_forms(self, capfd: pytest.CaptureFixture[str], log: Path) -> None:
        _, out, err = elf(capfd, "run", QUERY, log, "--output", "csv", "-q")
        assert out == "status,hits,bytes\n200,30,600\n404,10,180\n"
        assert err == ""
        _, out, _ = elf(capfd, "run", QUERY, log, "--output", "table")
        assert out == "status  hits  bytes\n   200    30    600\n   404    10    180\n"

    def test_meta_counts_lines(self, capfd: pytest.CaptureFixture[str], log: Path) -> None:
        with log.open("a") as file:
            file.write(BAD)
        _, out, _ = elf(capfd, "run", "SELECT count(*) AS n FROM access", log, "--meta")
        row = json.loads(out)
        assert row["n"] == 40
        assert row["_elf"]["status"] == "final"
        assert row["_elf"]["revision"] == [0, 0, 1]
        assert [row["_elf"][f"lines_{what}"] for what in ("read", "parsed", "rejected", "late")] == [
            41,
            40,
            1,
            0,
        ]

    def test_rejected_lines_are_told_with_the_way_to_see_them(
        self, capfd: pytest.CaptureFixture[str], log: Path
    ) -> None:
        with log.open("a") as file:
            file.write(BAD)
        code, _, err = elf(capfd, "run", QUERY, log)
        assert code == 0
        assert f"elf: rejected: 1 unterminated quote; see them with: elf parse {log}" in err
        _, _, err = elf(capfd, "run", QUERY, log, "-v")
        assert "elf: unterminated quote in %{User-Agent}i, at byte " in err

    def test_bytes_that_are_not_utf8_stay_apart_and_are_told(
        self, capfd: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        line = b'1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /caf%b HTTP/1.1" 200 - "-" "u"\n'
        (tmp_path / "odd.log").write_bytes(line % b"\xe9" + line % b"\xe8")
        query = "SELECT path, sum(bytes) AS b FROM access GROUP BY path ORDER BY path"
        _, out, err = elf(capfd, "run", query, tmp_path / "odd.log")
        assert [json.loads(row) for row in out.splitlines()] == [
            {"path": r"/caf\xe8", "b": 0},
            {"path": r"/caf\xe9", "b": 0},
        ]
        assert r"elf: 2 lines with bytes that are not UTF-8, read as \xhh, like \xe9" in err

    def test_nothing_parsed_is_exit_code_1(self, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = tmp_path / "x.log"
        path.write_text("not\na log\n")
        code, _, err = elf(capfd, "run", QUERY, path, "--format", "combined")
        assert code == 1
        assert "elf: none of 2 lines could be parsed (2 separator missing); see why with: elf parse" in err
        assert "--format combined" in err

    def test_an_empty_file_is_no_failure(self, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = tmp_path / "x.log"
        path.touch()
        assert elf(capfd, "run", QUERY, path)[0] == 0

    def test_since_and_until(self, capfd: pytest.CaptureFixture[str], log: Path) -> None:
        bounds = ("--since", "2015-05-17T10:05:10", "--until", "2015-05-17T12:05:20+02:00")
        _, out, _ = elf(capfd, "run", "SELECT count(*) AS n FROM access", log, *bounds)
        assert json.loads(out) == {"n": 10}

    def test_a_usual_question_by_name(self, capfd: pytest.CaptureFixture[str], log: Path) -> None:
        for name in ("traffic", "paths", "errors", "clients"):
            code, out, err = elf(capfd, "run", "--report", name, log, "-q")
            assert (code, err) == (0, ""), name
            assert out, name

    def test_an_overflow_is_told(self, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = tmp_path / "x.ltsv"
        path.write_text(f"time:2024-05-17T10:05:03Z\tstatus:200\tsize:{2**63 - 1}\n" * 2)
        code, out, err = elf(capfd, "run", "SELECT sum(bytes) AS b FROM access", path)
        assert (code, json.loads(out)) == (0, {"b": None})
        assert "elf: 1 result overflowed and became NULL" in err

    def test_the_file_with_rejects_is_the_one_to_look_at(
        self, capfd: pytest.CaptureFixture[str], log: Path, tmp_path: Path
    ) -> None:
        other = tmp_path / "other.log"
        other.write_text("".join(LINES[:5]) + BAD + LINES[6])
        _, _, err = elf(capfd, "run", QUERY, log, other)
        assert f"see them with: elf parse {other}\n" in err


class TestParse:
    def test_marks_the_first_mismatch(self, capfd: pytest.CaptureFixture[str], log: Path) -> None:
        with log.open("a") as file:
            file.write(BAD)
        code, out, _ = elf(capfd, "parse", log, "--limit", "1")
        assert code == 0
        lines = out.splitlines()
        assert lines[0] == "format: combined (detected)"
        assert "41 lines, 40 parsed, 1 rejected" in lines
        at = lines.index("1 rejected: unterminated quote")
        assert lines[at + 1].endswith('expected a closing "')
        excerpt, caret = lines[at + 2 : at + 4]
        marked = excerpt[caret.index("^") :]
        assert marked.startswith(("unterminated", '"unterminated'))

    def test_records_as_json_lines(self, capfd: pytest.CaptureFixture[str], log: Path) -> None:
        _, out, err = elf(capfd, "parse", log, "--output", "json", "--limit", "3", "--format", "combined")
        records = [json.loads(line) for line in out.splitlines()]
        assert [record["bytes"] for record in records] == [0, 1, 2]
        assert records[0]["client_ip"] == "192.0.2.0"
        assert records[0]["time"] == "2015-05-17T10:05:00Z"
        assert records[0]["referer"] is None
        assert "elf: 40 lines, 40 parsed, 0 rejected" in err

    def test_a_format_that_never_fits_is_exit_code_1(
        self, capfd: pytest.CaptureFixture[str], log: Path
    ) -> None:
        code, out, _ = elf(capfd, "parse", log, "--format", "haproxy")
        assert code == 1
        assert "40 lines, 0 parsed, 40 rejected" in out

    def test_hostile_lines_do_not_reach_the_terminal(
        self, capfd: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        path = tmp_path / "x.log"
        path.write_bytes(b"\x1b]0;owned\x07 \x9b31m\n" + LINES[0].replace("curl", "\x1b[2J").encode())
        _, out, _ = elf(capfd, "parse", path, "--format", "combined")
        assert "\x1b" not in out
        assert "\\u001b[2J" in out


class TestFormats:
    def test_list_and_one(self, capfd: pytest.CaptureFixture[str]) -> None:
        code, out, err = elf(capfd, "formats")
        assert (code, err) == (0, "")
        assert {"combined", "haproxy", "w3c", "json"} <= {line.split(" ")[0] for line in out.splitlines()}
        code, out, err = elf(capfd, "formats", "combined")
        assert (code, err) == (0, "")
        assert ["bytes", "bigint"] in [line.split()[:2] for line in out.splitlines()], out
        _, out, _ = elf(capfd, "formats", "envoy")
        assert out.startswith("Envoy's default access log\nhttps://www.envoyproxy.io/docs/")

    def test_a_format_of_ones_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Listed, described, detected in an archive, and named; a mistake in it is one line with its file."""
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        own = tmp_path / "elf" / "formats.toml"
        own.parent.mkdir()
        own.write_text("[format.shop]\nsummary = \"the shop's\"\nline = '{time:iso}|{status}|{tenant}'\n")
        log = tmp_path / "shop.log.xz"
        log.write_bytes(lzma.compress(b"2015-05-17T10:05:03Z|200|acme\n2015-05-17T10:05:04Z|500|acme\n"))
        _, out, _ = elf(capfd, "formats")
        assert ["shop", "the", "shop's"] in [line.split() for line in out.splitlines()]
        _, out, _ = elf(capfd, "formats", "shop")
        assert ["tenant", "string", "tenant"] in [line.split()[:3] for line in out.splitlines()]
        query = "SELECT tenant, max(status) AS worst FROM access GROUP BY tenant"
        code, out, err = elf(capfd, "run", query, str(log), "--output", "json")
        assert (code, json.loads(out)) == (0, {"tenant": "acme", "worst": 500})
        assert "shop.log.xz: format shop\n" in err
        again = elf(capfd, "run", query, str(log), "--output", "json", "--format", f"toml:{own}#shop")
        assert again[:2] == (0, out)
        own.write_text("[format.shop]\nline = '{time:isoo}'\n")
        code, out, err = elf(capfd, "parse", str(log), "--format", "shop")
        assert (code, out) == (2, "")
        assert err == f"elf: {own}: [format.shop]: {{time:isoo}}: unknown type isoo; did you mean iso?\n"


class TestExplain:
    def test_text_and_json(self, capfd: pytest.CaptureFixture[str]) -> None:
        code, out, _ = elf(capfd, "explain", QUERY)
        assert code == 0
        assert "status" in out
        _, out, _ = elf(capfd, "explain", QUERY, "--output", "json")
        assert json.loads(out)

    def test_values_of_parameters(self, capfd: pytest.CaptureFixture[str]) -> None:
        query = "SELECT count(*) FROM access WHERE status >= :least"
        code, out, _ = elf(capfd, "explain", query, "--param", "least=500")
        assert code == 0
        assert out.splitlines()[-1].split() == ["values", "least", "bigint", "=", "500"]

    def test_a_usual_question(self, capfd: pytest.CaptureFixture[str]) -> None:
        code, out, _ = elf(capfd, "explain", "--report", "traffic")
        assert code == 0
        assert "SELECT" in out


CONFIGURATION = """\
[[source]]
name = "access"
path = "access.log"
format = "combined"
[[job]]
name = "errors"
sql = "SELECT window, count(*) AS n FROM access GROUP BY window(time, '10 seconds')"
"""


class TestConfiguration:
    def test_validate_says_what_it_means(self, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = tmp_path / "elf.toml"
        path.write_text(CONFIGURATION)
        code, out, err = elf(capfd, "validate", "-c", path)
        assert (code, err) == (0, "")
        assert f"source access: {tmp_path}/access.log" in out
        assert "job errors: of access, windows of 10s" in out

    def test_the_example_is_valid(self, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        examples = paths.ROOT / "examples"
        shutil.copytree(examples, tmp_path / "etc")
        example, path = examples / "elf.toml", tmp_path / "etc" / "elf.toml"
        path.write_text(example.read_text().replace("/var/lib/elf", str(tmp_path / "elf")))
        assert elf(capfd, "validate", "-c", path)[0] == 0

    def test_validate_tries_the_lake_and_leaves_nothing(
        self, capfd: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        path = tmp_path / "elf.toml"
        path.write_text(f'{CONFIGURATION}sinks = ["parquet:to/lake"]\n')
        assert elf(capfd, "validate", "-c", path)[0] == 0
        assert os.listdir(tmp_path) == ["elf.toml"]
        (tmp_path / "to").write_text("a file")
        code, out, err = elf(capfd, "validate", "-c", path)
        assert (code, out) == (78, "")
        name = own_sink(parse("parquet:to/lake", tmp_path)).name
        assert err == (
            f"elf: {path}: sink {name}: {tmp_path}/to/lake: {tmp_path}/to: Not a directory; "
            "name another folder, or make it writable\n"
        )

    def test_validate_refuses_a_lake_that_cannot_be_written(
        self, capfd: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        path = tmp_path / "elf.toml"
        path.write_text(f'{CONFIGURATION}sinks = ["parquet:/proc/lake"]\n')
        code, _, err = elf(capfd, "validate", "-c", path)
        assert code == 78
        assert err.startswith(f"elf: {path}: sink lake-")
        assert ": /proc/lake: /proc: " in err
        assert err.count("\n") == 1

    @pytest.mark.process
    @pytest.mark.parametrize("command", [["validate"], ["agent", "run"]])
    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("path =", "paht =", ":5: [source] paht: unknown key; did you mean path?"),
            (
                '"combined"',
                '"combned"',
                ": source 'access': format 'combned' is not known; did you mean combined?",
            ),
            ("count(*)", "cont(*)", ":9: "),
            ("FROM access", "FROM acces", ":9: "),
        ],
    )
    def test_mistakes_are_exit_code_78(
        self,
        capfd: pytest.CaptureFixture[str],
        tmp_path: Path,
        command: list[str],
        old: str,
        new: str,
        message: str,
    ) -> None:
        path = tmp_path / "elf.toml"
        text = f'[agent]\nstate_dir = "state"\n{CONFIGURATION}'.replace(old, new)
        path.write_text(text)
        code, _, err = elf(capfd, *command, "-c", path)
        assert code == 78
        *before, last = err.splitlines()
        assert last.startswith(f"elf: {path}{message}")
        assert all(line.startswith("elf: agent ") for line in before), "it has begun"
