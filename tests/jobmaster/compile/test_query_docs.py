"""docs/query.md against the code: every function is in it, and its examples compile."""

from __future__ import annotations

import re

import pytest

from elf.agent.commands.functions import functions_command, refreshed
from elf.agent.formats.presets import COLUMN_TYPES
from elf.errors import QueryError
from elf.jobmaster.compile import query
from elf.jobmaster.compile.functions import INSTEAD
from elf.jobmaster.compile.reports import REPORTS
from elf.jobmaster.compile.scalar import AGGREGATES
from elf.jobmaster.plan import manual
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


def test_the_tables_are_those_of_the_code() -> None:
    page = DOCUMENT.read_text()
    assert refreshed(page) == page, "run: python -m elf.agent.commands.functions docs/query.md"


@pytest.mark.parametrize("entry", [*manual.FUNCTIONS, *manual.AGGREGATES], ids=lambda entry: entry.calls[0])
def test_examples_of_the_manual_have_the_type_it_says(entry: manual.Entry) -> None:
    columns = {**COLUMN_TYPES, **SOURCES["access"]}
    for name in entry.names:
        end = "" if entry in manual.AGGREGATES else " GROUP BY x"
        sql = f"SELECT {entry.example_of(name)} AS x, count(*) AS n FROM access{end}"
        type = query.compile(sql, {"access": columns}).select[0].type
        assert (
            entry.type in (str(type), "parts")
            or entry.type.startswith("of ")
            or entry.example[:5] in ("hour(", "crc32")
        )


def test_the_command_shows_one_function_and_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    functions_command("LCASE")
    assert capsys.readouterr().out.splitlines() == [
        "lcase(s)",
        "  result   string",
        "  meaning  in lower or upper case",
        "  example  SELECT lcase(path) AS x, count(*) FROM access GROUP BY x",
        "  see also lower(s), upper(s), ucase(s)",
    ]
    functions_command(None)
    listed = capsys.readouterr().out
    assert all(f"{name}(" in listed for name in (*SQL_FUNCTIONS, *AGGREGATES))
    for name, hint in (("spilt", "did you mean split?"), ("locate", "LIKE"), ("xyz", "`elf functions`")):
        with pytest.raises(QueryError, match=f"there is no function {name}") as caught:
            functions_command(name)
        assert hint in caught.value.hint


def test_no_supported_function_is_talked_out_of() -> None:
    assert not set(INSTEAD) & {*SQL_FUNCTIONS, *AGGREGATES}


@pytest.mark.parametrize("sql", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_compile(sql: str) -> None:
    query.compile(sql, SOURCES)
