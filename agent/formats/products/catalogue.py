"""The products whose formats come with ELF as tables, by name; each is read when it is first asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from elf.agent.formats.fields import Format
from elf.agent.formats.products import applications, clouds, errors, proxies, servers

Table = Mapping[str, Any]

TABLES: dict[str, Table] = {
    name: table
    for room in (servers, proxies, clouds, applications, errors)
    for name, table in room.TABLES.items()
}
"""Each product's table by its name: the keys of `notation.KEYS`, and those of `OURS`."""


@cache
def product(name: str) -> Format:
    """The format of a product in `TABLES`."""
    from elf.agent.formats.products.notation import read_table

    return read_table(name, {key: value for key, value in TABLES[name].items() if key not in OURS})


OURS = ("source", "has", "like", "proof", "keys", "values", "guess", "detected")
"""Keys that only these tables have.

source: the maker's documentation. has: texts in every line, for a regular expression. like: a regular expression that lines of
this format match from their start, where the fields alone would take others' lines. proof: one that at least one line matches.
keys: names of JSON that only this product writes; two of them in most objects decide. values: with `keys` that others write too,
how values of JSON begin, by their dotted keys. guess: other formats may look the same, so
that what was assumed must be said. detected: False where another format always has the same lines.
"""


HINTS: tuple[tuple[bytes, str], ...] = (
    (
        rb'INFO: +[0-9A-Fa-f.:\[\]]+:[0-9]+ - "',
        "these lines are uvicorn's, which have no time: have them logged behind %(asctime)s, or as combined by gunicorn",
    ),
    (
        rb"--[0-9a-f]{8}-A--$",
        "this is ModSecurity's serial audit log: use SecAuditLogType Concurrent, or SecAuditLogFormat JSON",
    ),
)
"""What to do about lines of products that cannot be read: how they begin, and an advice."""


def hint(lines: Sequence[bytes]) -> str:
    """An advice about lines that no format fits, or ""."""
    return next((text for start, text in HINTS if any(re.match(start, line) for line in lines)), "")


@lru_cache(maxsize=1)
def likely(lines: tuple[bytes, ...]) -> list[str]:
    """The products, in the order of `TABLES`, that one of `lines` may be of: all fixed texts of the format are in it, in their
    order. O(lines), some microseconds for each product: no format is read for it."""
    return [name for name, texts in _fixed_texts() if any(has_texts(line, texts) for line in lines)]


def has_texts(line: bytes, texts: Iterable[bytes]) -> bool:
    """Whether the line has all of these texts, in their order."""
    at = 0
    for text in texts:
        at = line.find(text, at)
        if at < 0:
            return False
        at += len(text)
    return True


@lru_cache(maxsize=1)
def _fixed_texts() -> list[tuple[str, list[bytes]]]:
    found = []
    for name, table in TABLES.items():
        if table.get("detected", True) and "json" not in table:
            layout = next(key for key in ("line", "nginx", "apache", "regex") if key in table)
            texts = table["has"] if layout == "regex" else re.split(_FIELDS[layout], table[layout])
            found.append((name, [text.encode() for text in texts if text]))
    return found


_FIELDS = {
    # A field that the line may end before ends the fixed texts, too.
    "line": r" \{\w+(?::[^}]*)?\?\}.*|\{[^}]*\}",
    "nginx": r"\$\w+",
    "apache": r"%(?:\{[^}]*\})?>?\w",
}


def is_like(name: str, lines: Sequence[bytes], some: Sequence[bytes]) -> bool:
    """Whether at least half of the lines look like this product's, and one proves it, where its table says how these look. Most
    products are ruled out by `some` of the lines, none of which looks so."""
    table = TABLES[name]
    if "like" in table and not _matching(table["like"], some):
        return False
    return all(
        key not in table or _matching(table[key], lines) >= needed
        for key, needed in (("like", len(lines) / 2), ("proof", 1))
    )


def _matching(pattern: str, lines: Sequence[bytes]) -> int:
    match = re.compile(pattern.encode()).match
    return sum(match(line.removesuffix(b"\r")) is not None for line in lines)


def writer(objects: Sequence[Mapping[str, object]]) -> str | None:
    """The product that writes most of these JSON objects, by its keys. O(objects * products)."""
    for name, table in TABLES.items():
        keys = frozenset(table.get("keys", "").split())
        needed = min(2, len(keys))
        values = table.get("values", {})
        own = sum(len(keys & one.keys()) >= needed and _begin(one, values) for one in objects)
        if keys and own * 2 > len(objects):
            return name
    return None


def _begin(one: Mapping[str, object], values: Mapping[str, str]) -> bool:
    """Whether the object's values under these dotted keys are texts that begin so."""
    for path, start in values.items():
        value: object = one
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, str) or not value.startswith(start):
            return False
    return True
