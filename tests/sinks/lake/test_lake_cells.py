"""Encoded columns as Arrow arrays: those that Arrow makes of the decoded values, and the same errors for what does not fit."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.jobmaster.windows.result import encode_column
from elf.sinks.lake.cells import _cells
from elf.sinks.lake.cells.tables import PANE_COLUMNS, _repeated, column_of
from elf.sinks.lake.types import arrow_array, arrow_type

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bigint": st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300),
    "int": st.integers(-(2**31), 2**31 - 1),
    "timestamp": st.integers(-(2**60), 2**60),
    "string": st.text(max_size=40) | st.text("ab", min_size=250, max_size=260),
    "decimal(38,0)": st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    "decimal(38,9)": st.integers(-(10**38) + 1, 10**38 - 1).map(
        lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -9))
    ),
    "boolean": st.booleans(),
    "double": st.floats(),
    "array<bigint>": st.lists(st.integers(-9, 9), max_size=3),
}


@pytest.mark.parametrize("type", VALUES)
@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.data())
def test_columns_are_those_of_the_decoded_values(type: str, data: st.DataObject) -> None:
    parts: list[list[Any]] = data.draw(
        st.lists(st.lists(VALUES[type] | st.none(), max_size=70), min_size=1, max_size=4)
    )
    encoded = [msgspec.Raw(encode_column(type, part)) for part in parts]
    found = column_of(encoded, arrow_type(type))
    decoded = [value for each in encoded for value in msgspec.msgpack.decode(each, strict=False)]
    right = arrow_array(decoded, arrow_type(type))
    found.validate(full=True)
    assert found.equals(right) or str(found.to_pylist()) == str(right.to_pylist())  # NaN
    mixed = column_of([*encoded, msgspec.msgpack.decode(encoded[0], strict=False)], arrow_type(type))
    assert len(mixed) == len(found) + len(parts[0])


@pytest.mark.parametrize(
    ("values", "type"),
    [
        ([2**31], "int"),
        ([2**63], "bigint"),
        (["x"], "bigint"),
        ([7], "string"),
        (["1.55"], "decimal(38,1)"),
        (["1" * 39], "decimal(38,0)"),
        (["1e400"], "decimal(38,0)"),
        (["-"], "decimal(38,0)"),
    ],
)
def test_what_does_not_fit_is_the_error_of_arrow(values: list[Any], type: str) -> None:
    with pytest.raises((pa.ArrowException, OverflowError, TypeError, ValueError)) as right:
        arrow_array(values, arrow_type(type))
    with pytest.raises((pa.ArrowException, OverflowError, TypeError, ValueError)) as found:
        column_of([msgspec.Raw(msgspec.msgpack.encode(values))], arrow_type(type))
    assert (found.type, str(found.value)) == (right.type, str(right.value))


@pytest.mark.parametrize("text", ["0E-9", "1E+2", "-0.50", "12E-1", "000.1", ".5"])
def test_decimals_in_any_notation(text: str) -> None:
    kind = arrow_type("decimal(38,9)")
    assert column_of([msgspec.Raw(msgspec.msgpack.encode([text]))], kind).to_pylist() == [Decimal(text)]


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.binary(max_size=40))
def test_other_bytes_are_refused(data: bytes) -> None:
    """Or they are a MessagePack array; nothing is read past its end."""
    for read in (
        lambda: _cells.integers([data], 8),
        lambda: _cells.texts([data]),
        lambda: _cells.decimals([data], 3),
    ):
        with contextlib.suppress(ValueError):
            rows, nulls, *_ = read()
            assert (rows, nulls) == (_cells.count(data), min(nulls, rows))


def test_a_text_that_is_no_text() -> None:
    with pytest.raises(ValueError, match=r"(?i)utf-8"):
        column_of([msgspec.Raw(b"\x91\xa2\xff\xfe")], pa.string())


@pytest.mark.parametrize("kind", [kind for _, kind, _ in PANE_COLUMNS] + ["boolean"])
def test_what_a_pane_repeats(kind: str) -> None:
    some: dict[str, Sequence[Any]] = {
        "string": ["a", "b", "a"],
        "boolean": [True, False, True],
        "map<string,bigint>": [None, [("x", 1)], None],
    }
    one = some.get(kind, [5, -7, 5])
    for values in (one, [one[0]] * 3):
        expected = [value for value, count in zip(values, (2, 1, 3), strict=True) for _ in range(count)]
        found = _repeated(values, (2, 1, 3), arrow_type(kind))
        found.validate(full=True)
        if kind == "timestamp":
            found = found.cast(pa.int64())
        assert found.to_pylist() == expected
