"""The plain command line of `elf run`: read without typer, to the very arguments that typer gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.commands import run as run_module
from elf.agent.commands import run_line
from elf.agent.commands.run_line import Arguments, Output
from elf.typer_cli import command

QUERY = "SELECT status, count(*) AS hits FROM access GROUP BY status"
ODD_WORDS = ("", "-", "--", "-x", "-fq", "--help", "--debug", "--meta=1", "--sink=", "xml", "--colour", "-1h")
FLAGS = [flag for field in run_line.FIELDS for flag in field.option.flags]
WORDS = st.sampled_from(
    (
        *FLAGS,
        *(f"{flag}={value}" for flag in FLAGS for value in ("json", "never", "a=b")),
        *("json", "csv", "never", "a.log", "1h", "x y", QUERY),
        *ODD_WORDS,
    )
)


def by_typer(monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> Arguments:
    taken: list[Arguments] = []

    def take(arguments: Arguments) -> int:
        taken.append(arguments)
        return 0

    monkeypatch.setattr(run_module, "run_command", take)
    assert command(argv) == 0
    return taken[0]


@pytest.mark.slow
@settings(derandomize=True, max_examples=400, deadline=None)
@given(words=st.lists(WORDS, max_size=6))
def test_what_it_reads_is_what_typer_reads(words: list[str]) -> None:
    argv = ["run", *words]
    read = run_line.read(argv)
    if read is not None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            assert read == by_typer(monkeypatch, argv)


def test_usual_lines_do_not_need_typer() -> None:
    read = run_line.read(["run", QUERY, "a.log", "--output", "csv", "-q", "--sink=console", "--", "-b"])
    assert read == Arguments(
        query=QUERY, files=("a.log", "-b"), output=Output.csv, quiet=True, sink=("console",)
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["-x"],
        ["-fq"],
        ["--meta=1"],
        ["--sink="],
        ["--colour"],
        ["--color", "xml"],
        ["--since", "-1h"],
        [""],
    ],
)
def test_mistakes_and_help_are_left_to_typer(words: list[str]) -> None:
    assert run_line.read(["run", QUERY, "a.log", *words]) is None
    assert run_line.read([*words, "run", QUERY, "a.log"]) is None
