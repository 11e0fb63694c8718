"""Hashes of texts, and texts as URLs carry them; value by value."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable

SHA2_BITS = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}


def _hash(name: str) -> Callable[[str], str]:
    import hashlib  # late: it loads OpenSSL, and few queries need it

    return lambda text: hashlib.new(name, text.encode(), usedforsecurity=False).hexdigest()


def md5() -> Callable[[str], str]:
    return _hash("md5")


def sha1() -> Callable[[str], str]:
    return _hash("sha1")


def sha2(bits: int) -> Callable[[str], str]:
    return _hash(SHA2_BITS[bits])


def crc32() -> Callable[[str], int]:
    return lambda text: zlib.crc32(text.encode())


_ESCAPES = re.compile(r"(?:%(?:[0-9a-fA-F]{2}|\+[0-9a-fA-F]|-0))+")


def _bytes_of(escapes: re.Match[str]) -> str:
    """As java.net.URLDecoder: it reads the two characters after % as a number, which may have a sign."""
    return bytes(int(each, 16) for each in escapes[0][1:].split("%")).decode(errors="replace")


def url_decode(text: str) -> str | None:
    """`%2F` as `/` and `+` as a space; None if a % has no two hexadecimal digits after it."""
    text = text.replace("+", " ") if "%" not in text else _PLUS.sub(" ", text)
    if _ESCAPES.sub("", text).count("%"):
        return None
    return _ESCAPES.sub(_bytes_of, text)


_PLUS = re.compile(r"(?<!%)\+")
