"""A node's address as text: "host:port/KEY", or "host:port" where the key is not known yet.

KEY is the node's public key, 32 bytes, in lower-case base32 without padding: 52 characters. So a full address names exactly one
node, and gives its id.
"""

from __future__ import annotations

import re
from base64 import b32decode, b32encode
from functools import lru_cache

import msgspec

from elf.errors import PeerError
from elf.srt.messages.ids import NodeId, node_id

KEY_BYTES = 32
KEY_CHARS = 52
_ENDPOINT = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9][A-Za-z0-9.-]{0,252}):(?P<port>[0-9]{1,5})"
)
"""No other text is passed to a socket: libzmq gives "tcp://a;b" and "tcp://*" meanings of their own."""


class Address(msgspec.Struct, frozen=True):
    """endpoint: "host:port". key: 32 bytes, or None."""

    endpoint: str
    key: bytes | None = None

    def __str__(self) -> str:
        return self.endpoint if self.key is None else f"{self.endpoint}/{key_text(self.key)}"

    @property
    def id(self) -> NodeId | None:
        return None if self.key is None else node_id(self.key)

    @property
    def host(self) -> str:
        return self.endpoint.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    @property
    def is_loopback(self) -> bool:
        """Whether the address is one of this host only. Names are not looked up; the only such name is "localhost"."""
        from ipaddress import ip_address

        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@lru_cache(1_024)
def key_text(key: bytes) -> str:
    """The key as addresses contain it. Cached: a transport compares the address of each message that it sends."""
    return b32encode(key).decode().rstrip("=").lower()


def key_of(text: str) -> bytes:
    """The key of such text. Raises PeerError."""
    if len(text) != KEY_CHARS or not re.fullmatch("[a-z2-7]+", text):
        raise PeerError(f"key: {text[:60]!r} is not {KEY_CHARS} characters of a-z and 2-7")
    return b32decode(text.upper() + "====")


def parse_address(text: str) -> Address:
    """Raises a PeerError that says what is wrong. O(1)."""
    endpoint, slash, key = text.partition("/")
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or int(found["port"]) > 65_535:
        raise PeerError(f"address: {text[:80]!r} is not of the form host:port/KEY")
    return Address(endpoint, key_of(key) if slash else None)
