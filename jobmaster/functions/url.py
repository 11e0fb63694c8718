"""parse_url, with the grammar of java.net.URI (RFC 2396 with IPv6 hosts, and other characters than ASCII allowed)."""

from __future__ import annotations

import re
from collections.abc import Callable

# Characters that java.net.URI accepts: unreserved ones, escaped octets, and "other": not ASCII, no control, no space.
OTHER = "\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\ud7ff\ue000-\U0010ffff"
PLAIN = rf"A-Za-z0-9_\-!.~'()*{OTHER}"
ESCAPED = "%[0-9A-Fa-f]{2}"
PATH = rf"(?:[{PLAIN}:@&=+$,;/]|{ESCAPED})*"
URIC = rf"(?:[{PLAIN};/?:@&=+$,\[\]]|{ESCAPED})*"
AUTHORITY = rf"(?:[{PLAIN}$,;:@&=+\[\]]|{ESCAPED})+"

SPLIT = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.\-]*):)?([^#]*)(?:#(.*))?", re.DOTALL)
HIERARCHY = re.compile(rf"(?://({AUTHORITY})?)?({PATH})(?:\?({URIC}))?")
OPAQUE = re.compile(rf"(?!/)(?:[{PLAIN};/?:@&=+$,\[\]]|{ESCAPED})+")
FRAGMENT = re.compile(URIC)
NAME = r"(?:[A-Za-z0-9](?:[A-Za-z0-9\-]*[A-Za-z0-9])?\.)*[A-Za-z](?:[A-Za-z0-9\-]*[A-Za-z0-9])?\.?"
IPV4 = r"(?:(?:25[0-5]|2[0-4][0-9]|[01]?[0-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|[01]?[0-9]?[0-9])"
IPV6 = r"\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.\-]+)?\]"
SERVER = re.compile(rf"(?:((?:[{PLAIN};:&=+$,]|{ESCAPED})*)@)?({NAME}|{IPV4}|{IPV6})(?::([0-9]*))?")

Parts = dict[str, str | None]


def parse(url: str) -> Parts | None:
    """The parts by Spark's names; None where java.net.URI would refuse the text."""
    found = SPLIT.fullmatch(url)
    if found is None:
        return None
    scheme, body, fragment = found.groups()
    if fragment is not None and not FRAGMENT.fullmatch(fragment):
        return None
    if scheme is not None and not body.startswith("/"):
        return {"PROTOCOL": scheme, "REF": fragment} if OPAQUE.fullmatch(body) else None
    if scheme is None and ":" in re.split("[/?]", body, maxsplit=1)[0]:
        return None
    rest = HIERARCHY.fullmatch(body)
    if rest is None or (body.startswith("//") and rest[1] is None and rest[2] == "" and rest[3] is None):
        return None
    authority, path, query = rest.groups()
    server = SERVER.fullmatch(authority or "")
    if server and server[3] and int(server[3]) >= 2**31:
        server = None
    if authority and "[" in authority and server is None:
        return None
    return {
        "PROTOCOL": scheme,
        "AUTHORITY": authority,
        "USERINFO": server[1] if server else None,
        "HOST": server[2] if server else None,
        "PATH": path,
        "QUERY": query,
        "REF": fragment,
        "FILE": path if query is None else f"{path}?{query}",
    }


def parse_url(part: str, key: str | None = None) -> Callable[[str], str | None]:
    """A function from a URL to its `part`, or the value of `key` in its query; None for an invalid URL."""
    wanted = None if key is None else re.compile(rf"(?:&|^){key}=([^&]*)")

    def run(url: str) -> str | None:
        parts = parse(url)
        if parts is None or (wanted is not None and part != "QUERY"):
            return None
        value = parts.get(part)
        if wanted is None or value is None:
            return value
        found = wanted.search(value)
        return found[1] if found else None

    return run
