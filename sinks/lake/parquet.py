"""The Parquet sink: final and revised pane states into the lake (`elf.sinks.lake.layout`), through a short-lived writer
process."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from elf.errors import ElfError, UsageError
from elf.jobmaster.windows.result import PaneState, Revision, StateValues, Window, encode_column, encode_part
from elf.sinks.lake.frames import (
    MERGING,
    Answer,
    CompactFrame,
    Done,
    Failed,
    PaneFrame,
    PartFrame,
    ReadFrame,
    Request,
    Schema,
    Withdrawn,
    read_frames,
    write_frame,
)
from elf.sinks.lake.layout import ledger


def cause(error: OSError) -> str:
    """The text of an OSError, with its path if it has one."""
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)


class WriterDied(ChildProcessError):  # noqa: N818 (the name of an event)
    """The writer's process ended before it had written everything: it was killed, or it failed."""


class WriterProcess:
    """One run of `elf.sinks.lake.writer`. Use it as a context: when the context ends, the process has ended.

    Raises OSError if something could not be made durable, with the writer's errno and path; without a path if the process could
    not be started, which the text then says; and `WriterDied` if the process ended without an answer.
    """

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-P", "-m", "elf.sinks.lake.writer", *arguments]
        # One thread and the plain allocator: this process lives for a tenth of a second beside a web server.
        environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            what = f"{error.filename}: " if error.filename else ""
            raise OSError(
                error.errno,
                f"the process that writes the lake cannot be started: {what}{error.strerror or error}",
            ) from error

    def __enter__(self) -> WriterProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()

    def write(self, frames: Iterable[bytes], acknowledge: Callable[[Done], None]) -> None:
        """Send the frames; `acknowledge` is called as panes become durable. Raises OSError after the last of them."""
        for answer in self._ask(frames):
            if isinstance(answer, Done):
                acknowledge(answer)

    def care_for(self, request: CompactFrame) -> int:
        """See the function `care_for`."""
        return sum(answer.removed for answer in self._ask([request]) if isinstance(answer, Done))

    def withdrawn(self, folders: Iterable[Path]) -> Iterator[tuple[Path, int, Revision]]:
        """The withdrawn panes of those day folders: folder, start, revision."""
        for answer in self._ask([ReadFrame(str(folder)) for folder in folders]):
            if isinstance(answer, Withdrawn):
                for start, epoch, node, n in answer.panes:
                    yield Path(answer.folder), start, (epoch, int(node, 16), n)

    def try_out(self) -> None:
        """Run the process with nothing to write. Raises OSError if it fails."""
        self.write((), lambda done: None)

    def _ask(self, frames: Iterable[Request | bytes]) -> Iterable[Done | Withdrawn]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._send(self._process.stdin, frames)
        for answer in read_frames(self._process.stdout, Answer):
            if isinstance(answer, Failed):
                raise OSError(answer.errno, answer.message, answer.path)
            yield answer
        if status := self._process.wait():
            how = f"signal {-status}" if status < 0 else f"exit code {status}"
            raise WriterDied(errno.EIO, f"the lake writer died ({how})")

    @staticmethod
    def _send(pipe: IO[bytes], frames: Iterable[Request | bytes]) -> None:
        """Send the frames. The writer answers only after the end of its input, so neither side can block the other."""
        with suppress(BrokenPipeError):  # the writer died; its exit status says how
            for frame in frames:
                write_frame(pipe, frame)
            pipe.close()


def compact(directory: Path | str, older_than: int) -> int:
    """Merge the small files of each hour that ended before `older_than` (microseconds UTC), and of each day that ended a day
    before it, keeping the highest revisions.

    Runs in a child process. Removes the old files only after the new one is durable, so a reader that lists the folder at
    any moment finds every pane. Returns the number of files removed. Raises OSError as `ParquetSink.flush` does.
    """
    return care_for(CompactFrame(str(directory), older_than))


def care_for(request: CompactFrame) -> int:
    """Let the old days of a lake expire, merge panes into longer ones, and compact the others, in a child process. Returns the
    number of files removed. Raises OSError."""
    with WriterProcess(*[MERGING] if request.levels else []) as writer:
        return writer.care_for(request)


