"""Literals and type names of the language, typed as Spark types them."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import NamedTuple

from elf.jobmaster.compile.parse import Node
from elf.jobmaster.compile.types import Mismatch, call
from elf.jobmaster.plan import signatures
from elf.jobmaster.plan.plan import Expression, Literal
from elf.jobmaster.values.conversion import double_text
from elf.jobmaster.values.sql_types import BIGINT, BOOLEAN, DOUBLE, INT, STRING, TIMESTAMP, SqlType, decimal

_TYPES = {
    "INT": INT,
    "BIGINT": BIGINT,
    "DOUBLE": DOUBLE,
    "TEXT": STRING,
    "BOOLEAN": BOOLEAN,
    "TIMESTAMPTZ": TIMESTAMP,
    "TIMESTAMPLTZ": TIMESTAMP,
    "TIMESTAMP": TIMESTAMP,
}
_TYPE_HINTS = {
    "FLOAT": "use DOUBLE",
    "TINYINT": "use INT",
    "SMALLINT": "use INT",
    "VARCHAR": "use STRING",
    "CHAR": "use STRING",
    "DATE": "use date_trunc('DAY', x), which returns a TIMESTAMP",
}


class Term(NamedTuple):
    """A translated expression, and how Spark names such a column."""

    expression: Expression
    name: str

    @property
    def type(self) -> SqlType:
        return self.expression.type


def number(source: str) -> Term:
    """A numeric literal, typed as Spark types it: the smallest of INT and BIGINT, else DECIMAL; exponents are DOUBLE."""
    text = source.replace("_", "")
    match = re.fullmatch(r"(-?)(\d*\.?\d*(?:e[+-]?\d+)?)(l|d|f|bd|s|y)?", text, re.IGNORECASE)
    if not match or not re.search(r"\d", match[2]):
        raise Mismatch(f"{source} is not a number")
    suffix, value = (match[3] or "").lower(), Decimal(match[1] + match[2])
    if abs(value.adjusted()) > 400:
        raise Mismatch(f"{source} is not a DOUBLE")
    if suffix in ("d", "f") or ("e" in match[2].lower() and suffix != "bd"):
        if math.isinf(float(value)):
            raise Mismatch(f"{source} is not a DOUBLE", "the largest is 1.7976931348623157E308")
        return Term(Literal(float(value), DOUBLE), double_text(float(value)))
    if "." not in match[2] and suffix != "bd":
        whole = int(value)
        if -(2**31) <= whole < 2**31 and suffix != "l":
            return Term(Literal(whole, INT), str(whole))
        if -(2**63) <= whole < 2**63:
            return Term(Literal(whole, BIGINT), str(whole))
    shown = format(value, "f")
    scale = len(shown.partition(".")[2])
    unscaled = int(shown.replace(".", ""))
    precision = max(len(str(abs(unscaled))), scale)
    if precision > signatures.PRECISION_MAX:
        raise Mismatch(
            f"{source} has more than {signatures.PRECISION_MAX} digits", "write it with an exponent"
        )
    type = decimal(precision, scale)
    if abs(unscaled) < 2**63:
        return Term(Literal(unscaled, type), shown)
    return Term(call("cast", Literal(shown, STRING), target=type), shown)


def type_named(node: Node) -> SqlType:
    """The type that CAST(… AS type) names. Raises Mismatch."""
    kind = str(getattr(node.this, "value", node.this))
    if kind == "DECIMAL":
        return _decimal([str(part.name) for part in node.expressions])
    if kind not in _TYPES:
        known = "one of INT, BIGINT, DOUBLE, DECIMAL(p, s), STRING, BOOLEAN, TIMESTAMP"
        raise Mismatch(f"the type {node.sql('spark')} is not supported", _TYPE_HINTS.get(kind, known))
    return _TYPES[kind]


def _decimal(digits: list[str]) -> SqlType:
    if len(digits) > 2 or not all(text.isdecimal() and len(text) < 4 for text in digits):
        raise Mismatch("DECIMAL takes two whole numbers", "DECIMAL(18, 6)")
    precision, scale = [*map(int, digits), *(10, 0)[len(digits) :]]
    if not 1 <= precision <= signatures.PRECISION_MAX or not 0 <= scale <= precision:
        raise Mismatch(f"DECIMAL({precision}, {scale}) does not exist", "1 to 38 digits in all")
    return decimal(precision, scale)
