"""Cores do no IO: which modules see sockets, a clock, randomness, files or processes, and that no core imports one of these."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EDGES = {
    "srt": {
        "transport", "entrance", "outward", "station", "sockets", "process_gone", "challenges",  # messages over TCP
        "security", "security_files", "security_items", "security_pairs",  # keys: made, kept in files, dated
    },
    "jobmaster": {
        "journal",  # records in a file
        "query",  # SQL, compiled in a child process
    },
}  # fmt: skip
CORES_OF_AGENT = {
    "mesh_node", "linked_node", "job_seat", "delta_worker",
    "_timers", "departure", "held_back", "reading_places", "revoked", "rivals", "roles", "seats", "timers",
    "vacancy",  # what these import
}  # fmt: skip
OUTSIDE = {
    "asyncio", "concurrent", "fcntl", "http", "io", "mmap", "multiprocessing", "os", "pathlib", "random", "secrets", "select",
    "selectors", "shutil", "signal", "socket", "socketserver", "ssl", "subprocess", "tempfile", "threading", "time", "urllib",
    "uuid", "uvloop", "zmq",
}  # fmt: skip
HARMLESS = {"random.Random", "threading.local"}
"""The type of a generator that is an argument; a compressor for each thread."""
CALLS = {"open", "input", "print", "now", "utcnow", "today", "urandom", "default_rng"}
"""Of builtins, datetime and numpy."""


def core_files() -> list[Path]:
    cores = [ROOT / "agent" / f"{name}.py" for name in sorted(CORES_OF_AGENT) if name != "_timers"]
    for package, edges in EDGES.items():
        cores += [path for path in sorted((ROOT / package).glob("*.py")) if path.stem not in edges]
    return cores


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


def reaches(path: Path) -> set[str]:
    """What a module imports of the world outside."""
    names = set(imported(ast.parse(path.read_text(encoding="utf-8"))))
    return {name for name in names if name.split(".")[0] in OUTSIDE} - HARMLESS


@pytest.mark.parametrize("path", core_files(), ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_a_core_is_pure(path: Path) -> None:
    assert not reaches(path)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not CALLS & set(called(tree))
    modules = [
        name.split(".")[1:3] for name in imported(tree) if name.startswith("elf.") and name.count(".") > 1
    ]
    assert [name for package, name in modules if name in EDGES.get(package, ())] == []
    assert {name for package, name in modules if package == "agent"} <= CORES_OF_AGENT


@pytest.mark.parametrize("package", EDGES)
def test_every_edge_is_one(package: str) -> None:
    assert {edge for edge in EDGES[package] if not reaches(ROOT / package / f"{edge}.py")} == set()


def test_the_edges_stand_in_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    told = text[text.index("\n## Imports\n") : text.index("\n## Dependencies\n")]
    names = {*EDGES["srt"], *EDGES["jobmaster"], *CORES_OF_AGENT} - {"_timers"}
    assert {name for name in names if f"`{name}`" not in told} == set()
