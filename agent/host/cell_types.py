"""Checks that a pane's values have the types of their columns before a lake gets them: for one wrong value its writer would
refuse the whole batch, at every retry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Annotated, Any, Optional

import msgspec
from msgspec import Meta

from elf.errors import PeerError
from elf.jobmaster.windows.result import PaneState, StateColumn, StateValues

_INT64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_FLAT: dict[str, Any] = {
    "void": None,
    "boolean": bool,
    "int": Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)],
    "bigint": _INT64,
    "double": float,
    "string": str,
    "timestamp": _INT64,
}
_OF_SKETCHES: dict[str, Any] = {
    "registers": dict[Annotated[int, Meta(ge=0, le=4095)], Annotated[int, Meta(ge=1, le=63)]],
    "hashes": list[Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]],
}
"""By the role of a binary column: what the lake's writer makes the sketch of."""
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Years 1 to 9999, for which a lake can have folders."""


def check_pane(state: PaneState) -> None:
    """Raises PeerError unless the lake can store it: its time, and each part's columns and their values. O(values)."""
    if not FIRST_US <= state.start <= state.end <= LAST_US:
        raise PeerError(f"a pane from {state.start} to {state.end}, which is not within the years 1 to 9999")
    assert isinstance(state.values, StateValues)
    decoder, checks = _reader(state.columns)
    for part, _ in state.values.parts():
        try:
            columns = decoder.decode(part)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PeerError(f"values that are not of their columns' types: {error}") from error
        if len({len(column) for column in columns}) > 1:
            raise PeerError("columns of values that are not equally long")
        for number, check in checks:
            for value in columns[number]:
                check(value)


@lru_cache(64)
def _reader(
    columns: tuple[StateColumn, ...],
) -> tuple[msgspec.msgpack.Decoder[Any], Sequence[tuple[int, Callable[[Any], None]]]]:
    """A decoder of parts, and the further checks that some columns need."""
    types = [_OF_SKETCHES.get(column.role) or value_type(column.type) for column in columns]
    kinds = [list[Optional[type]] for type in types]  # type: ignore[valid-type] # noqa: UP045
    checks = [(i, _check(column.type)) for i, column in enumerate(columns) if "decimal" in column.type]
    return msgspec.msgpack.Decoder(tuple[tuple(kinds)]), checks  # type: ignore[misc]


def value_type(text: str) -> Any:
    """The Python type in which a value of that Spark type is sent. Decimals are text. Raises PeerError for an unknown type."""
    if text in _FLAT:
        return _FLAT[text]
    if text.startswith("decimal("):
        return Annotated[str, Meta(max_length=100)]
    if text.startswith("array<struct<"):
        fields = [each.partition(":")[2] for each in _fields(text[len("array<struct<") : -2])]
        return list[tuple[tuple(Optional[value_type(field)] for field in fields)]]  # type: ignore[misc] # noqa: UP045
    if text.startswith("array<"):
        return list[value_type(text[len("array<") : -1])]  # type: ignore[misc]
    if text.startswith("map<"):
        key, value = _fields(text[len("map<") : -1])
        return dict[value_type(key), value_type(value)]  # type: ignore[misc]
    raise PeerError(f"a column of the type {text}, which no lake has")


def _fields(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    found, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth:
            found.append("")
        else:
            found[-1] += character
    return found


def _check(text: str) -> Callable[[Any], None]:
    """A check of the decimals anywhere in a value of that type."""
    if text.startswith("array<struct<"):
        fields = [each.partition(":")[2] for each in _fields(text[len("array<struct<") : -2])]
        inner = [(i, _check(field)) for i, field in enumerate(fields) if "decimal" in field]

        def check_members(members: Any) -> None:
            for member in members or ():
                for i, check in inner:
                    check(member[i])

        return check_members
    if text.startswith("array<"):
        of_member = _check(text[len("array<") : -1])

        def check_each(members: Any) -> None:
            for member in members or ():
                of_member(member)

        return check_each
    if text.startswith("map<"):
        key, value = (_check(part) if "decimal" in part else None for part in _fields(text[len("map<") : -1]))

        def check_items(members: Any) -> None:
            for each in members or ():
                if key is not None:
                    key(each)
                if value is not None:
                    value(members[each])

        return check_items
    precision, scale = map(int, text[len("decimal(") : -1].split(","))

    def check_decimal(value: str | None) -> None:
        if value is not None and not _fits(value, precision, scale):
            raise PeerError(f"{value[:50]!r} instead of a {text}")

    return check_decimal


def _fits(value: str, precision: int, scale: int) -> bool:
    whole, point, fraction = value.removeprefix("-").partition(".")
    is_plain = value.isascii() and whole.isdigit() and (fraction.isdigit() if point else not fraction)
    if is_plain and len(whole) <= precision - scale and len(fraction) <= scale:
        return True  # as nearly all are: ten times as fast
    if not value.isascii() or "_" in value or value != value.strip():
        return False
    try:
        number = Decimal(value)
    except InvalidOperation:
        return False
    exponent = number.as_tuple().exponent
    return (
        isinstance(exponent, int)
        and -scale <= exponent <= 0
        and abs(number) < Decimal(10) ** (precision - scale)
    )
