"""The journal: the file in `state_dir` that holds an agent's progress. Records are opaque bytes.

A record is durable once `sync` has returned. One `sync` writes one frame, and the file is only ever appended to, so a crash at
any byte leaves whole frames and perhaps a piece of one more, which is cut off at the next start. Damage elsewhere is not
repaired: it is an error that names the place.

    file    = "ELFJRNL" version(1) frame*
    frame   = "\\xe1frm" length(4) check of length(4) check of payload(8) payload
    payload = (length(4) record)*

Little-endian. The length has a check of its own, so that a damaged length is not mistaken for a torn tail. Checks are
BLAKE2b keyed with the frame's offset, so that a frame is not valid at another offset.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from elf.errors import StateError

MAGIC = b"ELFJRNL"
VERSION = 2
FILE_HEAD = MAGIC + bytes([VERSION])
FRAME_MAGIC = b"\xe1frm"
FRAME_MAX = 1 << 30
BATCH_BYTES = 1 << 20
_FRAME = struct.Struct("<4sI4s8s")
_LENGTH = struct.Struct("<I")


def _check(payload: bytes | memoryview, offset: int, size: int) -> bytes:
    return hashlib.blake2b(payload, digest_size=size, key=offset.to_bytes(8, "little")).digest()


def frame_of(records: Sequence[bytes], offset: int) -> bytes:
    """The frame of `records` at `offset`. Raises StateError over `FRAME_MAX`."""
    payload = b"".join(_LENGTH.pack(len(record)) + record for record in records)
    if len(payload) > FRAME_MAX:
        raise StateError(
            f"a journal frame of {len(payload)} bytes is over the bound of {FRAME_MAX}; sync more often"
        )
    length_check = _check(_LENGTH.pack(len(payload)), offset, 4)
    return _FRAME.pack(FRAME_MAGIC, len(payload), length_check, _check(payload, offset, 8)) + payload


Visit = Callable[[int, memoryview], None]
"""Called with each record: the offset of its bytes in the file, and the bytes."""
Read = Callable[[int, int], bytes | memoryview]
"""(offset, length) -> the bytes of the file from that offset on; fewer at its end."""


def _visit_records(payload: memoryview, offset: int, visit: Visit) -> None:
    at = 0
    while at < len(payload):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(payload, at)[0]
        visit(offset + start, payload[start:at])


class Journal:
    """An append-only file of records, held by one process. Make it with `open`. Not thread-safe."""

    def __init__(self, path: Path, lock: int, *, is_lasting: bool = True) -> None:
        self.path, self._lock, self._file, self._is_lasting = path, lock, -1, is_lasting
        self._durable = 0  # bytes of whole frames on disk
        self._pending: list[bytes] = []
        self._renamed = False  # `rewrite` replaced the file, and the folder is not synced since

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> tuple[Journal, list[bytes]]:
        """As `scan`; also returns all records. O(its size)."""
        records: list[bytes] = []
        journal = cls.scan(path, lambda at, record: records.append(bytes(record)))
        return journal, records

    @classmethod
    def scan(cls, path: str | os.PathLike[str], visit: Visit, *, is_lasting: bool = True) -> Journal:
        """Open or create the journal, and call `visit` with each record. O(its size); memory: a frame. is_lasting: whether what
        it holds shall survive the host; else nothing waits for the disk.

        Locks the folder (a file `lock` in it) until `close` or the end of the process. A torn tail is cut off. Raises
        StateError: another process holds the folder (with its pid), damage in the middle, another version, no permission.
        """
        where = Path(path)
        advice = "give the agent a state_dir that it can write to"
        try:
            where.parent.mkdir(parents=True, exist_ok=True)
            journal = cls(where, _lock_folder(where.parent), is_lasting=is_lasting)
        except OSError as error:
            raise StateError(f"{where.parent}: {error.strerror}; {advice}") from error
        try:
            journal._load(visit)
        except OSError as error:
            journal.close()
            raise StateError(f"{where}: {error.strerror}; {advice}") from error
        except BaseException:
            journal.close()
            raise
        return journal

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self._durable

    def records(self) -> list[bytes]:
        """All records in the file. O(its size)."""
        records: list[bytes] = []
        self.visit(lambda at, record: records.append(bytes(record)))
        return records

    def visit(self, visit: Visit) -> None:
        """Call `visit` with each record in the file. O(its size); memory: a frame."""
        walk(self._read, self._durable, self.path, visit)

    def reader(self) -> Reader:
        """A reader of the present file, which it also reads after a later rewrite. Raises OSError."""
        return Reader(os.dup(self._file))

    def _read(self, at: int, length: int) -> bytes:
        return _read_whole(self._file, at, length)

    @property
    def pending_bytes(self) -> int:
        """Bytes of records appended since the last `sync`."""
        return sum(map(len, self._pending))

    def append(self, record: bytes) -> None:
        """Append a record; it is durable once `sync` has returned. O(1)."""
        self._pending.append(record)

    def sync(self) -> None:
        """Write and sync all records appended since the last time.

        Raises OSError if that fails (a full disk): then the file is unchanged, the records are kept, and a later call retries.
        """
        self._sync_name()
        if not self._pending:
            return
        frame = frame_of(self._pending, self._durable)
        try:
            _write(self._file, frame, self._durable)
            if self._is_lasting:
                os.fdatasync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._durable)
            raise
        self._durable += len(frame)
        self._pending = []

    def rewrite(self, records: Iterable[bytes]) -> None:
        """Replace all records, also those not synced yet, by `records`, atomically: a crash leaves the old or the new file.

        Raises OSError; then nothing has changed. A failure to sync the folder after the new file has replaced the old one is
        not raised, since the caller must not pass these records again; the next `sync` retries it.
        """
        new = os.open(self._new_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            size = _write(new, FILE_HEAD, 0)
            for frame in _batches(records):
                size += _write(new, frame_of(frame, size), size)
            if self._is_lasting:
                os.fsync(new)
            os.replace(self._new_path, self.path)
        except BaseException:
            os.close(new)
            self._new_path.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._file, self._durable, self._pending, self._renamed = new, size, [], True
        with contextlib.suppress(OSError):
            self._sync_name()

    def _sync_name(self) -> None:
        if self._renamed and self._is_lasting:
            _sync_folder(self.path.parent)
            self._renamed = False

    def close(self) -> None:
        """Release the file and the lock; records that were not synced are lost. Idempotent."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    @property
    def _new_path(self) -> Path:
        return self.path.with_name(self.path.name + ".new")

    def _load(self, visit: Visit) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._new_path.unlink(missing_ok=True)  # left by a crash during `rewrite`
        head = os.pread(self._file, len(FILE_HEAD), 0)
        if head == FILE_HEAD:
            self._durable = walk(self._read, os.fstat(self._file).st_size, self.path, visit)
            os.ftruncate(self._file, self._durable)
            os.fsync(self._file)
            return
        self._refuse_other(head)
        os.ftruncate(self._file, 0)
        _write(self._file, FILE_HEAD, 0)
        if self._is_lasting:
            os.fsync(self._file)
            _sync_folder(self.path.parent)
        self._durable = len(FILE_HEAD)

    def _refuse_other(self, head: bytes) -> None:
        """Raise StateError for another file. Zeros and a piece of our own header may be replaced: a crash left them while the
        file was created."""
        if len(head) == len(FILE_HEAD) and head.startswith(MAGIC):
            raise StateError(
                f"{self.path}: journal version {head[-1]} is of another version of elf; run that version, or use another "
                "state_dir"
            )
        if not FILE_HEAD.startswith(head) and any(head):
            raise StateError(f"{self.path}: not a journal of elf; move it away, or use another state_dir")


