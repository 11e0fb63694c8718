"""A query compiled once is the same plan from the cache, and nothing in the cache is trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from elf.agent.formats.presets import COLUMN_TYPES
from elf.agent.run import plan_cache
from elf.errors import QueryError
from elf.jobmaster.compile import query

SOURCES = {"access": COLUMN_TYPES}
QUERY = "SELECT path, count(*) AS n FROM access WHERE status >= 500 GROUP BY path"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "elf" / "plans"


def test_the_second_time_nothing_is_compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_cache.compiled(QUERY, SOURCES)
    assert plan == query.compile(QUERY, SOURCES)
    monkeypatch.setattr(query, "compile", lambda *_: pytest.fail("compiled again"))
    assert plan_cache.compiled(QUERY, SOURCES) == plan


def test_other_columns_are_another_query(folder: Path) -> None:
    plan_cache.compiled(QUERY, SOURCES)
    without = {name: type for name, type in COLUMN_TYPES.items() if name != "path"}
    with pytest.raises(QueryError, match="path"):
        plan_cache.compiled(QUERY, {"access": without})


def test_other_values_are_another_query(folder: Path) -> None:
    plans = [
        plan_cache.compiled(QUERY.replace("500", ":least"), SOURCES, {"least": text})
        for text in ("400", "500", "400")
    ]
    assert plans[0] == plans[2] != plans[1]
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"garbage", b"ELFP\x01garbage"])
def test_a_damaged_file_is_compiled_anew(folder: Path, damage: bytes) -> None:
    plan = plan_cache.compiled(QUERY, SOURCES)
    (only,) = folder.iterdir()
    only.write_bytes(damage)
    assert plan_cache.compiled(QUERY, SOURCES) == plan


def test_a_folder_that_cannot_be_used_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elf").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert plan_cache.compiled(QUERY, SOURCES) == query.compile(QUERY, SOURCES)


def test_the_oldest_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "PLANS_MAX", 3)
    for limit in range(1, 7):
        plan_cache.compiled(f"{QUERY} LIMIT {limit}", SOURCES)
    assert len(list(folder.iterdir())) == 3
