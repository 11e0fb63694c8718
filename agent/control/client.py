"""The command's end of an agent's control socket: sends one request and reads its answers (`elf.agent.control.server`).

It imports no event loop, so that commands start quickly.
"""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from elf.agent.control.protocol import (
    ANSWER_BYTES_MAX,
    LENGTH,
    AnyAnswer,
    Done,
    Failed,
    Request,
    answer_of,
    frame,
)
from elf.errors import ElfError, PeerError, UsageError

SOCKET = "control.sock"
RUN_DIR = Path("/run/elf")
STATE_DIR = "/var/lib/elf"
ANSWER_S = 20.0
"""The slowest answer, a status of thousands of agents with many dead ones, takes half of that."""
PATH_BYTES_MAX = 100
"""A unix address has at most 107 bytes; a longer path is reached through a descriptor of its folder."""


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """The address to bind or connect to. Raises OSError."""
    text = str(path)
    if len(os.fsencode(text)) <= PATH_BYTES_MAX:
        yield text
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class Control:
    """The command's end: one request, and its answers in order. Use as a context."""

    def __init__(self, path: Path) -> None:
        """Connect. Raises ElfError, with what to do."""
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            with address_of(path) as address:
                self._socket.connect(address)
        except PermissionError as error:
            self._socket.close()
            raise ElfError(
                f"{path}: only the user that runs the agent may connect, and members of its control_group to read; run this "
                "command as that user (sudo -u …)"
            ) from error
        except OSError as error:
            self._socket.close()
            raise ElfError(
                f"no agent listens at {path} ({error.strerror}); start one with elf agent run, or name its control "
                "socket with --agent PATH or ELF_AGENT"
            ) from error
        self._stream = self._socket.makefile("rb")

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *about: object) -> None:
        self.close()

    @property
    def has_more(self) -> bool:
        """Whether part of an answer has arrived."""
        self._socket.setblocking(False)
        try:
            return bool(self._stream.peek(1))
        finally:
            self._socket.setblocking(True)

    def fileno(self) -> int:
        """Readable when there may be an answer."""
        return self._socket.fileno()

    def ask(self, request: Request) -> Iterator[AnyAnswer]:
        """Send the request. The answers as they come; `Failed` is raised: UsageError if the command was wrong, else ElfError."""
        # If the agent has closed the connection already, its answer, if any, says why.
        with self._reachable(), suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(frame(request))
        return self._answers()

    def _answers(self) -> Iterator[AnyAnswer]:
        while True:
            with self._reachable():
                answer = self._read()
            if isinstance(answer, Failed):
                raise (UsageError if answer.usage else ElfError)(answer.text)
            yield answer
            if isinstance(answer, Done):
                return

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """An agent that cannot be reached any more becomes an ElfError, with what to do."""
        try:
            yield
        except TimeoutError as error:
            raise ElfError(
                f"{self.path}: the agent does not answer; is it stopped, or its host overloaded? Its log may say more"
            ) from error
        except OSError as error:
            raise ElfError(
                f"{self.path}: the agent closed the connection ({error.strerror}); is it still running?"
            ) from error

    def one(self, request: Request, within_s: float = ANSWER_S) -> AnyAnswer:
        """The first answer. An agent that sends none in that time is stopped or overloaded."""
        self._socket.settimeout(within_s)
        return next(self.ask(request))

    def _read(self) -> AnyAnswer:
        head = self._stream.read(LENGTH.size)
        length = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
        body = self._stream.read(length) if 0 < length <= ANSWER_BYTES_MAX else b""
        if not length or len(body) < length:
            raise ElfError(f"{self.path}: the agent closed the connection; is it still running?")
        try:
            return answer_of(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PeerError(
                f"{self.path}: an answer that cannot be read ({error}); is that agent of another version of elf?"
            ) from error

    def close(self) -> None:
        """Disconnect; an `ask` that waits in another thread ends."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._socket.close()


def socket_path(given: Path | None, config: Path, environ: Mapping[str, str]) -> Path:
    """The local agent's socket: as given, else in the configuration's state_dir, if this user can see one there, else in
    /run/elf, which systemd makes for a group."""
    if given is not None:
        return given / SOCKET if os.path.isdir(given) else given
    state_dir, run = _state_dir(config, environ), RUN_DIR / SOCKET
    if state_dir is None:
        return run
    try:
        (state_dir / SOCKET).lstat()
    except PermissionError:
        return run if os.path.lexists(run) else state_dir / SOCKET
    except OSError:
        return run
    return state_dir / SOCKET


def _state_dir(config: Path, environ: Mapping[str, str]) -> Path | None:
    """The configured state_dir; None without a configuration that this user can read (`elf validate` reports its errors)."""
    if environ.get("ELF_AGENT_STATE_DIR"):
        return config.parent / environ["ELF_AGENT_STATE_DIR"]
    try:
        agent = tomllib.loads(config.read_text(encoding="utf-8")).get("agent", {})
    except (OSError, ValueError):
        return None
    value = agent.get("state_dir", STATE_DIR) if isinstance(agent, dict) else None
    return config.parent / value if isinstance(value, str) else None
