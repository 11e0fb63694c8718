"""Windows as the standard input of a command: it is run once for each, and its exit code 0 acknowledges.

It is run without a shell, in a session and process group of its own, in the folder `/`, with `PATH`, `LANG` and what identifies
the window as its environment, no open files but the standard ones, and limits of time, processor time and open files. When its
time is over, or the agent ends, it is killed with all that it started.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress

from elf.sinks.delivery.contract import DeliveryError, RefusedError, WindowMessage

TIME_S = 30.0
CPU_S = 30
FILES_MAX = 256
SAID_BYTES_MAX = 200
"""Of what it writes to its standard error: shown if it fails."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIMITS = ((resource.RLIMIT_CPU, CPU_S), (resource.RLIMIT_NOFILE, FILES_MAX), (resource.RLIMIT_CORE, 0))


class CommandCarrier:
    """Runs a command. See `Carrier`. argv: the program's absolute path, and its arguments."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = tuple(argv)
        self._turn = asyncio.Lock()

    async def connect(self) -> None:
        """Also so that a program that cannot be run is named before there is a window."""
        if not os.access(self._argv[0], os.X_OK) or os.path.isdir(self._argv[0]):
            raise DeliveryError(f"{self._argv[0]}: there is no such program, or it cannot be executed")

    async def deliver(self, message: WindowMessage) -> None:
        async with self._turn:
            try:
                code, said = await self._run(message)
            except TimeoutError:
                raise RefusedError(
                    f"{self._argv[0]} did not end within {TIME_S:.0f} s, and was killed"
                ) from None
            except OSError as error:
                raise DeliveryError(f"{self._argv[0]}: {error.strerror or error}") from None
        if code:
            how = f"ended with {code}" if code > 0 else f"was killed by signal {-code}"
            raise RefusedError(f"{self._argv[0]} {how}{f': {said}' if said else ''}")

    async def gone(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """What runs is killed by the cancellation of its `deliver`."""

    async def _run(self, message: WindowMessage) -> tuple[int, str]:
        """The exit code, and what it said. Raises OSError, TimeoutError."""
        # A start that is cancelled halfway never ends in asyncio, and would leave the process: so it is always waited for.
        starting = asyncio.ensure_future(self._started(message))
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await _kill(await starting)
            raise
        try:
            for kind, most in LIMITS:
                with suppress(OSError, ValueError):  # it has ended, or the host's limit is lower
                    resource.prlimit(process.pid, kind, (most, most))
            async with asyncio.timeout(TIME_S):
                said, _ = await asyncio.gather(_said(process), _feed(process, message.body))
            return await process.wait(), said
        finally:
            await _kill(process)

    async def _started(self, message: WindowMessage) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(message),
            cwd="/",
            start_new_session=True,
        )


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Also what it started and left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _feed(process: asyncio.subprocess.Process, body: bytes) -> None:
    """Write the window; a command need not read it."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.write(body)
        await process.stdin.drain()
    process.stdin.close()


async def _said(process: asyncio.subprocess.Process) -> str:
    """The start of its standard error, printable, until it ends."""
    assert process.stderr is not None
    said = b""
    while block := await process.stderr.read(4096):
        said = (said + block)[:SAID_BYTES_MAX]
    text = said.decode(errors="replace").strip()
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _environment(message: WindowMessage) -> dict[str, str]:
    about = {
        "kind": message.kind,
        "id": message.id,
        "job": message.job,
        "version": message.version,
        "status": message.status,
    }
    return {"PATH": PATH, "LANG": "C.UTF-8"} | {f"ELF_{name.upper()}": value for name, value in about.items()}
