"""docs/query.md against the code: every function is in it, and its examples compile."""

from __future__ import annotations

import re

import pytest

from elf.jobmaster.compile import query
from elf.jobmaster.compile.functions import INSTEAD
from elf.jobmaster.compile.reports import REPORTS
from elf.jobmaster.compile.scalar import AGGREGATES
from elf.jobmaster.plan.signatures import SQL_FUNCTIONS
from tests.jobmaster.compile.query_cases import SOURCES
from tests.rigs import paths

DOCUMENT = paths.ROOT / "docs" / "query.md"
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE))
EXAMPLES = re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def named(section: str) -> set[str]:
    """The functions in the first column of a section's table."""
    cells = re.findall(r"^\| (`.*?) \|", SECTIONS[section], re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)\(", cell)}


def test_every_function_is_documented() -> None:
    assert named("Functions") == set(SQL_FUNCTIONS)
    assert named("Aggregates") == set(AGGREGATES)
    assert set(re.findall(r"`(\w+)`", SECTIONS["Reports"])) == set(REPORTS)


def test_no_supported_function_is_talked_out_of() -> None:
    assert not set(INSTEAD) & {*SQL_FUNCTIONS, *AGGREGATES}


@pytest.mark.parametrize("sql", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_compile(sql: str) -> None:
    query.compile(sql, SOURCES)