class Reader:
    """Reads records of a journal's file by their offsets."""

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def open(cls, path: Path) -> Reader:
        """Open the journal's file. Raises OSError."""
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def visit(self, where: object, visit: Visit) -> None:
        """Call `visit` with each record of whole frames. Raises StateError, which names the file as `where`, OSError."""
        walk(self.read, os.fstat(self._file).st_size, where, visit)

    def read(self, at: int, length: int) -> bytes:
        """The bytes at that offset. Raises OSError."""
        return _read_whole(self._file, at, length)

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def walk(read: Read, size: int, where: object, visit: Visit) -> int:
    """Call `visit` with each record of the whole frames in the first `size` bytes; where those end: the rest is
    a torn tail. Raises StateError, which names the file as `where`, if another frame follows a broken one."""
    at = len(FILE_HEAD)
    while (payload := _frame_at(read, size, at)) is not None:
        _visit_records(payload, at + _FRAME.size, visit)
        at += _FRAME.size + len(payload)
    if _frame_behind(read, size, at):
        raise StateError(
            f"{where}: damaged at byte {at} of {size}; restore it from a backup, or move it away to start "
            "again from the logs"
        )
    return at


def _frame_at(read: Read, size: int, at: int) -> memoryview | None:
    """The payload of the whole frame at `at`, or None."""
    head = read(at, _FRAME.size)
    length = _length_of(head, at)
    if length is None or at + _FRAME.size + length > size:
        return None
    payload = memoryview(read(at + _FRAME.size, length))
    return payload if _check(payload, at, 8) == _FRAME.unpack(head)[3] else None


def _length_of(head: bytes | memoryview, at: int) -> int | None:
    """The length of the payload of the frame that begins with `head` at `at`, if one does."""
    if len(head) < _FRAME.size:
        return None
    magic, length, length_check, _ = _FRAME.unpack(head)
    if magic != FRAME_MAGIC or _check(_LENGTH.pack(length), at, 4) != length_check:
        return None
    return int(length)


def _frame_behind(read: Read, size: int, at: int) -> bool:
    """Whether a frame follows the broken one at `at`, which is then damaged, not a torn tail."""
    at += 1
    while at < size:
        chunk = bytes(read(at, min(BATCH_BYTES, size - at)))
        found = chunk.find(FRAME_MAGIC)
        while found >= 0:
            if _length_of(read(at + found, min(_FRAME.size, size - at - found)), at + found) is not None:
                return True
            found = chunk.find(FRAME_MAGIC, found + 1)
        at += max(1, len(chunk) - len(FRAME_MAGIC) + 1)  # a magic may lie across two chunks
    return False


def _batches(records: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Records in lists of about `BATCH_BYTES`, so that a rewrite holds few in memory."""
    batch: list[bytes] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read_whole(descriptor: int, at: int, length: int) -> bytes:
    """At most `length` bytes from the offset `at` on; fewer at the end of the file."""
    content = os.pread(descriptor, length, at)
    while len(content) < length and (more := os.pread(descriptor, length - len(content), at + len(content))):
        content += more
    return content


def _write(descriptor: int, content: bytes, at: int) -> int:
    """Write all of `content` at the offset `at`. Returns its length."""
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
    return len(content)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock_folder(folder: Path) -> int:
    """Lock `folder` for this process. Raises StateError with the holder's pid, OSError."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise StateError(
            f"{folder}: in use by another agent (pid {holder}); stop it, or use another state_dir"
        ) from None
    except OSError:
        os.close(lock)
        raise
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        os.close(lock)
        raise
    return lock
