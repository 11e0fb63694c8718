"""Every key of every keyed format, alone in a line, nested and flat, fills the column that the table says."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from elf.agent.formats.fields import Convert, Field, Shape
from elf.agent.formats.parser import Parser
from elf.agent.formats.presets import PRESETS

KEYED = [name for name, plan in PRESETS.items() if plan.shape in (Shape.JSON, Shape.LTSV, Shape.LOGFMT)]
MAY_17 = 1431857103_000000

CASES: dict[Convert, tuple[str, dict[str, Any]]] = {
    Convert.STRING: ("value", {}),
    Convert.HOST: ("10.0.0.1:80", {}),
    Convert.INT: ("17", {}),
    Convert.SIZE: ("17", {}),
    Convert.STATUS: ("404", {}),
    Convert.QUERY: ("a=b", {"query": "a=b"}),
    Convert.URI: ("/p?a=b", {"path": "/p", "query": "a=b"}),
    Convert.URL: ("https://h/p?a=b", {"scheme": "https", "host": "h", "path": "/p", "query": "a=b"}),
    Convert.REQUEST: (
        "GET /p?a=b HTTP/1.1",
        {"method": "GET", "path": "/p", "query": "a=b", "protocol": "HTTP/1.1"},
    ),
    Convert.SECONDS: ("1.5", {}),
    Convert.SECONDS_LIST: ("0.5, 1.0", {}),
    Convert.MILLISECONDS: ("1500", {}),
    Convert.MICROSECONDS: ("1500000", {}),
    Convert.NANOSECONDS: ("1500000000", {}),
    Convert.DURATION: ("1.5", {}),
    Convert.DURATION_MS: ("1500", {}),
}
VALUES: dict[Convert, Any] = {
    Convert.STRING: "value",
    Convert.HOST: "10.0.0.1",
    Convert.INT: 17,
    Convert.SIZE: 17,
    Convert.STATUS: 404,
}
TIMES = {
    Convert.TIME_ANY: "2015-05-17T10:05:03Z",
    Convert.TIME_ISO: "2015-05-17T10:05:03+00:00",
    Convert.TIME_CLF: "17/May/2015:10:05:03 +0000",
    Convert.TIME_EPOCH: "1431857103",
}


def expected(field: Field) -> tuple[str, dict[str, Any]]:
    if field.convert in TIMES:
        return TIMES[field.convert], {"time": MAY_17}
    text, values = CASES[field.convert]
    return text, values or {field.column: VALUES.get(field.convert, Decimal("1.500000"))}


def lines(name: str, key: str, text: str) -> list[bytes]:
    """The key alone, with a time if it is none itself: flat, and in JSON also as nested objects and arrays."""
    plan = PRESETS[name]
    time = next(field for field in plan.fields if field.column == "time")
    pairs = (
        [(key, text)]
        if "time" in field_of(name, key).columns
        else [(time.name, TIMES[time.convert]), (key, text)]
    )
    if plan.shape is Shape.LTSV:
        return ["\t".join(f"{k}:{v}" for k, v in pairs).encode()]
    if plan.shape is Shape.LOGFMT:
        return [" ".join(f'{k}="{v}"' for k, v in pairs).encode()]
    nested: dict[str, Any] = {}
    for k, v in pairs:
        nested[k.split(".")[0]] = branch(k.split(".")[1:], v)
    return [json.dumps(dict(pairs)).encode(), json.dumps(nested).encode()]


def branch(path: list[str], value: str) -> Any:
    if not path:
        return value
    below = branch(path[1:], value)
    return [below] if path[0] == "0" else {path[0]: below}


def field_of(name: str, key: str) -> Field:
    return next(field for field in PRESETS[name].fields if field.name == key)


@pytest.mark.parametrize("name", KEYED)
def test_each_key_alone_fills_its_column(name: str) -> None:
    plan = PRESETS[name]
    parser = Parser(plan, tuple(plan.columns()))
    for field in plan.fields:
        text, values = expected(field)
        for line in lines(name, field.name, text):
            batch = parser.parse(line + b"\n")
            assert batch.rows == 1, (line, batch.samples)
            got = {column: vector.to_python()[0] for column, vector in batch.columns.items()}
            present = {column: value for column, value in got.items() if value is not None}
            assert present == {"time": MAY_17, **values}, line


@pytest.mark.parametrize("name", [name for name in KEYED if PRESETS[name].shape is Shape.JSON])
def test_an_object_or_list_under_a_key_counts_as_absent(name: str) -> None:
    plan = PRESETS[name]
    parser = Parser(plan, tuple(plan.columns()))
    time = next(field for field in plan.fields if field.column == "time")
    for field in plan.fields:
        for odd in ({"x-unknown": 1}, ["x"], {}, [], None):
            if field.column == "time":
                continue
            line = json.dumps({time.name: TIMES[time.convert], field.name: odd}).encode()
            batch = parser.parse(line + b"\n")
            assert batch.rows == 1, (line, batch.samples)
            present = [
                column for column, vector in batch.columns.items() if vector.to_python()[0] is not None
            ]
            assert present == ["time"], line
