"""Converts arguments without pydantic.

Newer typers hand every argument to pydantic when a command runs: 0.1 s and 20 MB, too much for an agent of 64 MB and a run
over an empty file. The types of our arguments are plain, so a few lines do the same. Versions of typer without pydantic are left
as they are.
"""

from __future__ import annotations

import math
from enum import Enum
from pathlib import Path
from typing import Any

import typer


def use_plain_types(command: Any) -> None:
    """Make `command`, and every other command of this process, convert its values by `PlainTypes`."""
    for base in type(command.params[0]).__mro__:
        if "get_runtime_param" in vars(base):
            # On the class, since the --help of each command is made only when it is parsed.
            base.get_runtime_param = _plain_types  # type: ignore[attr-defined]


def _plain_types(parameter: Any) -> PlainTypes:
    return PlainTypes(parameter)


class PlainTypes:
    """Converts text to bool, int, float, Path, a choice, or a list of text: typer's interface of a parameter's type."""

    def __init__(self, parameter: Any) -> None:
        self._type = parameter.type_descriptor.annotation
        self._is_many = parameter.multiple or parameter.nargs == -1
        self._least = getattr(parameter, "min", None)
        self._most = getattr(parameter, "max", None)

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of `param` from its text; a default is a value already. Raises `typer.BadParameter`."""
        if self._is_many:
            return list(value or ())
        if value is None or not isinstance(value, str):
            return value
        try:
            return self._made(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None

    def _made(self, text: str) -> Any:
        if self._type is int:
            return self._number(text)
        if self._type is float:
            return _real(text)
        if self._type is Path:
            return Path(text)
        if isinstance(self._type, type) and issubclass(self._type, Enum):
            choices = [str(choice.value) for choice in self._type]
            if text not in choices:
                raise ValueError(f"expected {', '.join(choices)}, found {text!r}")
            return self._type(text)
        return text

    def _number(self, text: str) -> int:
        least = f" from {self._least}" if self._least is not None else ""
        most = f" to {self._most}" if self._most is not None else ""
        number = int(text) if text.lstrip("-").isdecimal() else None
        if number is None or not _is_within(number, self._least, self._most):
            raise ValueError(f"expected a whole number{least}{most}, found {text!r}")
        return number


def _real(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"expected a number, found {text!r}")
    return number


def _is_within(number: int, least: float | None, most: float | None) -> bool:
    return (least is None or number >= least) and (most is None or number <= most)
