"""The usual command line of `elf agent run`, read without typer, which would take 4 MB for as long as the agent runs.

Other command lines (help, mistakes, completion, flags in one word) are left to typer: `typer_cli` declares the same arguments.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

CONFIG = "/etc/elf/elf.toml"
CONFIG_VARIABLE = "ELF_CONFIG"
OVERRIDES = ("name", "state_dir", "memory_max")
"""Keys of [agent] that flags override."""
_FLAGS = {"-c": "config", "--config": "config"} | {f"--{key.replace('_', '-')}": key for key in OVERRIDES}


class AgentLine(NamedTuple):
    """The arguments of `elf agent run`. overrides: values by their key in [agent]."""

    config: str
    overrides: dict[str, str]
    quiet: bool


def read(argv: Sequence[str]) -> AgentLine | None:
    """The arguments, or None where typer must read `argv`."""
    if list(argv[:2]) != ["agent", "run"] or "_ELF_COMPLETE" in os.environ:
        return None
    given: dict[str, str] = {}
    quiet = False
    words = iter(argv[2:])
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if word in ("-q", "--quiet"):
            quiet = True
            continue
        text = value if equals else next(words, "")
        if name not in _FLAGS or not text or text.startswith("-"):
            return None
        given[_FLAGS[name]] = text
    config = given.pop("config", "") or os.environ.get(CONFIG_VARIABLE) or CONFIG
    return AgentLine(config, given, quiet)


def serve(line: AgentLine) -> int:
    """Run the agent. Returns its exit code. Raises `ElfError`."""
    from elf.agent.host.allocator import stay_small
    from elf.agent.host.startup import light_imports

    light_imports()
    stay_small()
    from pathlib import Path  # not above: it imports others, which `light_imports` leaves out

    from elf.agent.commands.agent import agent_command

    return agent_command(Path(line.config), line.overrides, line.quiet)
