"""From a format's fields to the steps that the kernel executes: names become numbers, columns become slots.

Pure. `Plan` has the layout of the kernel's C structs (plan.h).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from elf.agent.formats import _tokenize
from elf.agent.formats.fields import KEYED, Convert, Escape, Field, Form, Format, Shape, is_text, type_of
from elf.errors import FormatError
from elf.jobmaster.values.sql_types import TIMESTAMP, SqlType

_CONVERT = {convert: _tokenize.CONVERTS.index(convert.name) for convert in Convert}
_ESCAPE = {escape: _tokenize.ESCAPES.index(escape.name) for escape in Escape}
_FORM = {form: _tokenize.FORMS.index(form.name) for form in Form}
_SHAPE = {shape: _tokenize.SHAPES.index(shape.name) for shape in Shape}

_QUICK_TEXT = (Convert.SKIP, Convert.STRING, Convert.REQUEST)
_QUICK_ESCAPES = (Escape.NONE, Escape.BACKSLASH, Escape.JSON)

# The order of a field's targets in the kernel (T_METHOD …); other conversions have one target, the first.
_PARTS = ("method", "path", "query", "protocol", "scheme", "host")
_SPLIT = (Convert.REQUEST, Convert.REQUEST_URL, Convert.URI, Convert.URL)


class Step(msgspec.Struct, frozen=True):
    """One field, in the kernel's terms. targets: six slots, or -1. chain: the next field of the same name, or -1. ahead: the
    fields behind it that show where it ends, if its content may hold its separator. quotes: of a stray field without `quote`, the
    quotes from its begin to the line's end where no text holds one; else 0."""

    convert: int
    escape: int
    quote: int
    after: bytes
    nulls: tuple[bytes, ...]
    targets: tuple[int, ...]
    fast: str
    dash: str
    is_time: bool
    optional: bool
    next_optional: bool
    required: bool
    sum: bool
    list: bool
    chain: int
    form: int
    ahead: int
    quotes: int


class Plan(msgspec.Struct, frozen=True):
    """The argument of `Tokenizer.load`.

    nodes: (first edge, number of edges, first field or -1) of the tree of keys (JSON, LTSV, logfmt), the root first. edges:
    (label, node). needs_time: some field gives `time`, so every line must have one. zoned: a DATE and TIME_OF_DAY are UTC.
    """

    shape: int
    steps: tuple[Step, ...]
    nodes: tuple[tuple[int, int, int], ...]
    edges: tuple[tuple[bytes, int], ...]
    prefix: bytes
    skip_prefix: bytes
    comment: bytes
    has_header: bool
    needs_time: bool
    zoned: bool


def column_types(format: Format) -> dict[str, SqlType]:
    """The type of every column that the format can fill. Raises FormatError where two fields disagree about one. O(fields)."""
    types: dict[str, SqlType] = {}
    for field in format.fields:
        for column in field.columns:
            kind = type_of(field.convert)
            if types.setdefault(column, kind) != kind:
                raise FormatError(
                    f"format {format.name}: {field.name} gives {column} as {kind}, another field as {types[column]}"
                )
    return types


def compile_plan(format: Format, fields: tuple[Field, ...], slots: Mapping[str, int]) -> Plan:
    """The plan for a format with these fields (its own, or those of a header line). Raises FormatError. O(fields)."""
    chains = _chains(fields)
    literal = format.shape is Shape.LITERAL
    nodes, edges = _tree(fields, format.shape) if format.shape in KEYED else ((), ())
    following = [*(field.optional for field in fields[1:]), False][: len(fields)]
    steps = [
        _step(
            format,
            field,
            slots,
            next_optional,
            chain,
            *(_ahead(fields, at), _quotes(fields, at)) if literal else (0, 0),
        )
        for at, (field, next_optional, chain) in enumerate(zip(fields, following, chains, strict=True))
    ]
    return Plan(
        shape=_SHAPE[format.shape],
        steps=tuple(steps),
        nodes=nodes,
        edges=edges,
        prefix=format.prefix.encode(),
        skip_prefix=format.skip_prefix.encode(),
        comment=format.comment.encode(),
        has_header=bool(format.header),
        needs_time=any(step.is_time for step in steps),
        zoned=format.zone,
    )


def _step(
    format: Format,
    field: Field,
    slots: Mapping[str, int],
    next_optional: bool,
    chain: int,
    ahead: int,
    quotes: int,
) -> Step:
    if len(field.nulls) > _tokenize.NULLS_MAX or any(
        len(text) > _tokenize.NULL_BYTES_MAX for text in field.nulls
    ):
        raise FormatError(
            f"format {format.name}: field {field.name}: at most {_tokenize.NULLS_MAX} NULL texts"
            f" of {_tokenize.NULL_BYTES_MAX} bytes each"
        )
    after = field.after.encode()
    if field.quote and not after.startswith(field.quote.encode()):
        after = field.quote.encode() + after
    fast = (
        _fast(field, after)
        if format.shape is Shape.LITERAL and b"\n" not in after and b"\r" not in after
        else ""
    )
    return Step(
        convert=_CONVERT[field.convert],
        escape=_ESCAPE[field.escape],
        quote=ord(field.quote) if field.quote else 0,
        after=after,
        nulls=field.nulls,
        targets=_targets(field, slots),
        fast=fast,
        dash=_lone_dash(field) if fast and after[:1] != b"-" else "",
        is_time=type_of(field.convert) == TIMESTAMP and "time" in field.columns,
        optional=field.optional,
        next_optional=next_optional,
        required=field.required,
        sum=field.sum,
        list=field.list,
        chain=chain,
        form=_FORM[field.form if format.shape is Shape.LITERAL and _checked(field) else Form.ANY],
        ahead=ahead,
        quotes=quotes,
    )


