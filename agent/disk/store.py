"""A mesh agent's disk: writes the records of all cores to one journal in `state_dir`, and reports them durable in order.

    Write -> record -> queue -> (thread) journal, fdatasync -> (loop) done, in the order of the writes

Records of a job's seat arrive as bytes, so that an encoding error is that job's failure, and not the store's.

All keys share one file: writes of different keys become durable in order, with one sync for all that arrived during the last one.
A torn last frame is cut off at the next start (`elf.agent.disk.journal`), which reads the file twice: once for the offsets of the
records that count (`elf.jobmaster.log.stored`), then each record when it is needed, so that only one is in memory. Failed writes
are retried; until they succeed nothing is reported as done, so nothing that depends on them leaves the node. Replaced records are
dropped by rewriting the file when it has grown enough.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from elf.agent.disk.journal import Journal, Reader
from elf.agent.disk.state_dir import JOURNAL
from elf.errors import StateError
from elf.jobmaster.log.record_codec import RecordEncoder, head_of
from elf.jobmaster.log.stored import Needed, Stored
from elf.srt.messages.effects import Write

GROWTH_BYTES = 4 << 20
"""The journal is rewritten when it has grown by this much and to more than twice the needed size at the last rewrite, so that
the time to read it at a start is in proportion to its content."""
FRAME_BYTES = 1 << 20
"""Bytes that are written and synced at a time."""
SMALL_BYTES = 64 << 10
"""So much is written without the thread, where nothing is synced: it takes less time than to wake the thread and the loop."""
RETRY_S = 1.0

Done = Callable[[], None]


class Store:
    """Made with `open`. `write` and `close` are called on the loop; the journal belongs to the store's own thread, but for
    short writes that are not synced: no other is under way then."""

    def __init__(self, journal: Journal, notices: Callable[[str], None], *, is_lasting: bool = True) -> None:
        self._journal, self._notices, self._is_lasting = journal, notices, is_lasting
        self.encoder = RecordEncoder()
        """For callers that encode their records before `write`, on the loop."""
        self._queue: deque[tuple[bytes, Done]] = deque()
        self._committing: list[Done] = []
        self._fresh: deque[bytes] = deque()  # in the thread: not appended to the journal yet
        self._thread = ThreadPoolExecutor(1, "elf-disk")
        # Unknown until the first rewrite: a long journal is rewritten when it first grows.
        self._needed_bytes = 0
        self._refusal = ""
        self._is_closed = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.writes = self.syncs = 0

    @classmethod
    def open(
        cls, folder: Path, notices: Callable[[str], None], *, is_lasting: bool = True
    ) -> tuple[Store, Stored]:
        """Open the store in that folder, and lock it against other processes. Returns it with its records, which the caller reads
        at the start and closes. O(its size); memory: a frame, and the offsets of records. is_lasting: see `Journal.scan`.

        Raises StateError: in use (with the pid), damaged, of a newer version, not writable.
        """
        needed = Needed()
        journal = Journal.scan(folder / JOURNAL, needed.note, is_lasting=is_lasting)
        reader = journal.reader()
        return cls(journal, notices, is_lasting=is_lasting), Stored(reader.read, needed, reader.close)

    def begin(self, write: Write) -> None:
        """Write a record and wait for it, before the loop runs. Raises StateError if that fails."""
        self._journal.append(self.encoder.encode(write))
        try:
            self._journal.sync()
        except OSError as error:
            raise StateError(
                f"{self._journal.path}: {error.strerror}; an agent must be able to write its state"
            ) from error

    @property
    def is_refused(self) -> bool:
        """Whether the last write failed."""
        return bool(self._refusal)

    @property
    def queued_bytes(self) -> int:
        """Bytes of records that are encoded and not durable, roughly."""
        return self._journal.pending_bytes

    @property
    def size(self) -> int:
        """Bytes of the journal."""
        return self._journal.size

    def write(self, write: Write, done: Done) -> None:
        """Make a record durable; `done` is called on the loop once it is, after those of all earlier writes."""
        self._queue.append((write.encoded or self.encoder.encode(write), done))
        if self._is_idle.is_set():
            self._is_idle.clear()
            self._next()

    def _next(self) -> None:
        """Commit all waiting writes. Records whose write failed are still in the journal's memory: they are only synced again."""
        self._committing += [done for _, done in self._queue]
        fresh = [record for record, _ in self._queue]
        self._queue.clear()
        if self._is_quick(fresh):
            asyncio.get_running_loop().call_soon(self._write_now, fresh)
            return
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._commit, fresh)
        future.add_done_callback(self._committed)

    def _is_quick(self, fresh: list[bytes]) -> bool:
        return not (self._is_lasting or self._has_grown) and sum(map(len, fresh)) <= SMALL_BYTES

    @property
    def _has_grown(self) -> bool:
        return self._journal.size > 2 * self._needed_bytes + GROWTH_BYTES

    def _write_now(self, fresh: list[bytes]) -> None:
        if not self._is_closed:
            self._is_done(self._commit(fresh))

    def _commit(self, fresh: list[bytes]) -> str:
        """In the thread: append, sync, perhaps rewrite. Returns the disk's error, or ""."""
        self._fresh += fresh
        try:
            self._sync()
        except OSError as error:
            return error.strerror or str(error)
        if self._has_grown:
            self._compact()
        return ""

    def _sync(self) -> None:
        """Sync in small frames, so that readers need little memory. Raises OSError."""
        while True:
            while self._fresh and self._journal.pending_bytes < FRAME_BYTES:
                self._journal.append(self._fresh.popleft())
            self._journal.sync()
            if not self._fresh:
                return

    def _compact(self) -> None:
        try:
            needed = Needed()
            self._journal.visit(needed.note)
            reader = self._journal.reader()
            try:
                self._journal.rewrite(reader.read(*place) for place in needed.places())
            finally:
                reader.close()
        except OSError:
            return  # the old file stays; the next commit retries
        self._needed_bytes = self._journal.size

    def _committed(self, future: asyncio.Future[str]) -> None:
        if not (self._is_closed or future.cancelled()):
            self._is_done(future.result())

    def _is_done(self, refusal: str) -> None:
        self._report(refusal)
        if refusal:
            asyncio.get_running_loop().call_later(RETRY_S, self._continue)
            return
        self.syncs += 1
        done, self._committing = self._committing, []
        self.writes += len(done)
        for each in done:
            each()
        self._continue()

    def _continue(self) -> None:
        if self._is_closed:
            return
        if self._queue or self._committing:
            self._next()
        else:
            self._is_idle.set()

    def _report(self, refusal: str) -> None:
        if refusal and refusal != self._refusal:
            self._notices(
                f"{self._journal.path}: {refusal}; everything that depends on this write waits, and the agent retries it "
                f"every {RETRY_S:.0f} s: free space or repair the disk"
            )
        elif self._refusal and not refusal:
            self._notices(f"{self._journal.path}: works again")
        self._refusal = refusal

    async def recall(self, job: bytes) -> Stored:
        """The durable records of a job, which the caller closes. A thread reads them while other writes continue. Raises OSError,
        StateError. O(journal)."""
        return await asyncio.get_running_loop().run_in_executor(None, records_of, self._journal.path, job)

    async def drain(self, timeout_s: float) -> None:
        """Wait until all writes so far are durable, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_idle.wait()

    def close(self) -> None:
        """Release the folder. Pending writes are lost, as in a crash: none was reported as durable. Idempotent."""
        self._is_closed = True
        self._thread.shutdown(wait=True)
        self._journal.close()


def records_of(path: Path, job: bytes) -> Stored:
    """A job's records in a journal that may grow or be replaced meanwhile; the caller closes them. Raises OSError, StateError.
    O(its size); memory: as `Store.open`."""
    needed, reader = Needed(), Reader.open(path)

    def note(at: int, data: memoryview) -> None:
        if head_of(data)[0][1] == job:
            needed.note(at, data)

    try:
        reader.visit(path, note)
    except BaseException:
        reader.close()
        raise
    return Stored(reader.read, needed, reader.close)
