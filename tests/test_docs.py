"""The documents against the tree: every link leads to a file and a heading, ARCHITECTURE.md is short, and the transcript in
docs/takeover.md and the planned fleet in README.md are what the simulator prints.

ELF_GOLDEN=write writes both again. Each line of the transcript becomes the line of the same shape (equal words, other numbers)
that is nearest to its old time. Read the difference, and whether the explanations around it still hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from elf.agent.simulator.scenario.scenario import decode
from elf.agent.simulator.transcript import transcript
from elf.typer_cli import main

ROOT = Path(__file__).parent.parent
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
WORDS_MAX = 3_000
TAKEOVER = ROOT / "docs" / "takeover.md"
README = ROOT / "README.md"
SCENARIO = ROOT / "examples" / "takeover.json"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```\n((?: *\d+\.\d{4}  .*\n)+)```$", re.MULTILINE)
"""A part of a transcript: its lines begin with a time of four digits after the point."""
FLEET = re.compile(r"^\$ elf (simulate .*)\n((?:.*\n)+?)```$", re.MULTILINE)
"""A command, and what it prints on a terminal."""
CUT = " …"
"""Ends a line of which only the beginning is shown."""


def anchors(document: Path) -> set[str]:
    """What GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_every_link_leads_somewhere(document: Path) -> None:
    for link in LINK.findall(document.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        path = document.parent / file if file else document
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


def test_architecture_is_short() -> None:
    assert len(ARCHITECTURE.read_text().split()) <= WORDS_MAX


def shape(line: str) -> str:
    """The words of a line of a transcript, without its time and numbers."""
    words = line.split(maxsplit=1)[1]
    words = re.sub(r"(?<=:)[0-9a-f]{3}(?=[\[/])|(?<=Put )[0-9a-f]{6}", "x", words)
    return re.sub(r"(?<![a-z])\d+(\.\d+)?", "0", words)


def is_line(shown: str, line: str) -> bool:
    return line.startswith(shown.removesuffix(CUT)) if shown.endswith(CUT) else line == shown


def found(shown: list[str], lines: list[str]) -> Iterator[str | None]:
    """For each line of the document, in order, the one of the run: the same, or else the nearest of its shape."""
    at = 0
    for each in shown:
        wanted = shape(each).removesuffix(CUT)
        same = [number for number in range(at, len(lines)) if is_line(each, lines[number])]
        alike = [number for number in range(at, len(lines)) if shape(lines[number]).startswith(wanted)]
        time = float(each.split()[0])
        near = sorted(alike, key=lambda number: abs(float(lines[number].split()[0]) - time))
        if not same and not near:
            yield None
            continue
        number = (same or near)[0]
        at = number + 1
        line = lines[number]
        yield line if not each.endswith(CUT) else line[: len(each) - len(CUT)] + CUT


def test_the_transcript_is_what_the_simulator_says() -> None:
    outcome, text = transcript(decode(SCENARIO.read_bytes()))
    assert outcome.is_exact
    document = TAKEOVER.read_text()
    blocks = BLOCK.findall(document)
    assert len(blocks) > 3
    for block in blocks:
        shown, lines = block.splitlines(), list(found(block.splitlines(), text.splitlines()))
        gone = [each for each, line in zip(shown, lines, strict=True) if line is None]
        assert not gone, "no line of the run has these words: write this part of docs/takeover.md again"
        if os.environ.get("ELF_GOLDEN") == "write":
            document = document.replace(block, "".join(f"{line}\n" for line in lines))
        else:
            assert shown == lines, "ELF_GOLDEN=write writes the lines again; read the difference"
    if document != TAKEOVER.read_text():
        TAKEOVER.write_text(document)


@pytest.mark.long
@pytest.mark.slow
def test_the_planned_fleet_is_what_the_simulator_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = README.read_text()
    ((arguments, shown),) = FLEET.findall(document)
    monkeypatch.chdir(tmp_path)  # where its page goes
    assert main([*arguments.split(), "--output", "table", "--quiet"]) == 0
    figures = capsys.readouterr().out
    if os.environ.get("ELF_GOLDEN") == "write":
        README.write_text(document.replace(shown, figures))
    else:
        assert shown == figures, "ELF_GOLDEN=write writes them again; read the difference"