def _checked(field: Field) -> bool:
    """Whether the form of the field's text must be checked; a word that ends at the first space has none."""
    return not field.quote and not field.list and not (field.form is Form.WORD and field.after in (" ", "\t"))


def _ahead(fields: tuple[Field, ...], at: int) -> int:
    """How many fields behind `fields[at]` must fit where it ends: those up to a quote, or up to the next such field. Behind text
    between quotes that are not escaped: up to the next quote, or as long as there are quotes."""
    if not _open(fields[at]) and not _bare_request(fields[at]):
        return 0
    if '"' in fields[at].after and not fields[at].quote:
        if not (fields[at].stray or _bare_request(fields[at])):
            return 0
        return _count_to_quote(fields[at + 1 :], through=fields[at].stray)
    count = 0
    for field in fields[at + 1 :]:
        if _open(field) or field.optional:
            break
        count += 1
        if '"' in field.after:
            break
    return min(count, 255)


def _count_to_quote(behind: tuple[Field, ...], *, through: bool) -> int:
    """How many of the fields `behind` there are up to one before a quote, that included; through: up to the last such in a row,
    and at least one."""
    fixed = next((at for at, field in enumerate(behind) if field.optional), len(behind))
    quoted = ['"' in field.after for field in behind[:fixed]]
    ends = [at for at, is_quoted in enumerate(quoted) if is_quoted is not through]
    return min(max(ends[0], 1) if through and ends else ends[0] + 1 if ends else fixed, 255)


def _bare_request(field: Field) -> bool:
    """A request between quotes of a server that escapes none."""
    return (
        field.convert is Convert.REQUEST
        and not field.quote
        and field.escape is Escape.NONE
        and '"' in field.after
    )


def _quotes(fields: tuple[Field, ...], at: int) -> int:
    if not fields[at].stray or fields[at].quote:
        return 0
    return sum(field.after.count('"') for field in fields[at:])


def _open(field: Field) -> bool:
    """Whether a client may have written the field's separator into it."""
    if field.quote:
        return (field.escape is Escape.NONE or field.stray) and is_text(field.convert)
    return is_text(field.convert) and field.form in (Form.ANY, Form.USER) and field.after != ""


def _targets(field: Field, slots: Mapping[str, int]) -> tuple[int, ...]:
    parts = _PARTS if field.convert in _SPLIT else field.columns
    found = [slots.get(part, -1) if part in field.columns else -1 for part in parts]
    return (*found, *[-1] * (len(_PARTS) - len(found)))


def _fast(field: Field, after: bytes) -> str:
    """The kernel's shortcut for this field, with the same result as the general code; "" for none."""
    if field.convert in _QUICK_TEXT:
        return "text" if after and not field.list and field.escape in _QUICK_ESCAPES else ""
    if field.convert is Convert.TIME_CLF:
        clash = after[:1].isalnum() or after[:1] in (b"/", b":", b"+", b"-", b".")
        return "" if clash or field.quote else "clf"
    if field.convert in (Convert.INT, Convert.SIZE, Convert.STATUS):
        plain = all(not text.isdigit() for text in field.nulls)
        return "digits" if plain and not field.list and not after[:1].isdigit() else ""
    return ""


def _lone_dash(field: Field) -> str:
    """What a "-" in the place of a quick field is, so that the kernel need not look for its end."""
    if b"-" in field.nulls:
        return "" if field.sum or field.convert is Convert.TIME_CLF else "null"
    return "zero" if field.convert is Convert.SIZE else ""


def _chains(fields: Iterable[Field]) -> list[int]:
    """For each field the next one of the same name, or -1."""
    names = [field.name for field in fields]
    return [names.index(name, at + 1) if name in names[at + 1 :] else -1 for at, name in enumerate(names)]


def _tree(
    fields: tuple[Field, ...], shape: Shape
) -> tuple[tuple[tuple[int, int, int], ...], tuple[tuple[bytes, int], ...]]:
    """The tree of keys. A JSON path may be split at any of its dots, each of which is a node."""
    places: dict[str, int] = {"": 0}
    ends: dict[str, int] = {}
    below: dict[str, dict[str, str]] = {"": {}}
    for at, field in enumerate(fields):
        ends.setdefault(field.name, at)
        dots = [i for i, c in enumerate(field.name) if c == "."] if shape is Shape.JSON else []
        starts = [("", 0), *((field.name[:i], i + 1) for i in dots if i)]
        for start, begin in starts:
            for end in (*(i for i in dots if i >= begin), len(field.name)):
                place = field.name[:end]
                places.setdefault(place, len(places))
                below.setdefault(place, {})
                below[start][field.name[begin:end]] = place
    nodes: list[tuple[int, int, int]] = []
    edges: list[tuple[bytes, int]] = []
    for place in places:
        nodes.append((len(edges), len(below[place]), ends.get(place, -1)))
        edges += [(label.encode(), places[child]) for label, child in below[place].items()]
    return tuple(nodes), tuple(edges)
