"""Rooms stay small: no folder of more than 24 modules, no module of more than 600 lines. `make lint` runs this.

python tests/rooms.py
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES_MAX = 24
LINES_MAX = 600


def modules() -> Iterator[Path]:
    """Of the product and its tests, Python and Cython."""
    for room in ("agent", "cbt", "jobmaster", "sinks", "srt", "src/elf", "tests"):
        for suffix in ("*.py", "*.pyx"):
            yield from (path for path in sorted((ROOT / room).rglob(suffix)) if not path.is_symlink())
    yield ROOT / "typer_cli.py"


def problems() -> Iterator[str]:
    rooms = Counter(path.parent for path in modules())
    for room, count in rooms.items():
        if count > MODULES_MAX:
            yield f"{room.relative_to(ROOT)}: {count} modules, at most {MODULES_MAX}: make a room of some of them"
    for path in modules():
        lines = path.read_bytes().count(b"\n")
        if lines > LINES_MAX:
            yield f"{path.relative_to(ROOT)}: {lines} lines, at most {LINES_MAX}: move a noun of it into a module of its own"


if __name__ == "__main__":
    found = list(problems())
    print(*found, sep="\n")
    sys.exit(bool(found))
