"""A path that is not a file is refused as a log, with a message, wherever it would be followed; failures of a lake are named."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elf.agent.files.source import Source
from elf.sinks.lake.parquet import ParquetSink, WriterProcess, cause
from elf.typer_cli import app

SQL = "SELECT window, count(*) AS n FROM access GROUP BY window(time, '1 second')"
LINE = '10.0.0.1 - - [22/Nov/2026:01:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "-"\n'
LONE = """\
[agent]
name = "web1"
state_dir = "state"
[[source]]
name = "access"
path = "{path}"
format = "combined"
"""
JOB = f"""
[[job]]
name = "hits"
sql = "{SQL}"
"""
MESH = LONE.replace("[[source]]", 'listen = "127.0.0.1:0"\nsecurity = "none"\n[[source]]')
KINDS = {"fifo": "is a FIFO", "socket": "is a socket", "/dev/null": "is a device", "folder": "is a folder"}


@pytest.fixture(params=KINDS)
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The path of something that is not a file, and the message about it."""
    path = tmp_path / request.param
    with socket.socket(socket.AF_UNIX) as opened:
        match request.param:
            case "fifo":
                os.mkfifo(path)
            case "socket":
                opened.bind(os.path.relpath(path))
            case "folder":
                path.mkdir()
        yield str(path), f"{path}: {KINDS[request.param]}"


@pytest.mark.process
@pytest.mark.parametrize("config", [LONE + JOB, MESH])
@pytest.mark.parametrize("command", [("validate",), ("agent", "run")])
def test_an_agent_refuses_it(
    odd: tuple[str, str], tmp_path: Path, config: str, command: tuple[str, ...]
) -> None:
    path, text = odd
    (tmp_path / "elf.toml").write_text(config.format(path=path))
    result = CliRunner().invoke(app, [*command, "-c", str(tmp_path / "elf.toml")])
    assert result.exit_code != 0
    assert f"elf.toml: source access: {text}" in str(result.exception)


@pytest.mark.process
def test_follow_refuses_it(odd: tuple[str, str]) -> None:
    path, text = odd
    result = CliRunner().invoke(app, ["run", SQL, path, "--follow"])
    assert text in str(result.exception)


@pytest.mark.process
def test_once_fifos_are_read_each_from_its_first_line(tmp_path: Path) -> None:
    for name in ("one", "two"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "line").write_text(LINE)
    command = [sys.executable, "-m", "elf", "run", "SELECT count(*) AS n FROM access", "one", "two"]
    with subprocess.Popen(["sh", "-c", "cat line > one; exec cat line > two"], cwd=tmp_path) as writer:
        try:
            run = subprocess.run(command, stdout=subprocess.PIPE, cwd=tmp_path, timeout=60, check=True)
        finally:
            writer.kill()
    assert run.stdout == b'{"n":2}\n'


def test_what_a_pattern_matches_later_is_named_once_and_folders_are_passed_over(tmp_path: Path) -> None:
    source = Source("access", [str(tmp_path / "access.log*")], start="beginning")
    (tmp_path / "access.log.d").mkdir()
    (tmp_path / "access.log").write_text(LINE)
    os.mkfifo(tmp_path / "access.log.pipe")
    for now in (1.0, 20.0):
        source.scan(now)
    assert source.notices == [
        f"access: {tmp_path}/access.log.pipe: is a FIFO, whose bytes cannot be read again after a restart; have the server log "
        "to a file (elf run without --follow reads it once); it is not read"
    ]
    assert len(source.files()) == 1
    source.close()


@pytest.mark.process
def test_a_writer_that_cannot_be_started_is_distinguished_from_a_lake_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("")
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(PermissionError) as failed:
        WriterProcess()
    assert (
        cause(failed.value)
        == f"the process that writes the lake cannot be started: {python}: Permission denied"
    )
    refused = PermissionError(13, "Permission denied", str(tmp_path / "lake" / "hits"))
    assert cause(refused) == f"{tmp_path}/lake/hits: Permission denied"
    assert ParquetSink(tmp_path / "lake").directory == tmp_path / "lake"
