"""Tries an agent's state: whether the folder is its own, and whether its journal is whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from elf.agent.commands.doctor.finding import Finding, error, ok
from elf.agent.config import units
from elf.agent.config.config import Config
from elf.agent.disk import state_dir
from elf.agent.disk.journal import Reader
from elf.errors import StateError


def state_findings(settings: Config) -> Iterator[Finding]:
    """Of the journal, which may grow meanwhile."""
    folder = settings.agent.state_dir
    journal = folder / state_dir.JOURNAL
    if not folder.exists():
        yield ok("state", f"{folder}: not there yet; the agent's first start makes it")
    elif not journal.is_file():
        yield ok("state", f"{folder}: no journal yet")
    else:
        yield _journal(journal)


def _journal(path: Path) -> Finding:
    """Reads the whole file: a frame at a time."""
    records = 0

    def count(at: int, record: memoryview) -> None:
        nonlocal records
        records += 1

    try:
        reader = Reader.open(path)
    except OSError as problem:
        return error("state", f"{path}: {problem.strerror}; run this as the agent's user")
    try:
        reader.visit(path, count)
        size = path.stat().st_size
    except (StateError, OSError) as problem:
        return error("state", str(problem))
    finally:
        reader.close()
    return ok("state", f"{path}: whole, {records:,} records, {units.size_text(size)}")
