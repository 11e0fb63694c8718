"""Features: the names in an encoded plan that an agent must know in order to run it, such as `function upper` or `field where`.

What an agent knows follows from the types and tables with which it decodes plans, and what a plan needs from the plan's bytes,
also where these cannot be decoded. So there is no list to maintain: a function, a kind of node or a field that a version of elf
adds is a feature. A new field with a default should be left out of plans that do not use it (`omit_defaults`): these then need no
more than before.

An advert has the features of its agent as hashes of `HASH_BYTES` each, some 450 bytes; those of one version of elf differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import inspect

from elf.jobmaster.plan import check, signatures
from elf.jobmaster.plan.codec import MAGIC, ROWS_MAGIC
from elf.jobmaster.plan.plan import CANONICAL, Plan

HASH_BYTES = 3
"""Of some 150 features two collide once in 2,000 versions of elf; a test sees that."""
Features = frozenset[str]
READING = "reading 3"
"""The rules by which this version reads lines: which it rejects, and what a text means. To be counted up when they change.
No plan needs it; commands and status name the agents that lack it, since these read the same line otherwise."""
ALERTS = "alerts"
"""Entries of a job's log about its alerts (`elf.jobmaster.alerts`). Needed by jobs that have alerts."""
LOST = "counters of columns"
"""Rows of line counters that name a column (`elf.jobmaster.windows.counters`): a master or lake of before takes each for a pane.
Needed by plans that read numbers or booleans from columns that may be keys of the lines."""
_CONVERTED = frozenset({"bigint", "double", "boolean"})
NAMING = frozenset({"node", "function", "reduce", "kind"})
"""Fields whose values are names from a table, not texts of the query."""


@cache
def known() -> Features:
    """The features that this version of elf knows."""
    found = set(_of_type(inspect.type_info(Plan), set()))
    found |= {f"function {name}" for name in (*signatures.SIGNATURES, *check.AGGREGATES)}
    return frozenset({*found, READING, ALERTS, LOST, f"encoding {MAGIC[-1]}"})


def _of_type(type: inspect.Type, seen: set[Any]) -> Iterator[str]:
    """The fields, tags and words of a type, and of those within it."""
    if isinstance(type, inspect.StructType):
        if type.cls in seen:
            return
        seen.add(type.cls)
        if type.tag is not None:
            yield f"{type.tag_field} {type.tag}"
            yield f"field {type.tag_field}"
        for field in type.fields:
            yield f"field {field.encode_name}"
            for name in _of_type(field.type, seen):
                yield f"{field.encode_name} {name[5:]}" if name.startswith("word ") else name
    elif isinstance(type, inspect.EnumType):
        yield from (f"word {each.value}" for each in type.cls)
    elif isinstance(type, inspect.UnionType):
        for one in type.types:
            yield from _of_type(one, seen)
    elif isinstance(type, inspect.VarTupleType):
        yield from _of_type(type.item_type, seen)


@lru_cache(maxsize=256)
def needed(plan: bytes) -> Features:
    """The features that an encoded plan needs. Bytes that are no plan of any version need one that no agent knows. O(bytes)."""
    magic, body = plan[: len(MAGIC)], memoryview(plan)[len(MAGIC) :]
    unknown = frozenset({f"encoding {plan[:8].hex()}"})
    if magic[:-1] != MAGIC[:-1]:
        return unknown
    if magic != MAGIC:
        return frozenset({f"encoding {magic[-1]}"})
    try:
        found = set(_of_value(msgspec.msgpack.decode(body)))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return unknown
    return frozenset({*found, f"encoding {MAGIC[-1]}"})


def needed_of_rows(condition: bytes) -> Features:
    """As `needed`, of an encoded plan over rows of results."""
    return needed(
        MAGIC[:-1] + condition[len(ROWS_MAGIC) - 1 :] if condition.startswith(ROWS_MAGIC[:-1]) else condition
    )


def _of_value(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if _may_be_lost(value):
            yield LOST
        for name, one in value.items():
            yield f"field {name}"
            if name in NAMING and isinstance(one, str):
                yield f"{name} {one}"
            yield from _of_value(one)
    elif isinstance(value, list):
        for one in value:
            yield from _of_value(one)


def _may_be_lost(value: dict[Any, Any]) -> bool:
    """Whether it is a column with values that may not convert."""
    type = value.get("type")
    kind = type.get("kind") if isinstance(type, dict) else None
    name = str(value.get("name"))  # with # of groups and results, which are no columns of lines
    is_column = value.get("node") == "column" and name[:1] != "#" and name not in CANONICAL
    return is_column and kind in _CONVERTED


def _hash(feature: str) -> bytes:
    return blake2b(feature.encode(), digest_size=HASH_BYTES).digest()


def packed(features: Iterable[str]) -> bytes:
    """Features as an advert has them."""
    return b"".join(sorted(map(_hash, features)))


@cache
def own() -> bytes:
    """The features that this version of elf knows, as its advert has them."""
    return packed(known())


@lru_cache(maxsize=1024)
def lacking(advertised: bytes, needs: Features) -> tuple[str, ...]:
    """The needed features that an agent with that advert does not know, in order. O(features); cached."""
    has = {advertised[at : at + HASH_BYTES] for at in range(0, len(advertised), HASH_BYTES)}
    return tuple(sorted(name for name in needs if _hash(name) not in has))
