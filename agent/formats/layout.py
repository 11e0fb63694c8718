"""From a server's format string to a field plan: literal text and fields in turn become a `Format` of shape LITERAL.

nginx's and Apache's readers, and the presets that are such strings, use it. A field between two double quotes is
quoted (an escaped quote does not end it); the closing quote belongs to the text that follows it (`Field.after`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elf.agent.formats.fields import Convert, Field, Format, Shape, is_text
from elf.errors import FormatError

Piece = str | Field
"""Literal text between fields, or a field."""


def literal(
    name: str,
    pieces: Iterable[Piece],
    *,
    time_is: str = "end",
    zone: bool = True,
    skip_prefix: str = "",
    comment: str = "",
) -> Format:
    """The format that these pieces describe, from the line's start to its end.

    Raises FormatError, naming both, for two fields without any text between them, which could not be separated.
    """
    parts = _joined(pieces)
    prefix = parts.pop(0) if parts and isinstance(parts[0], str) else ""
    assert isinstance(prefix, str)
    fields: list[Field] = []
    before = prefix
    for at, part in enumerate(parts):
        if isinstance(part, str):
            continue
        following = parts[at + 1] if at + 1 < len(parts) else ""
        if isinstance(following, Field):
            raise FormatError(
                f"format {name}: no separator between {part.name} and {following.name}; put text between the two"
            )
        quoted = before.endswith('"') and following.startswith('"')
        fields.append(msgspec.structs.replace(part, after=following, quote='"' if quoted else ""))
        before = following
    return checked(
        Format(
            name=name,
            shape=Shape.LITERAL,
            fields=tuple(fields),
            prefix=prefix,
            time_is=time_is,
            zone=zone,
            skip_prefix=skip_prefix,
            comment=comment,
        )
    )


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces, with adjacent texts joined and without empty texts."""
    parts: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and parts and isinstance(parts[-1], str):
            parts[-1] += piece
        elif piece != "":
            parts.append(piece)
    return parts


def checked(plan: Format) -> Format:
    """`plan` itself. Raises FormatError unless it has a time: without one no line could be put in a window."""
    filled = {field.convert for field in plan.fields}
    if "time" not in plan.columns():
        raise FormatError(
            f"format {plan.name}: no field gives the time; log one ($time_local, %t, or a group 'time')"
        )
    if Convert.DATE in filled and Convert.TIME_OF_DAY not in filled:
        raise FormatError(f"format {plan.name}: a date without the time of day; log both")
    return plan


class Variable(msgspec.Struct, frozen=True):
    """A server's variable. Several variables of a format may claim the same column ($request and $request_uri give `path`).

    field: the field if this variable gets the column, which goes to the lowest `rank`. otherwise: the field if another variable
    gets it. (A format that logs both loses nothing, and no column has two meanings.)
    """

    field: Field
    rank: int
    otherwise: Field


def unused(field: Field) -> Field:
    """The field without a column. Its text is checked as before, so that it still shows where the one before it ends."""
    if is_text(field.convert):
        return msgspec.structs.replace(field, convert=Convert.SKIP, column="")
    return msgspec.structs.replace(field, column="")


def settle(pieces: Iterable[str | Variable]) -> list[Piece]:
    """Give each column to the best variable that claims it; the others get a column of their own, or are skipped. O(n log n)."""
    parts = list(pieces)
    taken: set[str] = set()
    chosen: dict[int, Field] = {}
    variables = [(part.rank, at, part) for at, part in enumerate(parts) if isinstance(part, Variable)]
    for _, at, variable in sorted(variables, key=lambda item: item[:2]):
        for field in (variable.field, variable.otherwise):
            if taken.isdisjoint(field.columns):
                taken.update(field.columns)
                chosen[at] = field
                break
        else:
            chosen[at] = unused(variable.field)
    return [part if isinstance(part, str) else chosen[at] for at, part in enumerate(parts)]
