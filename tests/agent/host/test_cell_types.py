"""The values of cells that come from another agent: each fits its type, or is refused."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from random import Random

from elf.agent.host.cell_types import _fits


def fits(text: str, precision: int, scale: int) -> bool:
    """By definition: so many digits before and after the point at most, and no exponent."""
    try:
        number = Decimal(text) if text.isascii() and "_" not in text and text == text.strip() else None
    except InvalidOperation:
        return False
    if number is None or not number.is_finite():
        return False
    exponent = number.as_tuple().exponent
    return (
        isinstance(exponent, int)
        and -scale <= exponent <= 0
        and abs(number) < Decimal(10) ** (precision - scale)
    )


def test_a_decimal_is_taken_as_its_definition_says() -> None:
    rng, taken = Random(7), 0
    for _ in range(5_000):
        text = "".join(rng.choice("01234567890123456789.-+e_ ٣N") for _ in range(rng.randrange(8)))
        precision = rng.randrange(1, 7)
        scale = rng.randrange(precision + 1)
        assert _fits(text, precision, scale) == fits(text, precision, scale), (text, precision, scale)
        taken += fits(text, precision, scale)
    assert taken > 300
