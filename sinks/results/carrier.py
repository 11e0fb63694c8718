"""Final windows as rows of Parquet files that hold the newest revision of each, and nothing else.

    deliver, deliver, … -> gathered -> (thread) a process: `writer` -> on the disk -> each returns

The process lives for some tenths of a second, so the agent never holds pyarrow. Windows that come while it runs are its next
request.
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

import msgspec

from elf.errors import UsageError
from elf.sinks.delivery.contract import DeclinedError, DeliveryError, WindowMessage
from elf.sinks.results.frames import ResultAnswer, ResultRequest, ResultWindow

GATHER_S = 0.25
"""The writer's process starts some three times a second at most."""
WRITER = (sys.executable, "-P", "-m", "elf.sinks.results.writer")
PROBLEM_CHARS = 200


class ResultsCarrier:
    """Writes files below a folder. See `Carrier`. Raises UsageError without pyarrow."""

    at_once = 64

    def __init__(self, folder: Path) -> None:
        if find_spec("pyarrow") is None:
            raise UsageError("results as Parquet need pyarrow: pip install 'elf-mesh[lake]'")
        self._folder = folder
        self._waiting: list[tuple[ResultWindow, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._process = Lock()  # also while a thread ends whose `deliver` was cancelled

    async def connect(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(self._folder))
        except OSError as error:
            raise DeliveryError(f"{error.filename}: {error.strerror or error}") from None

    async def deliver(self, message: WindowMessage) -> None:
        window = ResultWindow(
            message.job,
            message.version,
            message.start_us,
            message.status,
            message.revision,
            message.columns,
            message.body,
        )
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((window, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await written

    async def gone(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """A process may still write: the next one waits for it."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        self._waiting, self._writing = [], None

    async def _write(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(GATHER_S)
                batch, self._waiting = self._waiting, []
                windows = [window for window, _ in batch]
                answer = await asyncio.get_running_loop().run_in_executor(None, self._run, windows)
                for at, (_, written) in enumerate(batch):
                    _settle(written, at, answer)
        finally:
            self._writing = None

    def _run(self, windows: Sequence[ResultWindow]) -> ResultAnswer:
        request = msgspec.msgpack.encode(ResultRequest(str(self._folder.absolute()), list(windows)))
        # One thread and the plain allocator: the process lives beside a web server.
        environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
        try:
            with self._process:
                ended = subprocess.run(
                    WRITER,
                    input=request,
                    stdout=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,
                    check=False,
                )
        except OSError as error:
            return ResultAnswer([], {}, f"the process that writes results cannot be started: {error}")
        try:
            return msgspec.msgpack.decode(ended.stdout, type=ResultAnswer)
        except msgspec.MsgspecError:
            how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
            return ResultAnswer([], {}, f"the process that writes results died ({how})")


def _settle(written: asyncio.Future[None], at: int, answer: ResultAnswer) -> None:
    """Let one `deliver` return or raise, unless it was cancelled."""
    if written.done():
        return
    if at in answer.written:
        written.set_result(None)
    elif at in answer.declined:
        written.set_exception(DeclinedError(answer.declined[at]))
    else:
        written.set_exception(DeliveryError(answer.failed[:PROBLEM_CHARS] or "it was not written"))
