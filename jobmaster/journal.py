"""The journal: the one file in `state_dir` that says how far an agent has come. Records are opaque bytes.

A record counts from the moment `sync` returned. What one `sync` writes is one frame, and the file is only ever appended to, so a
crash at any byte leaves whole frames and perhaps a piece of one more, which is cut off at the next start. Damage anywhere else
is never guessed at: it is an error that says where.

    file    = "ELFJRNL" version(1) frame*
    frame   = "\\xe1frm" length(4) check of length(4) check of payload(8) payload
    payload = (length(4) record)*

Little-endian. The length has a check of its own, so that a damaged one is not taken for a torn tail. Checks are BLAKE2b
keyed with the frame's offset, so that a frame never passes for one at another place.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from elf.errors import StateError

MAGIC = b"ELFJRNL"
VERSION = 2
"""What it holds is laid out as in version 1, whose records said all that this one's may leave out: 1 is read, and becomes 2."""
FILE_HEAD = MAGIC + bytes([VERSION])
READABLE_HEADS = (FILE_HEAD, MAGIC + b"\x01")
FRAME_MAGIC = b"\xe1frm"
FRAME_MAX = 1 << 30
BATCH_BYTES = 1 << 20
_FRAME = struct.Struct("<4sI4s8s")
_LENGTH = struct.Struct("<I")


def _check(payload: bytes | memoryview, offset: int, size: int) -> bytes:
    return hashlib.blake2b(payload, digest_size=size, key=offset.to_bytes(8, "little")).digest()


def frame_of(records: Sequence[bytes], offset: int) -> bytes:
    """The frame that holds `records`, to stand at `offset`. Raises StateError over `FRAME_MAX`."""
    payload = b"".join(_LENGTH.pack(len(record)) + record for record in records)
    if len(payload) > FRAME_MAX:
        raise StateError(
            f"a journal frame of {len(payload)} bytes is over the bound of {FRAME_MAX}; sync more often"
        )
    length_check = _check(_LENGTH.pack(len(payload)), offset, 4)
    return _FRAME.pack(FRAME_MAGIC, len(payload), length_check, _check(payload, offset, 8)) + payload


def _records(payload: memoryview) -> list[bytes]:
    records: list[bytes] = []
    at = 0
    while at < len(payload):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(payload, at)[0]
        records.append(bytes(payload[start:at]))
    return records


