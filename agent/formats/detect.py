"""Detects a log's format from its first lines: candidates parse them, and the most specific that accepts enough wins.

Parsing alone is ambiguous in two cases. A shorter format can accept a longer one's line (the `%h %l %u` of combined accepts
"shop.example:80 10.0.0.1 - -"), so the more specific is tried first. Every JSON format accepts every object with a time, so the
keys decide.

Wrapped lines come first: some formats accept them whole. What is inside is detected in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elf.agent.files.blocks import BYTE_ORDER_MARK
from elf.agent.formats import w3c
from elf.agent.formats.batch import Reject
from elf.agent.formats.envelopes.finding import find_wrapped
from elf.agent.formats.fields import Format, Reason
from elf.agent.formats.parser import Parser
from elf.agent.formats.presets import PRESETS
from elf.errors import FormatError

LINES_MAX = 200
WRAPPED_LINES_MAX = 2000
"""Lines of a sample in which a web server is looked for among other programs."""
BYTES_MAX = 256 << 10
"""Size of the sample: 100 lines of a verbose format (ALB, Caddy: 1 to 2 KiB) fit."""
ACCEPTED_MIN = 0.5
"""Fraction of the lines that must be accepted: a log may begin with broken lines."""

# The more specific first: of two formats that both accept half of the lines, the later one accepts the other's lines too.
_TEXT = (
    "alb",
    "haproxy",
    "cloudfront",
    "nginx_ingress",
    "traefik",
    "nginx_main",
    "vhost_combined",
    "combined",
    "vhost_common",
    "common",
    "w3c",
    "ltsv",
    "logfmt",
)
# Keys that only this writer uses: two of them in most of the objects decide.
_JSON_KEYS: dict[str, frozenset[str]] = {
    "caddy": frozenset({"request", "resp_headers", "bytes_read", "user_id", "logger"}),
    "traefik_json": frozenset(
        {
            "DownstreamStatus",
            "RequestMethod",
            "RequestPath",
            "ClientHost",
            "ClientAddr",
            "RouterName",
            "StartUTC",
        }
    ),
    "nginx_json": frozenset(
        {
            "remote_addr",
            "remote_user",
            "time_local",
            "time_iso8601",
            "msec",
            "body_bytes_sent",
            "request_uri",
            "server_protocol",
            "http_user_agent",
            "http_referer",
            "upstream_addr",
            "upstream_response_time",
        }
    ),
}


class _Tried(msgspec.Struct, frozen=True):
    plan: Format
    accepted: float
    lines: int
    first: Reject | None


def detect(sample: bytes, envelope: str = "") -> Format:
    """The format of `sample`, the first lines of a log (a cut last line is ignored). Its `name` is the chosen one.

    envelope: the one that the lines must have.

    Raises FormatError, naming what was tried and where the nearest candidate first differs, when none accepts half the lines.
    """
    lines = _lines(sample.removeprefix(BYTE_ORDER_MARK))
    if not lines:
        raise FormatError("format auto: there is no whole line to detect the format from; name the format")
    if not envelope and _try(PRESETS["haproxy"], lines[:LINES_MAX]).accepted >= ACCEPTED_MIN:
        return PRESETS["haproxy"]  # it skips a prefix of syslog itself
    return find_wrapped(lines, _plain, envelope) or _plain(lines)


def _plain(lines: list[bytes]) -> Format:
    """The format of lines without an envelope, by the first ones. Raises FormatError."""
    lines = lines[:LINES_MAX]
    header = next((line for line in lines if line.lower().startswith(b"#fields:")), None)
    if header is not None:
        return _headed(header)
    objects = _objects(lines)
    names: Iterable[str] = (_json_name(objects),) if len(objects) * 2 > len(lines) else _TEXT
    tried = []
    for name in names:
        tried.append(_try(PRESETS[name], lines))
        if tried[-1].accepted >= ACCEPTED_MIN:
            return PRESETS[name]
    raise FormatError(_nothing_fits(tried))


def _lines(sample: bytes) -> list[bytes]:
    """The whole lines that are not empty. A sample of one line without its end is that line."""
    lines = sample[:BYTES_MAX].split(b"\n")
    if len(lines) > 1:
        lines.pop()
    return [line for line in lines[:WRAPPED_LINES_MAX] if line.strip()]


def _headed(header: bytes) -> Format:
    """The format that the header of a W3C log names."""
    return msgspec.structs.replace(PRESETS[w3c.kind_of(header)], fields=w3c.fields_for(header))


def _objects(lines: list[bytes]) -> list[dict[str, object]]:
    found = []
    for line in lines:
        if line.lstrip().startswith(b"{"):
            try:
                value = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            found.append(value)
    return found


def _json_name(objects: list[dict[str, object]]) -> str:
    for name, keys in _JSON_KEYS.items():
        if sum(len(keys & one.keys()) >= 2 for one in objects) * 2 > len(objects):
            return name
    return "json"


def _try(plan: Format, lines: list[bytes]) -> _Tried:
    batch = Parser(plan, ()).parse(b"\n".join(lines) + b"\n")
    return _Tried(plan, batch.rows / len(lines), batch.lines, next(iter(batch.samples), None))


def _nearness(one: _Tried) -> tuple[float, bool, int]:
    if one.first is None:
        return one.accepted, False, 0
    return one.accepted, one.first.reason is Reason.TRAILING, one.first.offset


def _nothing_fits(tried: list[_Tried]) -> str:
    """One line: the formats tried, and the first mismatch of the nearest one.

    The nearest one accepts most lines, or else reads farthest. A format that read all its fields, with more text after them,
    counts as nearer than one that failed in a field.
    """
    near = max(tried, key=_nearness)
    names = ", ".join(one.plan.name for one in tried)
    if near.first is None:
        return f"format auto: none of {names} fits; name the format"
    found = near.first.line[near.first.offset :][:40].decode("utf-8", "replace")
    field = f" in {near.first.field}" if near.first.field else ""
    return (
        f"format auto: none of {names} fits; nearest is {near.plan.name} ({near.accepted:.0%} of {near.lines} lines), which"
        f" expected {near.first.expected}{field} at byte {near.first.offset} and found {found!r}; name the format"
        " (nginx:FILE#NAME, apache:FILE#NAME, a pasted format string, or regex:PATTERN)"
    )
