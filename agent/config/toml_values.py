"""Keys of a TOML file, and the readers of their values. Each reader raises ValueError with what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from elf.agent.config import units


class Key(msgspec.Struct, frozen=True):
    """One key. read: converts TOML's value (raising ValueError). default: for an absent key."""

    read: Callable[[Any], Any]
    default: Any = None
    required: bool = False


def meant_key(key: str, known: Sequence[str]) -> str:
    """What to write in place of an unknown key."""
    from difflib import get_close_matches

    close = get_close_matches(key, known, n=1)
    return f"did you mean {close[0]}?" if close else f"expected one of {', '.join(known)}"


def found_text(value: Any) -> str:
    """A value as messages quote it, shortened, and without the user and password of an address."""
    try:
        text = msgspec.json.encode(value, enc_hook=str).decode() if value is not None else "nothing"
    except OverflowError:  # a number beyond 64 bits
        text = str(value)
    text = re.sub('//[^/"]*@', "//…@", text)
    return text if len(text) <= 60 else text[:59] + "…"


def read_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("text")
    return value


def read_source(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError("a name that FROM can hold: letters, digits and _")
    return value


def read_memory(value: Any) -> int:
    n_bytes = units.size(str(value))
    if n_bytes < units.size("8MiB"):
        raise ValueError(f"{units.SIZE_EXPECTED}, at least 8MiB")
    return n_bytes


def read_duration(value: Any) -> int:
    return units.duration_us(str(value))


def read_emit(value: Any) -> int:
    us = read_duration(value)
    if us < 10_000:
        raise ValueError(f"{units.DURATION_EXPECTED}, at least 10ms")
    return us


def read_timezone(value: Any) -> str:
    from zoneinfo import ZoneInfo  # late: it loads what Python was built with, and few files name a zone

    try:
        return ZoneInfo(read_text(value)).key
    except (KeyError, ValueError, OSError) as error:
        raise ValueError('a time zone like "UTC" or "Europe/Berlin"') from error


def read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def read_choice(choices: Sequence[str], value: Any) -> str:
    if value not in choices:
        raise ValueError(" or ".join(f'"{choice}"' for choice in choices))
    return str(value)
