"""Log formats by name, by a server's own format string, from its configuration, or by detection.

It turns the text that an operator writes (`--format`, `format =`) into a field plan (`fields.Format`).
"""

from __future__ import annotations

import re

from elf.agent.formats import nginx, w3c
from elf.agent.formats.envelopes import kinds
from elf.agent.formats.fields import Format, type_of
from elf.agent.formats.presets import COLUMN_TYPES, PRESETS
from elf.agent.formats.table import ColumnRow, describe_format
from elf.errors import FormatError
from elf.jobmaster.values.sql_types import SqlType

__all__ = ["ColumnRow", "column_types", "describe", "names", "resolve"]

NAMED = 6
"""Formats that a message names."""


def names() -> list[str]:
    """The names of all formats that come with ELF."""
    from elf.agent.formats.products.catalogue import TABLES

    return [*PRESETS, *TABLES]


def resolve(spec: str, *, sample: bytes = b"") -> Format:
    """The format that `spec` means: `auto` (by `sample`, the first lines), a name (of a preset, a product, or a user's format),
    `nginx:FILE#NAME`, `apache:FILE#NAME`, `toml:FILE#NAME`, a pasted nginx log_format or Apache LogFormat, or `regex:PATTERN`
    with named groups; each also in an envelope, as `ENVELOPE+FORMAT`.

    Raises FormatError: an unknown name (with the nearest known one), a name that the configuration lacks (with those it has),
    adjacent variables, no time, a broken pattern, a sample that no format fits (with the formats tried).
    """
    spec = spec.strip()
    if kinds.is_detected(spec):
        from elf.agent.formats.detect import detect

        return detect(sample, kinds.split(spec)[0])
    kind, inner = kinds.split(spec)
    if kind:
        return kinds.wrapped(kind, resolve(inner))
    if spec in PRESETS:
        return PRESETS[spec]
    if spec.startswith("regex:"):
        from elf.agent.formats.products.notation import from_regex

        return from_regex(spec.removeprefix("regex:"))
    if spec.startswith(("nginx:", "apache:", "toml:")):
        return _from_config(spec)
    if (named := _named(spec)) is not None:
        return named
    if re.search(r"\$\{?\w", spec):
        return nginx.from_pasted(spec)
    if "%" in spec:
        from elf.agent.formats import apache

        return apache.from_statement(spec)
    if "(?P<" in spec:
        raise FormatError("format: write regex: before a regular expression, as in --format 'regex:…'")
    raise FormatError(_unknown(spec))


def _named(name: str) -> Format | None:
    """A product's format, or a user's own."""
    from elf.agent.formats.products import catalogue, own

    return catalogue.product(name) if name in catalogue.TABLES else own.own_format(name)


def _unknown(spec: str) -> str:
    if spec in kinds.KINDS:
        return f"format {spec!r} is an envelope: name the format inside too, as in {spec}+combined or {spec}+auto"
    from difflib import get_close_matches

    from elf.agent.formats.products.own import own_tables, places

    all_names = [*names(), *own_tables(), "auto"]
    near = get_close_matches(spec.lower(), all_names, n=1)
    first_words = {name.partition("_")[0] for name in all_names}
    if not near and (word := get_close_matches(spec.lower(), first_words, n=1)):
        near = [name for name in all_names if name.partition("_")[0] == word[0]]
    more = len(all_names) - NAMED
    known = (
        f"known are auto, {', '.join(names()[: NAMED - 1])} and {more} more, which elf formats lists, those of {places()[0]},"
        " nginx:FILE#NAME, apache:FILE#NAME, toml:FILE#NAME, regex:PATTERN"
    )
    meant = ", ".join(near[:NAMED]) + (", …, see elf formats" if len(near) > NAMED else "")
    return f"format {spec!r} is not known; " + (f"did you mean {meant}?" if near else known)


def _from_config(spec: str) -> Format:
    server, _, place = spec.partition(":")
    path, mark, name = place.rpartition("#")
    if not (path and mark and name and place.isprintable()):
        raise FormatError(f"format {spec!r}: expected {server}:FILE#NAME, as in {_EXAMPLES[server]}")
    if server == "nginx":
        return nginx.from_config(path, name)
    if server == "toml":
        from elf.agent.formats.products.own import from_file

        return from_file(path, name)
    from elf.agent.formats import apache

    return apache.from_config(path, name)


_EXAMPLES = {
    "nginx": "nginx:/etc/nginx/nginx.conf#main",
    "apache": "apache:/etc/apache2/apache2.conf#combined",
    "toml": "toml:/etc/elf/elf.toml#shop",
}


def column_types(plan: Format) -> dict[str, SqlType]:
    """The SQL type of every column that `plan` can fill, plus `agent`. It is the source's schema for a query.

    A W3C log has all columns that a header can name, since a header may come in mid-file; they are NULL until then.
    """
    types = {column: type_of(convert) for column, convert in w3c.widened(plan).columns().items()}
    return {**types, "agent": COLUMN_TYPES["agent"]}


def describe(name: str) -> list[ColumnRow]:
    """The source of each column of a format: field, unit, NULL rule, and whether its time is the request's start or end.

    `name` is anything that `resolve` takes except `auto`. Raises FormatError like `resolve`.
    """
    return describe_format(resolve(name))
