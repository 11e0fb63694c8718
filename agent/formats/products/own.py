"""Users' formats: the tables `[format.NAME]` of a TOML file.

`--format NAME` finds those of ~/.config/elf/formats.toml (or $XDG_CONFIG_HOME/elf) and of /etc/elf/formats.toml, the user's file
first; `toml:FILE#NAME` names a table of any file, and the agent's own file may hold them too. Detection tries them first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from elf.agent.formats.fields import Format
from elf.agent.formats.presets import PRESETS
from elf.agent.formats.products.catalogue import TABLES
from elf.errors import FormatError

SYSTEM = Path("/etc/elf/formats.toml")
_NAME = r"[A-Za-z][\w-]*"


def places() -> tuple[Path, ...]:
    """The files that are looked into, the first that has a name counts."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "elf" / SYSTEM.name, SYSTEM


def own_tables() -> dict[str, tuple[Path, Mapping[str, Any]]]:
    """The tables of all files there are, by name, each with its file. Raises FormatError for a file that is not TOML."""
    found: dict[str, tuple[Path, Mapping[str, Any]]] = {}
    for path in places():
        try:
            stamp = path.stat().st_mtime_ns
        except OSError:
            continue
        for name, table in _tables(path, stamp).items():
            found.setdefault(name, (path, table))
    return found


def own_format(name: str) -> Format | None:
    """The user's format of this name, or None. Raises FormatError for a table that cannot be read."""
    if not re.fullmatch(_NAME, name):
        return None
    found = own_tables().get(name)
    return None if found is None else read_own(*found, name)


def from_file(path: str, name: str) -> Format:
    """The format [format.NAME] of a file. Raises FormatError, naming those that the file has."""
    try:
        tables = _tables(Path(path), os.stat(path).st_mtime_ns)
    except OSError as error:
        raise FormatError(f"{path}: cannot read the format: {error.strerror}") from error
    if name not in tables:
        known = ", ".join(tables) or "no [format.NAME] at all"
        raise FormatError(f"{path}: there is no [format.{name}]; it has {known}")
    return read_own(Path(path), tables[name], name)


def read_own(path: Path, table: object, name: str) -> Format:
    """The field plan of a user's table. Raises FormatError, naming its file."""
    if not re.fullmatch(_NAME, name):
        raise FormatError(f"{path}: [format.{name}]: expected a name of letters, digits, _ and -")
    if name in PRESETS or name in TABLES:
        raise FormatError(f"{path}: [format.{name}]: ELF has a format of this name; choose another")
    if not isinstance(table, Mapping):
        raise FormatError(f"{path}: [format.{name}]: expected a table")
    from elf.agent.formats.products.notation import read_table

    try:
        return read_table(name, table)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


@lru_cache(maxsize=4)
def _tables(path: Path, _stamp: int) -> dict[str, Mapping[str, Any]]:
    import tomllib

    try:
        top = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"{path}: cannot read the formats: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: {error}") from error
    tables = top.get("format", {})
    if not isinstance(tables, dict):
        raise FormatError(f"{path}: expected tables [format.NAME], found format = …")
    return tables
