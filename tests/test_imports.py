"""Cores do no IO: what lint-imports cannot see of its contract for them, in pyproject.toml."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS: list[dict[str, Any]] = PROJECT["tool"]["importlinter"]["contracts"]
(PURE,) = (contract for contract in CONTRACTS if contract["type"] == "forbidden")
HARMLESS = {"random.Random", "threading.local"}
"""The type of a generator that is an argument; a compressor for each thread."""
CALLS = {"open", "input", "print", "now", "utcnow", "today", "urandom", "default_rng"}
"""Of builtins, datetime and numpy."""
SEEDS = {"_front.pyx", "_strings.pyx"}
"""The hash tables of these are seeded from the system, so that no log line can aim at them; no result depends on it."""


def modules(suffix: str) -> list[Path]:
    """Of the pure rooms, without those that the contract lets through to a file or a process."""
    edges = {rule.split(" -> ")[0] for rule in PURE["ignore_imports"]}
    rooms = (ROOT.joinpath(*room.split(".")[1:]) for room in PURE["source_modules"])
    found = (path for room in rooms for path in sorted(room.rglob(f"*{suffix}")))
    return [path for path in found if name_of(path) not in edges]


def name_of(path: Path) -> str:
    return ".".join(("elf", *path.relative_to(ROOT).with_suffix("").parts))


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules, and names of modules, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "import always as elf.…"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def called(tree: ast.AST) -> Iterator[str]:
    """Names of functions that are called, less those of the module's own objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif (
                isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value).split(".")[0] != "self"
            ):
                yield node.func.attr


@pytest.mark.parametrize("path", modules(".py"), ids=name_of)
def test_a_core_takes_time_and_randomness_as_arguments(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not CALLS & set(called(tree))
    reached = {name for name in imported(tree) if name.split(".")[0] in PURE["forbidden_modules"]}
    assert reached <= HARMLESS


@pytest.mark.parametrize("path", modules(".pyx"), ids=name_of)
def test_a_core_in_cython_is_pure(path: Path) -> None:
    names = re.findall(r"(?m)^\s*(?:from|import|cimport)\s+(\w+)", path.read_text(encoding="utf-8"))
    assert set(names) & set(PURE["forbidden_modules"]) <= ({"os"} if path.name in SEEDS else set())
