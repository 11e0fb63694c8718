"""Rooms stay small: no folder of more than 24 modules, no module of more than 600 lines, no class of more than 40 methods.
`make lint` runs this.

python tests/rooms.py
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES_MAX = 24
LINES_MAX = 600
METHODS_MAX = 40


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
        if path.suffix == ".py":
            yield from (f"{path.relative_to(ROOT)}: {problem}" for problem in crowded(path.read_text()))


def crowded(source: str) -> Iterator[str]:
    """Of the classes of a module. Private methods and properties count, those of its bases do not."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            count = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
            if count > METHODS_MAX:
                yield (
                    f"class {node.name} has {count} methods, at most {METHODS_MAX}: it is several nouns; find fields that few"
                    " methods share (a queue, a table, a clock of deadlines) and make them a class of their own"
                )


if __name__ == "__main__":
    found = list(problems())
    print(*found, sep="\n")
    sys.exit(bool(found))
