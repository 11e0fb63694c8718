"""`elf job watch` without an agent: a socket that is silent."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from elf.agent.commands.jobs.watch import windows_of
from elf.agent.commands.process.signals import Stop
from elf.agent.control import protocol as w
from elf.agent.control.client import Control
from elf.errors import ElfError


@pytest.fixture
def agent(tmp_path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    listener.listen()
    return listener


def test_a_signal_ends_a_watch_before_the_first_window(tmp_path: Path, agent: socket.socket) -> None:
    with agent, Control(tmp_path / "socket") as control, agent.accept()[0] as connection:
        stop = Stop()
        stop.event.set()
        assert list(windows_of(control, "hits", stop)) == [None]
        assert connection.recv(1_000) == w.frame(w.JobWatch("hits"))


def test_a_watch_whose_agent_ends_before_the_first_window_is_an_error(
    tmp_path: Path, agent: socket.socket
) -> None:
    with agent, Control(tmp_path / "socket") as control:
        agent.accept()[0].close()
        windows = windows_of(control, "hits", Stop())
        assert next(windows) is None
        with pytest.raises(ElfError, match="the agent closed the connection; is it still running"):
            next(windows)
