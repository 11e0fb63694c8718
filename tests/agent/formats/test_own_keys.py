"""Columns by the keys of the lines: their names, types and values as Python's json has them; what does not convert is counted."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.formats.batch import Batch
from elf.agent.formats.choice import FormatChoice
from elf.agent.formats.fields import Convert, Field, Format, Reason, Shape
from elf.agent.formats.own_keys import ANY, Keys, asked_types, widest
from elf.agent.formats.parser import Parser
from elf.agent.formats.presets import PRESETS
from elf.agent.work.feed import complete
from elf.agent.work.worker import Worker
from elf.jobmaster.compile.query import compile
from elf.jobmaster.values.sql_types import BIGINT, BOOLEAN, DOUBLE, STRING, TIMESTAMP, SqlType

profile = settings(max_examples=100, derandomize=True, deadline=None, database=None)
TIMED = Format("json", Shape.JSON, (Field("ts", Convert.TIME_EPOCH, "time"),))

NUMBERS = st.one_of(
    st.integers(-(1 << 70), 1 << 70).map(str),
    st.integers(-999, 999).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.builds(
        "{}{}.{}e{}{}".format,
        st.sampled_from(["", "-"]),
        st.integers(0, 10**6),
        st.from_regex(r"[0-9]{1,25}", fullmatch=True),
        st.sampled_from(["", "+", "-"]),
        st.integers(0, 30),
    ),
    st.sampled_from(
        [
            "-0",
            "-0.0",
            "0e5",
            "2e2",
            "200.0",
            "0.1e1",
            "1E400",
            "-1e-400",
            "1" + "0" * 40,
            "5" * 400 + "e-399",
        ]
    ),
    st.sampled_from(
        ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "9.223372036854775807e18"]
    ),
)
SCALARS = st.one_of(
    st.sampled_from(["null", "true", "false"]),
    NUMBERS,
    st.text(max_size=8).map(json.dumps),
    NUMBERS.map(json.dumps),
)


def lists_and_objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    comma = st.sampled_from([",", " , "])
    lists = st.builds(lambda by, values: f"[{by.join(values)}]", comma, st.lists(inner, max_size=3))
    keys = st.sampled_from(["k", "ü", '"', "x y"]).map(json.dumps)
    return lists | st.builds(
        lambda by, pairs: "{" + by.join(f"{key}: {value}" for key, value in pairs.items()) + "}",
        comma,
        st.dictionaries(keys, inner, max_size=3),
    )


VALUES = st.recursive(SCALARS, lists_and_objects, max_leaves=5)


class Number(str):
    """A number as it is spelled in the line."""

    __slots__ = ()


def load(text: str) -> Any:
    return json.loads(text, parse_int=Number, parse_float=Number)


def line_of(**values: str) -> bytes:
    inner = "".join(f',"{name}":{value}' for name, value in values.items())
    return f'{{"ts":1431857103{inner}}}'.encode()


def parsed(lines: list[bytes], types: dict[str, SqlType], plan: Format = TIMED) -> Batch:
    """The batch, which both sets of instructions give."""
    wide, narrow = (
        Parser(plan, ("time", *types), types=types, wide=wide).parse(b"\n".join(lines) + b"\n")
        for wide in (True, False)
    )
    assert {name: vector.to_python() for name, vector in wide.columns.items()} == {
        name: vector.to_python() for name, vector in narrow.columns.items()
    }
    assert wide.lost_samples == narrow.lost_samples
    return wide


def scalar(value: Any) -> Any:
    """The value that counts: of a list of exactly one scalar that one."""
    is_one = isinstance(value, list) and len(value) == 1 and not isinstance(value[0], list | dict)
    return value[0] if is_one else value


def is_number(text: str) -> bool:
    try:
        return isinstance(load(text), Number) and text == text.strip()
    except ValueError:
        return False


def expected(value: Any, type: SqlType) -> Any:
    """(the value of a column of that type, whether it does not convert)"""
    value = scalar(value)
    if value is None:
        return None, False
    if type == STRING:
        return (("true" if value else "false") if isinstance(value, bool) else value), False
    if type == BOOLEAN:
        known = {True: True, False: False, "true": True, "false": False}
        found = None if isinstance(value, list | dict | Number) else known.get(value)
        return found, found is None
    if isinstance(value, bool | list | dict) or not is_number(value):
        return None, True
    if type == DOUBLE:
        number = float(value)
        return (None, True) if abs(number) == float("inf") else (number + 0.0, False)
    exact = Fraction(value)
    fits = exact.denominator == 1 and -(1 << 63) <= exact < 1 << 63
    return (int(exact), False) if fits else (None, True)


@pytest.mark.slow
@given(st.lists(VALUES, min_size=1, max_size=6), st.sampled_from([STRING, BIGINT, DOUBLE, BOOLEAN]))
@profile
def test_a_value_is_what_pythons_json_has_or_is_counted(texts: list[str], type: SqlType) -> None:
    batch = parsed([line_of(v=text) for text in texts], {"v": type})
    wanted = [expected(load(text), type) for text in texts]
    found = batch.columns["v"].to_python()
    assert batch.rows == len(texts)
    assert [
        load(one) if isinstance(value, list | dict) else one
        for one, (value, _) in zip(found, wanted, strict=True)
    ] == [value for value, _ in wanted]
    assert list(batch.lost.get("v", ())) == [at for at, (_, lost) in enumerate(wanted) if lost]
    assert all(repr(one) != "-0.0" for one in found)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3), min_size=1, max_size=5))
@settings(profile, max_examples=60)
def test_types_follow_the_values_and_lose_none_of_them(lines: list[dict[str, str]]) -> None:
    data = [line_of(**line) for line in lines]
    keys = Keys()
    keys.add(TIMED, b"\n".join(data) + b"\n")
    types = {name: type for name, type in keys.columns(TIMED.columns()).items() if name in "abc"}
    batch = parsed(data, types)
    for name, type in types.items():
        values = [scalar(load(line[name])) for line in lines if name in line]
        kinds = {kind_of(value) for value in values if value is not None}
        numbers = kinds and kinds <= {"whole", "real"}
        assert type == (
            BOOLEAN if kinds == {"bool"} else STRING if not numbers else DOUBLE if "real" in kinds else BIGINT
        )
        beyond = [v for v in values if isinstance(v, Number) and abs(float(v)) == float("inf")]
        assert len(batch.lost.get(name, ())) == (len(beyond) if type == DOUBLE else 0)


def kind_of(value: Any) -> str:
    if isinstance(value, Number):
        return "whole" if value.lstrip("-").isdigit() and -(1 << 63) <= int(value) < 1 << 63 else "real"
    return "bool" if isinstance(value, bool) else "other"


class TestNames:
    def columns(self, *lines: str, format: str = "json") -> dict[str, str]:
        keys, plan = Keys(), PRESETS[format]
        keys.add(plan, "\n".join(lines).encode() + b"\n")
        return {name: str(type) for name, type in keys.columns(plan.columns()).items()}

    def test_canonical_columns_keep_their_names(self) -> None:
        line = '{"time":"2024-01-01T00:00:00Z","status":200,"res":{"statusCode":200},"level":30}'
        assert self.columns(line) == {"res.statusCode": "bigint"}

    def test_a_key_replaces_a_column_that_no_key_fills(self) -> None:
        assert self.columns('{"ts":1,"Status":200,"path":"/","Path":"x","TIME":5}') == {
            "ts": "bigint",
            "Status": "bigint",
        }

    def test_a_column_that_another_file_fills_is_not_replaced(self) -> None:
        keys = Keys()
        keys.add(PRESETS["json"], b'{"time":1,"Status":200}\n')
        keys.add(PRESETS["combined"], b"")
        assert keys.columns({**PRESETS["json"].columns(), **PRESETS["combined"].columns()}) == {}

    def test_deep_lines_are_left_out(self) -> None:
        assert self.columns('{"a":' * 900 + "1" + "}" * 900) == {}

    def test_the_first_of_names_that_differ_by_case_only(self) -> None:
        assert self.columns('{"Foo":1,"foo":"x"}') == {"Foo": "bigint"}

    def test_names_that_no_plan_can_have_are_left_out(self) -> None:
        assert self.columns('{"":1,"#x":2,"*":3,".y":4,"' + "z" * 300 + '":5}') == {}

    def test_text_formats_are_typed_by_their_text(self) -> None:
        lines = ('time=1 n=5 x=1.5 ok=true id=007 q="a b" none=-', "time=2 n=-7 x=2 ok=false id=12 q=c none=")
        own = {"n": "bigint", "x": "double", "ok": "boolean", "id": "string", "q": "string", "none": "string"}
        assert self.columns(*lines, format="logfmt") == own
        tabs = tuple(line.replace('"a b"', "ab").replace(" ", "\t").replace("=", ":") for line in lines)
        assert self.columns(*tabs, format="ltsv") == own

    def test_notes_name_the_nearest_keys_and_mixed_kinds(self) -> None:
        keys = Keys()
        keys.add(
            TIMED, b'{"ts":1,"latency":5,"a":{"b":1}}\n{"ts":2,"latency":"fast"}\n{"ts":3,"latency":7}\n'
        )
        assert keys.notes(["latency", "latnecy", "a", "a.b", "time"], TIMED.columns()) == [
            "the values of latency are of several kinds (lines: whole number in 2, text in 1); it is read as a string",
            "no key latnecy in the first lines (nearest: latency); it is read as a string where it comes",
        ]
        assert keys.listed(["latnecy"]).startswith("latency, ts, a.b")

    def test_widest(self) -> None:
        assert [
            widest(types) for types in ([BIGINT], [BIGINT, DOUBLE], [DOUBLE, STRING], [BOOLEAN, BIGINT])
        ] == [
            BIGINT,
            DOUBLE,
            STRING,
            STRING,
        ]


@pytest.mark.parametrize(
    ("text", "status", "bytes"),
    [
        ("200", 200, 200),
        ("200.0", 200, 200),
        ("2e2", 200, 200),
        ('"2E+2"', 200, 200),
        ("0.2e3", 200, 200),
        ("-0", 0, 0),
    ],
)
def test_whole_numbers_in_any_spelling_fill_canonical_columns(text: str, status: int, bytes: int) -> None:
    line = f'{{"ts":1431857103,"status":{text},"bytes":{text},"duration_us":{text}}}'.encode()
    batch = Parser(PRESETS["json"], ("status", "bytes", "request_time")).parse(line + b"\n")
    assert [batch.columns[name].to_python() for name in ("status", "bytes")] == [[status], [bytes]]
    assert batch.columns["request_time"].values.tolist() == [bytes]


@pytest.mark.parametrize("text", ["1.5", "1e-1", "1E400", "9223372036854775808", "true", '"many"'])
def test_what_is_no_whole_number_rejects_the_line(text: str) -> None:
    batch = Parser(PRESETS["json"], ("bytes",)).parse(f'{{"ts":1431857103,"bytes":{text}}}\n'.encode())
    assert (batch.rows, batch.rejects) == (0, {Reason.NUMBER: 1})


def test_a_path_is_found_however_its_dots_divide_it() -> None:
    lines = [
        line_of(**{"a": '{"b.c":1}'}),
        line_of(**{"a.b": '{"c":2}'}),
        line_of(**{"a.b.c": "3"}),
        line_of(a='{"b":{"c":4}}'),
    ]
    assert parsed(lines, {"a.b.c": BIGINT}).columns["a.b.c"].to_python() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "inner",
    [
        '"a":[1,2],"a":3',
        '"a":3,"a":[1,2]',
        '"a":{"b":1},"a":{"c":2}',
        '"a":{"b":1},"a":null',
        '"a":{"b":[1]},"a":{"b":{"x":[]}}',
        '"a":[[1],{"b":2}],"x":"]"',
        '"a":["]"],"x":["\\"]"]',
        '"a": [ "\\u00e9" ] ,"x":[ 5\t]',
        '"a":[],"x":[null]',
    ],
)
def test_repeated_keys_and_lists_are_as_python_reads_them(inner: str) -> None:
    line = f'{{"ts":1431857103,{inner}}}'
    record = load(line)
    a, x = record.get("a"), record.get("x")
    batch = parsed([line.encode()], {"a": STRING, "a.b": STRING, "x": STRING})
    for name, value in (("a", a), ("a.b", a.get("b") if isinstance(a, dict) else None), ("x", x)):
        (found,) = batch.columns[name].to_python()
        wanted = expected(value, STRING)[0]
        assert (load(found) if isinstance(wanted, list | dict) else found) == wanted


@pytest.mark.slow
@given(
    st.lists(st.binary(max_size=30) | VALUES.map(lambda text: line_of(v=text)), max_size=5),
    st.integers(0, 200),
)
@settings(profile, max_examples=25)
def test_broken_lines_never_crash(lines: list[bytes], cut: int) -> None:
    types = {"v": BIGINT, "v.k": DOUBLE, "v.0": STRING}
    data = b"\n".join(lines)[: -cut or None] + b"\n"
    for plan in (TIMED, PRESETS["json"], PRESETS["ltsv"], PRESETS["logfmt"]):
        for wide in (True, False):
            batch = Parser(plan, ("time", *types), types=types, wide=wide).parse(data)
            assert batch.rows + sum(batch.rejects.values()) == batch.lines
        Keys().add(plan, data)


def test_jobs_that_have_a_key_by_several_types_get_it_by_each() -> None:
    def job(type: SqlType) -> Worker:
        schema = {"access": {"time": TIMESTAMP, "v": type}}
        return Worker(compile("SELECT v, count(*) AS n FROM access GROUP BY v", schema))

    workers = [job(type) for type in (BIGINT, DOUBLE, STRING, STRING)]
    data = b"\n".join([line_of(v="1"), line_of(v="2.5"), line_of(v='"x"')]) + b"\n"
    types = asked_types((column.name, column.type) for worker in workers for column in worker.plan.columns)
    batch = Parser(TIMED, types, types=types).parse(data)
    completed = [complete(batch, worker) for worker in workers]
    assert [one.columns["v"].to_python() for one in completed] == [
        [1, None, None],
        [1.0, 2.5, None],
        *[["1", "2.5", "x"]] * 2,
    ]
    assert [list(one.lost.get("v", ())) for one in completed] == [[1, 2], [2], [], []]
    assert {one.column for one in batch.lost_samples} == {"v"}
    assert asked_types([("a", STRING), ("a", BIGINT), ("b", STRING)]) == {
        "a": BIGINT,
        "a\0string": STRING,
        "b": STRING,
    }


def test_text_values_of_pairs() -> None:
    line = b'time=2024-01-01T00:00:00Z n=2e2 txt="a \\"b\\"" ok=true bad=x none=- empty="" n2=0x1\n'
    types = {
        "n": BIGINT,
        "txt": STRING,
        "ok": BOOLEAN,
        "bad": DOUBLE,
        "none": BIGINT,
        "empty": STRING,
        "n2": BIGINT,
    }
    batch = parsed([line.rstrip()], types, PRESETS["logfmt"])
    assert [batch.columns[name].to_python()[0] for name in types] == [
        200,
        'a "b"',
        True,
        None,
        None,
        None,
        None,
    ]
    assert {name: rows.tolist() for name, rows in batch.lost.items()} == {"bad": [0], "n2": [0]}
    (sample, _) = batch.lost_samples
    assert (sample.column, sample.type, sample.value) == ("bad", "double", "x")


def test_samples_point_at_the_value() -> None:
    data = [line_of(v="1"), line_of(v='"abc"'), line_of(v="[1, 2]")]
    batch = parsed(data, {"v": BIGINT})
    assert [(one.value, one.line) for one in batch.lost_samples] == [("abc", data[1]), ("[1, 2]", data[2])]
    assert all(one.line[one.offset :].startswith(one.value.encode()) for one in batch.lost_samples)


def test_whether_any_line_has_what_is_asked() -> None:
    def asked(*columns: str, types: dict[str, SqlType] | None = None) -> Any:
        parser = Parser(PRESETS["json"], columns, types=types)
        return parser.parse(b'{"ts":1431857103,"user":"-","deep":{"er":null}}\n').keyed

    assert asked("time") is None
    assert asked("time", "user", "bytes") == {"user"}
    assert asked("time", "status", "bytes") == frozenset()
    assert asked("deep.er", types={"deep.er": BIGINT}) == {"deep.er"}
    assert asked("deep", types={"deep": STRING}) == {"deep"}
    assert asked("other", types={"other": STRING}) == frozenset()
    assert Parser(PRESETS["combined"], ("status",)).parse(b"x\n").keyed is None


# Lines as these programs write them: nginx with escape=json, Caddy 2, Traefik 3, pino-http, zap, Docker's json-file, ECS.
REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "nginx_json": (
        '{"time_iso8601":"2024-05-17T10:05:03+00:00","remote_addr":"10.0.0.1","request_uri":"/a?b=1","status":"200",'
        '"body_bytes_sent":"512","request_time":"0.005","upstream_cache":"HIT","geo":""}',
        {"upstream_cache": "HIT", "geo": ""},
    ),
    "caddy": (
        '{"level":"info","ts":1646861401.5241024,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":'
        '"127.0.0.1","remote_port":"41342","client_ip":"127.0.0.1","proto":"HTTP/2.0","method":"GET","host":"localhost",'
        '"uri":"/","headers":{"User-Agent":["curl/7.82.0"],"Accept":["*/*"],"Accept-Encoding":["gzip, deflate, br"]},'
        '"tls":{"resumed":false,'
        '"version":772,"cipher_suite":4865,"proto":"h2","server_name":"example.com"}},"bytes_read":0,"user_id":"","duration":'
        '0.000929675,"size":10900,"status":200,"resp_headers":{"Server":["Caddy"],"Content-Encoding":["gzip"]}}',
        {
            "request.headers.User-Agent": "curl/7.82.0",
            "request.tls.version": 772,
            "request.tls.resumed": False,
            "duration": 0.000929675,
            "resp_headers.Server": "Caddy",
        },
    ),
    "traefik_json": (
        '{"ClientAddr":"192.168.1.5:49152","ClientHost":"192.168.1.5","DownstreamStatus":404,"Duration":181123,"OriginStatus":0,'
        '"RequestMethod":"GET","RequestPath":"/x","RouterName":"web@docker","StartUTC":"2024-05-17T10:05:03.1Z",'
        '"entryPointName":"web","GzipRatio":0,"downstream_X-Cache":"MISS"}',
        {"Duration": 181123, "GzipRatio": 0, "downstream_X-Cache": "MISS"},
    ),
    "json": (
        '{"level":30,"time":1715940303000,"pid":77,"hostname":"web1","req":{"id":1,"method":"GET","url":"/","headers":{"host":'
        '"example.com"},"remotePort":51004},"res":{"statusCode":200,"headers":{"etag":null}},"responseTime":4,'
        '"msg":"request completed"}',
        {
            "pid": 77,
            "hostname": "web1",
            "req.headers.host": "example.com",
            "req.remotePort": 51004,
            "res.statusCode": 200,
        },
    ),
    "zap": (
        '{"level":"info","ts":1715940303.25,"caller":"web/log.go:44","msg":"served","latency":0.25,"tenant":{"id":"a-1","paid":true}}',
        {"caller": "web/log.go:44", "latency": 0.25, "tenant.id": "a-1", "tenant.paid": True},
    ),
    "docker": (
        '{"log":"GET / 200\\n","stream":"stdout","time":"2024-05-17T10:05:03.123456789Z"}',
        {"log": "GET / 200\n", "stream": "stdout"},
    ),
    "ecs": (
        '{"@timestamp":"2024-05-17T10:05:03.000Z","ecs.version":"8.11.0","http":{"response":{"status_code":500}},"labels":'
        '{"team":"shop","shard":3},"tags":["a","b"],"event":{"duration":1500000}}',
        {
            "ecs.version": "8.11.0",
            "labels.team": "shop",
            "labels.shard": 3,
            "tags": '["a","b"]',
            "tags.1": "b",
        },
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_real_lines(name: str) -> None:
    line, wanted = REAL[name]
    choice = FormatChoice("auto", lambda notice: None)
    schema = choice.schema({name: line.encode() + b"\n"})
    plan = choice.detect(name, line.encode() + b"\n")
    types = {column: schema[column] for column in wanted}
    batch = parsed([line.encode()], types, plan)
    assert batch.rows == 1
    assert {column: batch.columns[column].to_python()[0] for column in wanted} == wanted
    assert schema[ANY] == STRING
    assert choice.notes(wanted) == []
