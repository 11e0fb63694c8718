"""Reading a web server's configuration: bounded, includes followed, cycles refused."""

from __future__ import annotations

import glob
from pathlib import Path

from elf.errors import FormatError

BYTES_MAX = 4 << 20
"""Bytes of one configuration file; the largest in practice are generated ones of a few hundred KiB."""
FILES_MAX = 10_000
"""Files that one include may match."""
DEPTH_MAX = 16
"""Includes within includes."""


def read_config(path: Path, chain: tuple[Path, ...]) -> tuple[str, tuple[Path, ...]]:
    """The file's text, and `chain` (the files that led here) with it at the end.

    Raises FormatError when it cannot be read, is too large, or includes itself by way of `chain`.
    """
    try:
        real = path.resolve()
        if real in chain:
            raise FormatError(f"{path}: includes itself, by way of {chain[-1]}; take that include out")
        if len(chain) >= DEPTH_MAX:
            raise FormatError(f"{path}: more than {DEPTH_MAX} includes within one another, from {chain[0]}")
        with real.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{path}: cannot be read ({reason}); name a readable configuration file") from error
    if len(content) > BYTES_MAX:
        raise FormatError(f"{path}: larger than {BYTES_MAX >> 20} MiB; paste the format string instead")
    return content.decode("utf-8", "replace"), (*chain, real)


def included(pattern: str, root: Path) -> list[Path]:
    """The files of an include, in name order: for a folder all files below it; none if nothing matches."""
    found: list[Path] = []
    for match in sorted(glob.glob(str(root / pattern))):
        path = Path(match)
        found += sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        if len(found) > FILES_MAX:
            raise FormatError(f"include {pattern}: matches more than {FILES_MAX} files")
    return found