class ParquetSink:
    """Final and revised pane states, durable in the lake under `directory` when `flush` returns.

    Of each pane of a version of a job only the highest revision is pending. Its values stay where they are, or are held encoded.
    After an OSError from `flush`, the panes that were not acknowledged stay pending for the next flush.
    """

    wants_open = False
    wants_state = True

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Raises ElfError if pyarrow is missing, UsageError if the folder cannot be made."""
        if find_spec("pyarrow") is None:
            raise ElfError(
                "the Parquet lake needs pyarrow, which is not installed; pip install 'elf-mesh[lake]'"
            )
        self.directory = Path(directory).absolute()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the lake's folder {self.directory}: {error.strerror}") from error
        self._schemas: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._pending: dict[tuple[int, int], FramedPane] = {}
        self._next = self._left_out = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes that the next flush will send, for the caller to limit."""
        return sum(pane.size for pane in self._pending.values())

    def next_epoch(self, job: str) -> int:
        """One more than the job's highest epoch in the lake; 0 if the lake has nothing of the job. O(files of the job)."""
        return 1 + max((revision[0] for revision in self.revisions(job).values()), default=-1)

    def revisions(self, job: str) -> dict[tuple[str, int], Revision]:
        """{(version, pane start): highest revision} of the job's panes in the lake. O(files of the job)."""
        return ledger(self.directory, job)

    @staticmethod
    def withdrawn(folders: Iterable[Path]) -> set[tuple[Path, int, Revision]]:
        """The withdrawn panes of those day folders: folder, start, revision. Raises OSError as `flush` does."""
        with WriterProcess() as writer:
            return set(writer.withdrawn(folders))

    def put(self, window: Window) -> None:
        """Does nothing: the lake stores states, not windows."""

    def put_state(self, state: PaneState) -> None:
        """Add a pane to those that are pending; open panes are ignored. O(its values)."""
        if state.status == "open":
            return
        schema = self._schema(state)
        key = (schema, state.start)
        if key in self._pending and self._pending[key].revision > state.revision:
            return
        self._next += 1
        self._pending[key] = FramedPane(state, schema, self._next)

    def _schema(self, state: PaneState) -> int:
        key = (state.job, state.version)
        if key not in self._schemas:
            from elf.version import version  # late: it reads the folders of installed packages

            number = len(self._schemas)
            frame = Schema(
                number, str(self.directory), *key, state.columns, state.plan, state.recipe, version()
            )
            self._schemas[key] = (number, msgspec.msgpack.encode(frame))
        return self._schemas[key][0]

    def take_left_out(self) -> str:
        """What to tell of panes that flushes left out since this was asked last; "" if there are none."""
        number, self._left_out = self._left_out, 0
        if not number:
            return ""
        what = "1 window was" if number == 1 else f"{number:,} windows were"
        return f"{what} left out of the lake {self.directory}: the windows there are longer, since old days were merged"

    def pending_jobs(self) -> list[str]:
        """The jobs with pending panes."""
        used = {schema for schema, _ in self._pending}
        return sorted({job for (job, _), (number, _) in self._schemas.items() if number in used})

    def discard(self, job: str) -> None:
        """Forget the job's pending panes."""
        for key in self._keys_of(job):
            del self._pending[key]

    def _keys_of(self, job: str | None) -> list[tuple[int, int]]:
        own = {number for (name, _), (number, _) in self._schemas.items() if job in (None, name)}
        return [key for key in self._pending if key[0] in own]

    def flush(self, job: str | None = None) -> None:
        """Make all pending panes, or those of one job, durable. Starts a process, if any are pending, and waits for its end."""
        pending = {key: self._pending[key] for key in self._keys_of(job)}
        if not pending:
            return
        keys = {pane.number: key for key, pane in pending.items()}

        def acknowledge(done: Done) -> None:
            self._left_out += done.left_out
            for number in done.panes:
                del self._pending[keys[number]]

        used = {schema for schema, _ in pending}
        schemas = [body for number, body in self._schemas.values() if number in used]
        panes = itertools.chain.from_iterable(pane.frames() for pane in pending.values())
        with WriterProcess() as writer:
            writer.write(itertools.chain(schemas, panes), acknowledge)

    def close(self) -> None:
        """Flush. The sink holds no file or process between flushes."""
        self.flush()


class FramedPane:
    """A pane as it is sent to the writer, with the digest of the content of its rows. head: its `PaneFrame`, encoded."""

    def __init__(self, state: PaneState, schema: int, number: int) -> None:
        self.revision, self.number = state.revision, number
        epoch, node, n = state.revision
        head = (state.start, state.end, state.status, epoch, f"{node:048x}", n)
        agents = (state.agents_reporting, state.agents_expected)
        self._values: StateValues | bytes
        if isinstance(state.values, StateValues):
            self._values, self.size, hashed = state.values, state.values.raw_bytes, state.values.digest
        else:
            columns = zip(state.columns, state.values, strict=True)
            hashed = self._values = encode_part(
                [encode_column(info.type, column) for info, column in columns]
            )
            self.size = len(hashed)
        content = msgspec.msgpack.encode((head, agents, state.lines.named)) + hashed
        digest = hashlib.blake2b(content, digest_size=8).hexdigest()
        frame = PaneFrame(number, schema, *head, *agents, lines=state.lines, digest=digest)
        self.head = msgspec.msgpack.encode(frame)

    def frames(self) -> Iterator[bytes]:
        yield self.head
        for part in self.parts():
            yield msgspec.msgpack.encode(part)

    def parts(self) -> Iterator[PartFrame]:
        parts = [(self._values, False)] if isinstance(self._values, bytes) else self._values.parts()
        return (PartFrame(msgspec.Raw(part), more) for part, more in parts)
