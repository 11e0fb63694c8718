"""Columns by the keys' own names: which keys the first lines of a log have, and the type of each by its values. Pure.

A type is one of four: bigint where all numbers are whole and within 64 bits, double where another number is among them, boolean,
else string. Text wins wherever kinds of values are mixed. A list of exactly one value counts as that value; other lists are their
JSON text, and their elements are columns `name.0`, `name.1`, ….
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from elf.agent.formats.fields import KEYED, OWN, Escape, Field, Format, Shape
from elf.jobmaster.values.sql_types import BIGINT, BOOLEAN, DOUBLE, STRING, SqlType

ANY = "*"
"""The name that stands in a schema for any other column: a key that no line had yet may come."""
KEYS_MAX = 1000
"""Keys noted of one source: a log may have identifiers as keys."""
BYTES_MAX, LINES_MIN = 1 << 20, 10
"""First lines of so many bytes are examined whole (some 100 ms); of further files, so many lines each."""
ELEMENTS_MAX = 8
"""Elements of a list that are noted as columns."""
DEPTH_MAX = 64
"""Nesting of a line; deeper lines are rejected."""
NAMED_MAX = 12
"""Keys that a message lists."""
_NAME_MAX = 200
# Compiled at first use: most logs have no keys.
_NUMBER = r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?"
_PAIR = r'([^\s="]+)(?:=("(?:[^"\\]|\\.)*"|[^\s]*))?'
_NUMERIC = {"whole number", "other number"}


def asked_types(columns: Iterable[tuple[str, SqlType]]) -> dict[str, SqlType]:
    """The columns that a parser is asked for by several jobs: where these have a key by different types, the first is under its
    name, others under `typed_name`. O(n log n)."""
    asked: dict[str, SqlType] = {}
    for name, type in sorted(set(columns), key=lambda one: (one[0], str(one[1]))):
        asked[typed_name(name, type) if name in asked else name] = type
    return asked


def typed_name(name: str, type: SqlType) -> str:
    """A name for a column of that type, beside a column of that name with another type."""
    return f"{name}\0{type}"


def plain_name(name: str) -> str:
    """The name of a column, also of one with a `typed_name`."""
    return name.partition("\0")[0]


def own_fields(plan: Format, types: Mapping[str, SqlType]) -> tuple[Field, ...]:
    """The fields of the columns in `types` that are keys of the lines and not columns of the format. O(columns)."""
    if plan.shape not in KEYED:
        return ()
    others = plan.columns()
    is_json = plan.shape is Shape.JSON
    return tuple(
        Field(
            plain_name(name),
            OWN[type],
            name,
            nulls=() if is_json else (b"-", b""),
            escape=Escape.JSON if is_json else Escape.BACKSLASH,
        )
        for name, type in types.items()
        if plain_name(name) not in others and name != "agent" and type in OWN
    )


class Keys:
    """The keys in the first lines of some files, with the kinds of their values and how many lines had each. O(bytes)."""

    def __init__(self) -> None:
        self.kinds: dict[str, dict[str, int]] = {}
        self._filled: set[str] = set()
        self._read: set[str] = set()
        self._nbytes = 0

    def add(self, plan: Format, head: bytes, without: Collection[str] = ()) -> None:
        """Note the keys of the whole lines in `head`, but none in `without`; of a format without keys, which columns it fills."""
        if plan.shape not in KEYED:
            self._filled.update(plan.columns())
            return
        lines = head.split(b"\n")
        if len(lines) > 1:
            lines.pop()
        lines = lines[: None if self._nbytes < BYTES_MAX else LINES_MIN]
        self._nbytes += len(head)
        for line in lines:
            for path, kind in _values(plan.shape, line):
                if path not in without and (len(self.kinds) < KEYS_MAX or path in self.kinds):
                    kinds = self.kinds.setdefault(path, {})
                    kinds[kind] = kinds.get(kind, 0) + 1
        for field in plan.fields:
            if field.name in self.kinds:
                self._filled.update(field.columns)
                self._read.add(field.name)

    def columns(self, others: Iterable[str]) -> dict[str, SqlType]:
        """The type of each key that is a column besides `others`. Of names that differ by case only the first wins; but a key
        takes the place of one of `others` that no key fills."""
        taken = {name.lower() for name in others if name in self._filled or name in ("time", "agent")}
        exact = set(others)
        found: dict[str, SqlType] = {}
        for name, kinds in self.kinds.items():
            if self._is_object(name):
                continue
            if name not in exact and name.lower() not in taken and _can_be_named(name):
                taken.add(name.lower())
                found[name] = _type_of(kinds)
        return found

    def unread(self) -> set[str]:
        """The keys from which no column of the formats is read, nor from their parts."""
        inner = {key.rpartition(".")[0] for key in self._read if key.rpartition(".")[2].isdigit()}
        lists = {f"{key}.{at}" for key in self.kinds for at in range(ELEMENTS_MAX)}
        return self.kinds.keys() - self._read - inner - lists

    def notes(self, asked: Iterable[str], others: Iterable[str]) -> list[str]:
        """What the user of the columns `asked` should know: keys that no line had, and kinds that are mixed."""
        known = set(others)
        return [note for name in asked if name not in known for note in self._note(name)]

    def _note(self, name: str) -> Iterator[str]:
        kinds = {kind: n for kind, n in self.kinds.get(name, {}).items() if kind != "null"}
        if name not in self.kinds and not any(key.startswith(f"{name}.") for key in self.kinds):
            near = ", ".join(self.nearest(name))
            meant = f" (nearest: {near})" if near else ""
            yield f"no key {name} in the first lines{meant}; it is read as a string where it comes"
        elif len(kinds.keys() - _NUMERIC) + bool(kinds.keys() & _NUMERIC) > 1:
            ways = ", ".join(f"{kind} in {n:,}" for kind, n in sorted(kinds.items(), key=lambda one: -one[1]))
            yield f"the values of {name} are of several kinds (lines: {ways}); it is read as a string"

    def listed(self, asked: Iterable[str]) -> str:
        """The keys, those nearest to the columns `asked` first."""
        named = [
            name for name in self.kinds if not name.rpartition(".")[2].isdigit() and not self._is_object(name)
        ]
        near = [name for one in asked for name in self.nearest(one) if name in named]
        names = list(dict.fromkeys([*near, *named]))
        more = f" and {len(names) - NAMED_MAX:,} more" if len(names) > NAMED_MAX else ""
        return ", ".join(names[:NAMED_MAX]) + more

    def nearest(self, name: str) -> list[str]:
        """The keys most like `name`, as a whole or by their last part."""
        from difflib import get_close_matches

        spelled: dict[str, list[str]] = {}
        for key in self.kinds:
            for text in {key.lower(), key.rpartition(".")[2].lower()}:
                spelled.setdefault(text, []).append(key)
        near = get_close_matches(name.lower(), spelled, n=3)
        return list(dict.fromkeys(key for text in near for key in spelled[text]))[:3]

    def _is_object(self, name: str) -> bool:
        kinds = self.kinds[name].keys()
        return "object" in kinds and kinds <= {"object", "null"}


def widest(types: Iterable[SqlType]) -> SqlType:
    """The type of a column that has these types in several logs: double for two kinds of numbers, else string."""
    found = set(types)
    if len(found) == 1:
        return found.pop()
    return DOUBLE if found == {BIGINT, DOUBLE} else STRING


def _can_be_named(name: str) -> bool:
    """Whether a plan can have a column of that name (`#` marks names that are made by the compiler)."""
    return (
        bool(name) and name != ANY and name[0] not in "#." and len(name) <= _NAME_MAX and "\x00" not in name
    )


def _type_of(kinds: Mapping[str, int]) -> SqlType:
    found = kinds.keys() - {"null"}
    if found and found <= _NUMERIC:
        return BIGINT if found == {"whole number"} else DOUBLE
    return BOOLEAN if found == {"boolean"} else STRING


def _values(shape: Shape, line: bytes) -> Iterator[tuple[str, str]]:
    """(path, kind) of every value in a line; nothing of a line that cannot be read."""
    if shape is Shape.JSON:
        yield from _json_values(line)
        return
    text = line.decode("utf-8", "replace").rstrip("\r")
    if shape is Shape.LTSV:
        pairs = [part.partition(":")[::2] for part in text.split("\t") if ":" in part]
    else:
        pairs = [
            (match[1], (match[2] or "").removeprefix('"').removesuffix('"'))
            for match in re.finditer(_PAIR, text)
        ]
    for name, value in pairs:
        yield name, _kind_of_text(value)


def _json_values(line: bytes) -> Iterator[tuple[str, str]]:
    if not line.lstrip().startswith(b"{"):
        return
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        import json  # also reads numbers beyond a double

        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return
    yield from _leaves("", value)


def _leaves(path: str, value: object, depth: int = 0) -> Iterator[tuple[str, str]]:
    if depth > DEPTH_MAX:
        return
    if isinstance(value, dict):
        if path:
            yield path, "object"
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}" if path else name, inner, depth + 1)
    elif isinstance(value, list):
        single = len(value) == 1 and not isinstance(value[0], list | dict)
        yield path, _kind_of(value[0]) if single else "list"
        for at, inner in enumerate(value[:ELEMENTS_MAX]):
            yield from _leaves(f"{path}.{at}", inner, depth + 1)
    else:
        yield path, _kind_of(value)


def _kind_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "text"
    return "whole number" if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else "other number"


def _kind_of_text(value: str) -> str:
    """The kind of a value of a format in which all values are text."""
    if value in ("", "-"):
        return "null"
    if value in ("true", "false"):
        return "boolean"
    match = re.fullmatch(_NUMBER, value)
    if match is None:
        return "text"
    is_whole = not (match[1] or match[2]) and len(value) < 21 and -(1 << 63) <= int(value) < 1 << 63
    return "whole number" if is_whole else "other number"
