"""One-shot input: named files, globs, `.gz`, `.zst` and standard input, each line of each file once."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from elf.agent.files import names
from elf.agent.files.blocks import BLOCK_BYTES, LINE_MAX, Block, Cutter, FileKey, fingerprint
from elf.agent.files.content import Content, exactly, open_content, reading
from elf.agent.files.divided import ends_open, same_log, takes
from elf.errors import SourceError, UsageError

Input = Path | Literal["-"]
Lost = Callable[[str], None]
"""Called with input that is missing from the result: which, and why."""
HEAD_BYTES = 1024
HEAD_LINE_BYTES = 64 << 10
"""A first line that is longer is not looked at."""
COMPARE_BYTES = 256 * 1024
_ARCHIVES = (
    (0, b"PK\x03\x04", "a zip archive", "unzip -p"),
    (257, b"ustar", "a tar archive", "tar -xOf"),
    (0, b"LPKSHHRH", "a journal of systemd", "journalctl -o short-iso --file"),
)
"""What is no log, although lines of logs may lie in it: where it has which first bytes, its name, and what prints its lines."""


def expand(arguments: Sequence[str], lost: Lost | None = None) -> list[Input]:
    """The files that the arguments name, in order; quoted globs are expanded here, sorted by name.

    Raises UsageError for a file that is missing or cannot be read, a directory, or a glob without a match. With `lost`, which is
    called with each of them, only if no file is left.
    """
    inputs: list[Input] = []
    refused: list[UsageError] = []
    for argument in arguments:
        try:
            for path in _named(argument):
                try:
                    _must_be_readable(path)
                    inputs += [] if path == "-" and "-" in inputs else [path]
                except UsageError as error:
                    refused.append(error)
        except UsageError as error:
            refused.append(error)
    if refused and (lost is None or not inputs):
        raise refused[0]
    for refusal in refused:
        assert lost is not None
        lost(f"{refusal}; it is left out")
    return inputs


def _named(argument: str) -> Sequence[Input]:
    if argument == "-":
        return ["-"]
    if os.path.lexists(argument) or not glob.has_magic(argument):
        return [Path(argument)]
    found = [Path(name) for name in sorted(glob.glob(argument, recursive=True)) if not os.path.isdir(name)]
    if not found:
        raise UsageError(f"{argument}: no file matches; check the pattern and the folder's permissions")
    return found


def _must_be_readable(path: Input) -> None:
    if path == "-":
        return
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UsageError(f"{path}: is a directory; name the files in it, for example '{path}/*.log'")
        if stat.S_ISREG(mode):
            with reading(os.fspath(path)) as content:
                _must_be_no_archive(path, exactly(content, memoryview(bytearray(HEAD_BYTES))))
        elif not os.access(path, os.R_OK):
            raise PermissionError
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; check the name, or quote a glob for elf to expand") from None
    except PermissionError:
        raise UsageError(f"{path}: permission denied; run as a user who may read it") from None
    except SourceError as error:
        raise UsageError(f"{path}: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); name another file") from None


def _must_be_no_archive(path: Path, head: bytes) -> None:
    for place, magic, what, prints in _ARCHIVES:
        if head.startswith(magic, place):
            import shlex

            raise UsageError(
                f"{path}: is {what}, not a log; pipe its lines: {prints} {shlex.quote(str(path))} | elf run QUERY -"
            )


def total_bytes(paths: Sequence[Input]) -> int | None:
    """Bytes on disk of all files together, or None if unknown (standard input, a pipe)."""
    total = 0
    for path in paths:
        if path == "-" or not path.is_file():
            return None
        total += path.stat().st_size
    return total


def distinct(paths: Sequence[Input], notices: Callable[[str], None]) -> list[Input]:
    """`paths` without files that would be counted twice: one file under two names, or a compressed copy of another one.

    O(files), plus reading both of a pair whose first 1 KiB is equal and of which one is compressed.
    """
    kept: list[Input] = []
    seen: dict[tuple[int, int], Path] = {}
    heads: dict[bytes, list[tuple[Path, bool]]] = {}
    for path in paths:
        if path == "-" or not path.is_file():
            kept.append(path)
            continue
        status = path.stat()
        twin = seen.setdefault((status.st_dev, status.st_ino), path)
        if twin is not path:
            notices(f"{path}: the same file as {twin}; counted once")
            continue
        with reading(os.fspath(path)) as content:
            head, compressed = exactly(content, memoryview(bytearray(HEAD_BYTES))), content.compressed
        rivals = heads.setdefault(head, [])
        twin_of = next(
            (rival for rival, packed in rivals if (packed or compressed) and _equal(path, rival)), None
        )
        if head and twin_of is not None:
            notices(f"{path}: the same content as {twin_of}; counted once")
            continue
        rivals.append((path, compressed))
        kept.append(path)
    return kept


def _equal(path: Path, other: Path) -> bool:
    """Whether two files have the same uncompressed content; stops at the first difference. False if one of them is damaged."""
    view = memoryview(bytearray(COMPARE_BYTES))
    with suppress(SourceError), reading(os.fspath(path)) as one, reading(os.fspath(other)) as two:
        while (data := _whole(one, view)) == _whole(two, view):
            if not data:
                return True
    return False


def _whole(content: Content, view: memoryview) -> bytes:
    """As `exactly`. Raises SourceError where the content is damaged."""
    count = 0
    while count < len(view) and (got := content.readinto(view[count:])):
        count += got
    return bytes(view[:count])


def read(
    paths: Sequence[Input],
    *,
    block_bytes: int = BLOCK_BYTES,
    line_max: int = LINE_MAX,
    notices: Callable[[str], None],
    lost: Lost | None = None,
) -> Iterator[Block]:
    """Blocks of whole lines of each file in turn; each file ends with a block that is `last` (perhaps empty).

    Reads a truncated or corrupt file as far as possible, and calls `lost`, or without it `notices`; likewise of a file that can
    no longer be opened. Of rotated files in the order of their rotation a line that begins in one and ends in the next is read
    with the next.
    """
    lost = lost or notices
    cutter = Cutter(block_bytes, line_max)
    files = _oldest_first(distinct(paths, notices))
    carry = b""
    for generation, (path, heir) in enumerate(zip(files, [*files[1:], None], strict=True), start=1):
        name = "-" if path == "-" else os.fspath(path)
        try:
            content = open_content(os.dup(0) if path == "-" else name)
        except (OSError, SourceError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            lost(f"{name}: {why}; it is left out, although it was there when the run began")
            carry = b""  # the beginning of its first line
            continue
        try:
            carry = yield from read_file(
                content, cutter, generation, name, lost, carry, _next_name(name, heir)
            )
        finally:
            os.close(content.descriptor)


def _oldest_first(files: list[Input]) -> list[Input]:
    """The files; those of one log that a container's runtime writes, by the age that their names show, since a line may go on in
    the next. O(n log n)."""
    ordered = list(files)
    if len(files) < 2:
        return ordered
    places: dict[tuple[str, str], list[int]] = {}
    for at, path in enumerate(files):
        if path != "-" and path.is_file():
            name = os.fspath(path)
            places.setdefault((os.path.dirname(name), names.family(name)), []).append(at)
    for several in places.values():
        if len(several) > 1 and takes(os.fspath(files[several[0]]), b"", HEAD_LINE_BYTES):
            mine = sorted((files[at] for at in several), key=lambda path: names.age(os.fspath(path)))
            for at, path in zip(several, mine, strict=True):
                ordered[at] = path
    return ordered


def _next_name(name: str, heir: Input | None) -> str:
    """The name of the file in which the log of `name` goes on, if that is the next one; else ""."""
    return os.fspath(heir) if heir is not None and heir != "-" and same_log(name, os.fspath(heir)) else ""


def read_file(
    content: Content,
    cutter: Cutter,
    generation: int,
    name: str,
    lost: Lost,
    carry: bytes = b"",
    heir: str = "",
) -> Generator[Block, None, bytes]:
    """The blocks of one file. Returns the parts at its end that belong to the first line of `heir`."""
    cutter.clear()
    cutter.put(carry)
    key = FileKey(generation, 0)
    start = 0
    more = True
    while more:
        more = fill(content, cutter, name, lost)
        data = cutter.cut() if more else cutter.rest()
        while len(data) or not more:
            too_long, skipped = cutter.take_skipped()
            own = len(data) - (0 if start else len(carry))
            if start == 0 and own:
                key = FileKey(generation, fingerprint(bytes(data[len(carry) : len(carry) + 256])))
            end = start + skipped + own
            given = b""
            if not more and heir and ends_open(data) and takes(heir, data, cutter.line_max):
                given, data = bytes(data), data[:0]
            yield Block(key, name, start, end, data, too_long, start == 0, not more, content.disk_bytes)
            start = end
            if not more:
                return given
            data = cutter.cut()
    return b""


def fill(content: Content, cutter: Cutter, name: str, lost: Lost) -> bool:
    """Read more; False at the end of the file, or if it cannot be read further."""
    try:
        if cutter.fill(content.readinto):
            return True
        if content.truncated():
            lost(f"{name}: the compressed data ends early (truncated); read up to there")
    except SourceError as error:
        lost(f"{name}: {error}; read up to there")
    except OSError as error:
        lost(f"{name}: {error.strerror} at byte {content.disk_bytes}; read up to there")
    return False
