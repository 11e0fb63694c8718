"""The plain command line of `elf run`: read without typer, to the very arguments that typer gives."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.commands import run as run_module
from elf.agent.commands import run_line
from elf.agent.commands.run import Arguments
from elf.typer_cli import app, command

QUERY = "SELECT status, count(*) AS hits FROM access GROUP BY status"
ODD_WORDS = ("", "-", "--", "-x", "-fq", "--help", "--debug", "--meta=1", "--sink=", "xml", "--colour", "-1h")
WORDS = st.sampled_from(
    (
        *run_line.VALUES,
        *run_line.FLAGS,
        *(f"{option}={value}" for option in run_line.VALUES for value in ("json", "never", "a=b")),
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
            assert Arguments(**read) == by_typer(monkeypatch, argv)


def test_usual_lines_do_not_need_typer() -> None:
    read = run_line.read(["run", QUERY, "a.log", "--output", "csv", "-q", "--sink=console", "--", "-b"])
    assert read == {
        "query": QUERY,
        "files": ("a.log", "-b"),
        "output": "csv",
        "quiet": True,
        "sink": ("console",),
    }


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["-x"],
        ["-fq"],
        ["--meta=1"],
        ["--sink="],
        ["--colour"],
        ["--output", "xml"],
        ["--since", "-1h"],
        [""],
    ],
)
def test_mistakes_and_help_are_left_to_typer(words: list[str]) -> None:
    assert run_line.read(["run", QUERY, "a.log", *words]) is None
    assert run_line.read([*words, "run", QUERY, "a.log"]) is None


def test_it_knows_every_option_of_the_command() -> None:
    made: Any = typer.main.get_command(app)
    for option in made.commands["run"].params:
        for name in option.opts:
            if name.startswith("-") and name != "--help":
                assert (run_line.FLAGS if option.is_flag else run_line.VALUES)[name] == option.name
    known = {field for table in (run_line.VALUES, run_line.FLAGS) for field in table.values()}
    assert known | {"query", "files"} == set(Arguments.__struct_fields__)
