"""`elf help`: every page is there, without notes for writers, and a wrong name says what there is."""

from __future__ import annotations

import pytest

from elf.agent.commands.help import PAGES, help_command
from elf.errors import UsageError
from tests.rigs import paths


def test_pages_and_sections(capsys: pytest.CaptureFixture[str]) -> None:
    help_command(None, None)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[: len(PAGES)]] == list(PAGES)
    for page in PAGES:
        help_command(page.upper(), None)
        shown = capsys.readouterr().out
        assert shown.startswith("# ")
        assert "<!--" not in shown
        assert shown.splitlines()[0] == (paths.ROOT / "docs" / f"{page}.md").read_text().splitlines()[0]
    help_command("query", "win")
    section = capsys.readouterr().out
    assert section.startswith("## Windows\n")
    assert section.count("\n## ") == 0


@pytest.mark.parametrize(
    ("page", "section", "reason"),
    [
        ("qery", None, "there is no page qery; did you mean query?"),
        ("../query", None, "there is no page ../query"),
        ("xyz", None, "the pages are query, formats"),
        ("query", "Joins", "the page query has no section Joins; its sections are Clauses, Windows"),
    ],
)
def test_what_is_not_there(page: str, section: str | None, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        help_command(page, section)
    assert reason in str(caught.value)


def test_the_pages_are_in_the_package() -> None:
    """What setuptools packs is what the command reads; `make wheel` reads a page from the installed wheel."""
    packed = (paths.ROOT / "pyproject.toml").read_text().partition('"elf.docs" = [')[2].partition("]")[0]
    listed = (paths.ROOT / "MANIFEST.in").read_text()
    for page in PAGES:
        assert f'"{page}.md"' in packed
        assert f"src/elf/docs/{page}.md" in listed
