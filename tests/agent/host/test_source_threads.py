"""The sources of an agent's process, and what they know of an earlier life."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elf.agent.config.config import load
from elf.agent.host.source_threads import SourceThreads
from elf.cbt.budget import Budget
from elf.srt.messages.effects import Read
from elf.srt.messages.ids import node_id


@pytest.mark.parametrize("is_lost", [False, True])
def test_files_of_an_agent_whose_records_were_deleted_are_not_from_before_it(
    tmp_path: Path, is_lost: bool
) -> None:
    (tmp_path / "access.log").write_text("x" * 100)
    path = tmp_path / "elf.toml"
    path.write_text(
        '[agent]\nname = "web"\nstate_dir = "state"\nlisten = "127.0.0.1:0"\nsecurity = "none"\n'
        '[[source]]\nname = "access"\npath = "access.log"\nformat = "combined"\n'
    )
    (tmp_path / "state").mkdir()
    config, host = load(path, environ={}), None
    threads = SourceThreads(host, None)  # type: ignore[arg-type]
    with ExitStack() as opened:
        budget: Any = Budget(64 << 20, tmp_path, lambda: 0, 0)
        opened.callback(budget.close)
        threads.open(config, node_id(b"me"), budget, 5_000_000, opened, is_lost=is_lost)
        (source,) = threads.sources.values()
        assert [first.size for first in source._files.notes.firsts] == [100] * (not is_lost)


@pytest.mark.parametrize("worker", [None, SimpleNamespace(schedule=())])
def test_a_job_that_was_started_again_has_not_asked_to_read(worker: Any) -> None:
    """The `Read` is of the worker before; the new one has no schedule yet, under which lines could be counted."""
    seat = SimpleNamespace(worker=worker)
    host: Any = SimpleNamespace(is_over=False, node=SimpleNamespace(seats={b"job": seat}))
    threads = SourceThreads(host, None)
    threads.read(Read(b"job", 1, 0, {}, 0))  # a source would be asked, and there is none
