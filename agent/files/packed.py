"""Contents that the standard library unpacks (bzip2, xz), lz4 where its package is installed, and UTF-16 as UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any, Protocol

from elf.errors import SourceError

XZ_MEMORY_MAX = 128 << 20
"""`xz -9` takes 65 MiB to unpack; a file that claims more is refused."""


class Chunks(Protocol):
    """The bytes of a file on disk, in order. offset: how many came."""

    descriptor: int
    offset: int

    def chunk(self) -> bytes:
        """The next bytes, b"" at the end for now."""


class Packed:
    """Compressed streams in a row; zero bytes between two are padding."""

    compressed = True

    def __init__(self, raw: Chunks, kind: str) -> None:
        self.descriptor, self.raw, self.kind = raw.descriptor, raw, kind
        self.new, self.error = _DECOMPRESSORS[kind]()
        self.stream: Any = self.new()
        self.input = b""
        self.between = True  # no byte of the present stream was read

    @property
    def disk_bytes(self) -> int:
        return self.raw.offset

    def readinto(self, view: memoryview) -> int:
        while True:
            if self.stream.eof:
                self.input = self.stream.unused_data or b""
                self.stream, self.between = self.new(), True
            if self.stream.needs_input and not self.input:
                self.input = self.raw.chunk()
                if not self.input:
                    return 0
            if self.between:
                self.input = self.input.lstrip(b"\0")
                if not self.input:
                    continue
            try:
                data = self.stream.decompress(self.input, len(view))
            except self.error as error:
                raise SourceError(
                    f"corrupt {self.kind} data before byte {self.raw.offset} ({error})"
                ) from error
            self.input, self.between = b"", False
            if data:
                view[: len(data)] = data
                return len(data)

    def truncated(self) -> bool:
        return not self.between and not self.stream.eof


_New = Callable[[], Any]


def _bzip2() -> tuple[_New, tuple[type[Exception], ...]]:
    import bz2

    return bz2.BZ2Decompressor, (OSError, ValueError)


def _xz() -> tuple[_New, tuple[type[Exception], ...]]:
    import lzma

    return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_MAX), (lzma.LZMAError,)


def _lz4() -> tuple[_New, tuple[type[Exception], ...]]:
    try:
        import lz4.frame
    except ImportError:
        raise SourceError(
            "lz4 compression needs a package: pip install 'elf-mesh[lz4]', or unpack the file"
        ) from None
    return lz4.frame.LZ4FrameDecompressor, (RuntimeError, ValueError)


_DECOMPRESSORS = {"bzip2": _bzip2, "xz": _xz, "lz4": _lz4}


class Utf16:
    """UTF-16 text, by its byte order mark, as UTF-8; offsets are those of the UTF-8. Half a pair of surrogates becomes U+FFFD."""

    compressed = True  # a place in the text is found by reading up to it, as in compressed data

    def __init__(self, raw: Chunks) -> None:
        self.descriptor, self.raw = raw.descriptor, raw
        self.decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        self.text = b""

    @property
    def disk_bytes(self) -> int:
        return self.raw.offset

    def readinto(self, view: memoryview) -> int:
        while not self.text:
            data = self.raw.chunk()
            self.text = self.decoder.decode(data, final=not data).encode("utf-8", "replace")
            if not data:
                break
        count = min(len(view), len(self.text))
        view[:count] = self.text[:count]
        self.text = self.text[count:]
        return count

    def truncated(self) -> bool:
        return False
