"""A log_format string for lines of combined (or a like format) with further fields: a question to whoever knows the log."""

from __future__ import annotations

import re

_COMMON = '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent'
_COMBINED = f'{_COMMON} "$http_referer" "$http_user_agent"'
STARTS = {"common": _COMMON, "combined": _COMBINED, "nginx_main": f'{_COMBINED} "$http_x_forwarded_for"'}
"""The strings of the formats that lines may begin with."""
_TOKEN = re.compile(r'(?P<key>[A-Za-z_]\w*=)?(?P<value>"[^"]*"|[^\s"]+)(?: (?=\S)|$)')
_SECONDS = re.compile(r'"?[0-9]+\.[0-9]{3}"?')
TOKENS_MAX = 20


def extended(name: str, rest: str) -> str | None:
    """The string of format `name` and of fields for `rest`, the text behind it in a line. Seconds with three decimals are taken
    for nginx's times; a value behind `key=` has the key's name; others are numbered. None where the text has another form."""
    if name not in STARTS or not rest.startswith(" "):
        return None
    pieces, taken, at = [STARTS[name]], set(re.findall(r"\w+", STARTS["nginx_main"])), 1
    while at < len(rest):
        found = _TOKEN.match(rest, at)
        if found is None or len(pieces) > TOKENS_MAX:
            return None
        variable = _variable(found["key"], found["value"], taken)
        quote = '"' if found["value"].startswith('"') else ""
        pieces.append(f"{found['key'] or ''}{quote}${variable}{quote}")
        at = found.end()
    return " ".join(pieces)


def _variable(key: str | None, value: str, taken: set[str]) -> str:
    names = [f"field{n}" for n in range(1, TOKENS_MAX + 2)]
    if key:
        names.insert(0, key[:-1].lower())
    elif _SECONDS.fullmatch(value):
        names[:0] = ["request_time", "upstream_response_time"]
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return name
