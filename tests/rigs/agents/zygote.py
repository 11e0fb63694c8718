"""Processes of `elf` that start warm: forked from one that has imported what an agent imports, which takes half a second.

    process = Zygote().start(["agent", "run"], folder, environment, folder / "said")
    assert process.wait(10) == 0

A zygote is one process per process of pytest, with one thread; it starts at the first use, and ends with the process that has
started it, however that one ends, and all that it has forked ends with it. Whoever is forked runs `elf.__main__.start`, as
`python -m elf` does, with a folder, an environment, standard streams and arguments of its own, and is a process as any other to
signals, the kernel and its neighbours. It differs from one of `python -m elf` in what `Agent.launch` lists.
"""

from __future__ import annotations

import atexit
import gc
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NoReturn

import msgspec

from tests.rigs import paths

REQUEST_BYTES = 1 << 17


class Start(msgspec.Struct, frozen=True, tag=True):
    """Run `elf` with those arguments; both streams are appended to a file. Answered by the pid."""

    arguments: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    output: str


class Reap(msgspec.Struct, frozen=True, tag=True):
    """Wait for a process that has ended. Answered by its exit code, -N if signal N has ended it."""

    pid: int


class Zygote:
    """The caller's side. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._socket: socket.socket | None = None

    def start(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path
    ) -> Forked:
        """`elf ARGUMENTS` in that folder."""
        request = Start(tuple(arguments), str(folder), dict(environment), str(output))
        return Forked(self.ask, self.ask(request))

    def ask(self, request: Start | Reap) -> int:
        with self._lock:
            if self._socket is None:
                self._socket = _begun()
            self._socket.send(msgspec.msgpack.encode(request))
            answer = self._socket.recv(REQUEST_BYTES)
        assert answer, "the zygote has ended"
        return msgspec.msgpack.decode(answer, type=int)


class Forked:
    """A process as `subprocess.Popen` has it. Its pid is nobody else's until its end was seen here."""

    def __init__(self, ask: Callable[[Reap], int], pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ask = ask
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises `TimeoutExpired` after so many seconds."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("elf", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and _is_readable(self._end, timeout):
            self.returncode = self._ask(Reap(self.pid))
            os.close(self._end)
        return self.returncode


def plain_environment() -> dict[str, str]:
    """Of this process, without what changes Python or configures elf."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "ELF_"))}


def _is_readable(descriptor: int, timeout: float | None) -> bool:
    """Not by `select`, which knows no descriptor above 1023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


def _begun() -> socket.socket:
    """The socket of a new zygote, in a session of its own: Ctrl-C is for pytest."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(its.fileno())],
            cwd=paths.ROOT,
            env=plain_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(its.fileno(),),
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# The zygote's side.


def _warm() -> None:
    """Import what `elf agent run` imports. None of it starts a thread, opens a socket, or draws a random number."""
    from elf.agent.host.startup import light_imports

    light_imports()
    import elf.agent.commands.agent
    import elf.agent.host.process
    import elf.srt.security.files
    import elf.typer_cli  # noqa: F401


def _serve(requests: socket.socket) -> None:
    """Until the other side has ended; then nobody that was forked is left."""
    running: set[int] = set()
    while data := requests.recv(REQUEST_BYTES):
        request = msgspec.msgpack.decode(data, type=Start | Reap)
        if isinstance(request, Start):
            answer = os.fork() or _run(request, requests)
            running.add(answer)
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(request.pid, 0)[1])
            running.remove(request.pid)
        requests.send(msgspec.msgpack.encode(answer))
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    for pid in running:
        os.waitpid(pid, 0)


def _run(request: Start, requests: socket.socket) -> NoReturn:
    """In the new process: be as one that was started."""
    import elf.__main__

    requests.close()
    with open(request.output, "ab") as output, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(request.folder)
    sys.path[0] = request.folder
    os.environ.clear()
    os.environ.update(request.environment)
    assert elf.__main__.__file__ is not None
    sys.argv = [elf.__main__.__file__, *request.arguments]
    gc.unfreeze()
    elf.__main__.start()


if __name__ == "__main__":
    gc.disable()
    _warm()
    gc.freeze()
    with suppress(BrokenPipeError, ConnectionResetError):
        _serve(socket.socket(fileno=int(sys.argv[1])))