class Journal:
    """An append-only file of records, held by one process. Make it with `open`. Not thread-safe."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock, self._file = path, lock, -1
        self._durable = 0  # bytes of the file that are whole frames, on disk
        self._pending: list[bytes] = []
        self._renamed = False  # by `rewrite`, and the folder not synced since

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> tuple[Journal, list[bytes]]:
        """Open or create it, and return it with all its whole records. O(its size).

        Locks the folder (a file `lock` in it) until `close` or the end of the process. A torn tail is cut off. Raises
        StateError: another process holds the folder (with its pid), damage in the middle, a newer version, no permission.
        """
        where = Path(path)
        advice = "give the agent a state_dir that it can write to"
        try:
            where.parent.mkdir(parents=True, exist_ok=True)
            journal = cls(where, _lock_folder(where.parent))
        except OSError as error:
            raise StateError(f"{where.parent}: {error.strerror}; {advice}") from error
        try:
            return journal, journal._load()
        except OSError as error:
            journal.close()
            raise StateError(f"{where}: {error.strerror}; {advice}") from error
        except BaseException:
            journal.close()
            raise

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._durable

    def records(self) -> list[bytes]:
        """All records that are in the file. O(its size)."""
        return whole_frames(memoryview(self.path.read_bytes()[: self._durable]), self.path)[0]

    @property
    def pending_bytes(self) -> int:
        """Of records that were appended since the last `sync`."""
        return sum(map(len, self._pending))

    def append(self, record: bytes) -> None:
        """Take a record; it counts once `sync` returns. O(1)."""
        self._pending.append(record)

    def sync(self) -> None:
        """Write and sync all records appended since the last time.

        Raises OSError if that fails (a full disk): then the file is as it was, the records are kept, and a later call tries
        again.
        """
        self._sync_name()
        if not self._pending:
            return
        frame = frame_of(self._pending, self._durable)
        try:
            _write(self._file, frame, self._durable)
            os.fdatasync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._durable)
            raise
        self._durable += len(frame)
        self._pending = []

    def rewrite(self, records: Iterable[bytes]) -> None:
        """Replace everything, also what was appended and not synced, by `records`, at once: a crash leaves old or new.

        Raises OSError; then everything is as it was. Once the new file has taken the old one's place nothing is raised any
        more, since the caller must not give these records again: a folder that cannot be synced is left to `sync`.
        """
        new = os.open(self._new_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            size = _write(new, FILE_HEAD, 0)
            for frame in _batches(records):
                size += _write(new, frame_of(frame, size), size)
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
        if self._renamed:
            _sync_folder(self.path.parent)
            self._renamed = False

    def close(self) -> None:
        """Give the file and the lock back; records that were not synced are gone. Idempotent."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    @property
    def _new_path(self) -> Path:
        return self.path.with_name(self.path.name + ".new")

    def _load(self) -> list[bytes]:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._new_path.unlink(missing_ok=True)  # left by a crash during `rewrite`
        content = self.path.read_bytes()
        head = content[: len(FILE_HEAD)]
        if head in READABLE_HEADS:
            records, self._durable = whole_frames(memoryview(content), self.path)
            os.ftruncate(self._file, self._durable)
            _write(self._file, FILE_HEAD, 0)  # changes one byte at most
            os.fsync(self._file)
            return records
        self._refuse_other(head)
        os.ftruncate(self._file, 0)
        _write(self._file, FILE_HEAD, 0)
        os.fsync(self._file)
        _sync_folder(self.path.parent)
        self._durable = len(FILE_HEAD)
        return []

    def _refuse_other(self, head: bytes) -> None:
        """Only a piece of our own head may be replaced: a crash while the file was made."""
        if len(head) == len(FILE_HEAD) and head.startswith(MAGIC):
            raise StateError(
                f"{self.path}: journal version {head[-1]} of another elf; upgrade, or use another state_dir"
            )
        if not FILE_HEAD.startswith(head) and any(head):
            raise StateError(f"{self.path}: not a journal of elf; move it away, or use another state_dir")


def whole_frames(content: memoryview, where: object) -> tuple[list[bytes], int]:
    """All records of a file's whole frames, and where those end: what is behind is a torn tail.

    Raises StateError, which names the file as `where`, if another frame begins behind a broken one.
    """
    records: list[bytes] = []
    at = len(FILE_HEAD)
    while (payload := _frame_at(content, at)) is not None:
        records += _records(payload)
        at += _FRAME.size + len(payload)
    if _frame_behind(content, at):
        raise StateError(
            f"{where}: damaged at byte {at} of {len(content)}; restore it from a backup, or move it away to start "
            "anew from the logs"
        )
    return records, at


def _frame_at(content: memoryview, at: int) -> memoryview | None:
    """The payload of the whole frame at `at`, or None."""
    length = _length_at(content, at)
    if length is None or at + _FRAME.size + length > len(content):
        return None
    payload = content[at + _FRAME.size : at + _FRAME.size + length]
    return payload if _check(payload, at, 8) == _FRAME.unpack_from(content, at)[3] else None


def _length_at(content: memoryview, at: int) -> int | None:
    """The length of the payload of the frame that begins at `at`, if one does."""
    if len(content) - at < _FRAME.size:
        return None
    magic, length, length_check, _ = _FRAME.unpack_from(content, at)
    if magic != FRAME_MAGIC or _check(_LENGTH.pack(length), at, 4) != length_check:
        return None
    return int(length)


def _frame_behind(content: memoryview, at: int) -> bool:
    """Whether a frame begins behind the broken one at `at`: then that is damage, not a torn tail."""
    whole = bytes(content[at:])
    found = whole.find(FRAME_MAGIC, 1)
    while found >= 0:
        if _length_at(content, at + found) is not None:
            return True
        found = whole.find(FRAME_MAGIC, found + 1)
    return False


def _batches(records: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Records in lists of about `BATCH_BYTES`, so that a rewrite of many holds few in memory."""
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


def _write(descriptor: int, content: bytes, at: int) -> int:
    """Write all of `content` at the offset `at`; how many bytes that are."""
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
    """Hold `folder` for this process. Raises StateError with the holder's pid, OSError."""
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
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
