"""The usual command line of `elf agent run`: read without typer, to the very arguments that typer gives."""

from __future__ import annotations

import pytest

from elf.agent.commands import agent_line
from elf.agent.commands.agent_line import AgentLine
from elf.typer_cli import command

LINES = {
    "": AgentLine("/etc/elf/elf.toml", {}, False),
    "-c a.toml": AgentLine("a.toml", {}, False),
    "--config=a.toml -q": AgentLine("a.toml", {}, True),
    "-c a.toml --quiet --name web1 --state-dir=/s --memory-max 64MiB": AgentLine(
        "a.toml", {"name": "web1", "state_dir": "/s", "memory_max": "64MiB"}, True
    ),
    "-c a.toml --config b.toml": AgentLine("b.toml", {}, False),
}


@pytest.mark.parametrize("words", LINES)
def test_it_reads_what_typer_reads(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[AgentLine] = []

    def serve(line: AgentLine) -> int:
        taken.append(line)
        return 0

    monkeypatch.delenv("ELF_CONFIG", raising=False)
    monkeypatch.setattr(agent_line, "serve", serve)
    argv = ["agent", "run", *words.split()]
    assert command(argv) == 0
    assert [agent_line.read(argv)] == taken == [LINES[words]]


def test_the_configuration_is_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELF_CONFIG", "/srv/elf.toml")
    assert agent_line.read(["agent", "run"]) == AgentLine("/srv/elf.toml", {}, False)


@pytest.mark.parametrize(
    "argv",
    [
        "agent",
        "run",
        "agent run --help",
        "agent run -c",
        "agent run -qc a",
        "agent run x",
        "agent run --name= -q",
    ],
)
def test_other_lines_are_left_to_typer(argv: str) -> None:
    assert agent_line.read(argv.split()) is None
