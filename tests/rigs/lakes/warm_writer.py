"""Processes that write lakes and start warm: forked from one that has imported what the writer imports, a fifth of a second.

    process = WarmWriters().popen([...], env=os.environ)  # as `subprocess.Popen` of `elf.sinks.lake.writer` with two pipes

Agents and commands in processes of their own start the writer as users have it.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, NoReturn

import msgspec

from tests.rigs import paths
from tests.rigs.agents.zygote import Forked, Reap, plain_environment

REQUEST_BYTES = 1 << 17
PYTHON = sys.executable


class Start(msgspec.Struct, frozen=True, tag=True):
    """Write a lake with the two descriptors that come along as standard input and output. Answered by the pid."""

    folder: str
    environment: dict[str, str]


class WarmWriters:
    """The caller's side. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._socket: socket.socket | None = None

    def popen(self, command: Sequence[str], *, env: Mapping[str, str], **how: Any) -> Any:
        """A writer forked from the warm process; any other command, or Python, is started as ever."""
        if command != [PYTHON, "-P", "-m", "elf.sinks.lake.writer"]:
            return subprocess.Popen(command, env=env, **how)
        its_input, our_output = os.pipe()
        our_input, its_output = os.pipe()
        try:
            pid = self.ask(Start(os.getcwd(), dict(env)), its_input, its_output)
        finally:
            os.close(its_input)
            os.close(its_output)
        process: Any = Forked(self.ask, pid)
        process.stdin, process.stdout = os.fdopen(our_output, "wb"), os.fdopen(our_input, "rb")
        return process

    def ask(self, request: Start | Reap, *descriptors: int) -> int:
        with self._lock:
            if self._socket is None:
                self._socket = _begun()
            socket.send_fds(self._socket, [msgspec.msgpack.encode(request)], descriptors)
            answer = self._socket.recv(REQUEST_BYTES)
        assert answer, "the warm writer has ended"
        return msgspec.msgpack.decode(answer, type=int)


def _begun() -> socket.socket:
    """The socket of a new process, in a session of its own: Ctrl-C is for pytest."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(its.fileno())],
            cwd=paths.ROOT,
            env=plain_environment() | {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"},
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


# The warm process.


def _serve(requests: socket.socket) -> None:
    """Until the other side has ended; then nobody that was forked is left."""
    running: set[int] = set()
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 2)
        if not data:
            break
        request = msgspec.msgpack.decode(data, type=Start | Reap)
        if isinstance(request, Start):
            answer = os.fork() or _run(request, descriptors, requests)
            running.add(answer)
            for each in descriptors:
                os.close(each)
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(request.pid, 0)[1])
            running.remove(request.pid)
        requests.send(msgspec.msgpack.encode(answer))
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    for pid in running:
        os.waitpid(pid, 0)


def _run(request: Start, descriptors: Sequence[int], requests: socket.socket) -> NoReturn:
    """In the new process: be as one that was started."""
    from elf.sinks.lake.writer import main

    requests.close()
    os.setsid()
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    main()
    sys.exit()


if __name__ == "__main__":
    gc.disable()
    sys.modules["numpy"] = None  # type: ignore[assignment]  # as the writer does
    import elf.sinks.lake.requests
    import elf.sinks.lake.writer  # noqa: F401

    gc.freeze()
    with suppress(BrokenPipeError, ConnectionResetError):
        _serve(socket.socket(fileno=int(sys.argv[1])))
