"""Detects a log's format from its first lines: candidates parse them, and the most specific that accepts enough wins.

Parsing alone is ambiguous in two cases. A shorter format can accept a longer one's line (the `%h %l %u` of combined accepts
"shop.example:80 10.0.0.1 - -"), so the more specific is tried first: the user's own formats, products, then the general ones.
Every JSON format accepts every object with a time, so the keys decide. Of the many products only those are tried whose fixed
texts some lines have; the general formats without them are tried last, for the message.

Wrapped lines come first: some formats accept them whole. What is inside is detected in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from elf.agent.files.blocks import BYTE_ORDER_MARK
from elf.agent.formats import nginx, w3c
from elf.agent.formats.batch import Reject
from elf.agent.formats.envelopes.finding import find_wrapped
from elf.agent.formats.fields import Format, Reason, Shape
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
SURE_MIN = 0.95
"""Fraction from which on a detection says no more than the format's name."""
LINE_SHOWN = 60
"""Bytes of a line that a message quotes."""
FIELDS_MIN = 3
"""Fields before the time of a line that looks like a format: a host, a name and a user."""
KEYS_MAX = 20
"""Keys of a line that a message names."""
LOOKED_AT = 8
"""Lines, evenly spread, in which a product's fixed texts are looked for."""

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
    if envelope:
        return find_wrapped(lines, _plain, envelope) or _plain(lines)
    first = lines[:LINES_MAX]
    candidates = list(_candidates(first))
    for plan in candidates:  # those that skip a prefix of syslog themselves
        if plan.skip_prefix and _is_likely(plan, _some(first)) and _try(plan, first).accepted >= ACCEPTED_MIN:
            return plan
    try:
        return find_wrapped(lines, _plain) or _plain(lines, candidates)
    except FormatError:
        with suppress(FormatError):
            # A format of its own has such lines, or they are objects whose keys are columns.
            return _plain(lines, candidates)
        raise


def _plain(lines: list[bytes], candidates: Iterable[Format] | None = None) -> Format:
    """The format of lines without an envelope, by the first ones. candidates: the lines', if known. Raises FormatError."""
    from elf.agent.formats.products.catalogue import hint

    lines = lines[:LINES_MAX]
    header = next((line for line in lines if line.lower().startswith(b"#fields:")), None)
    if header is not None:
        return _headed(header)
    tried = []
    for plan in candidates or _candidates(lines):
        tried.append(_try(plan, lines))
        if tried[-1].accepted >= SURE_MIN:
            return plan
    best = max(tried, key=lambda one: one.accepted)  # the first of several: the more specific one
    if best.accepted >= ACCEPTED_MIN:
        return best.plan
    if not any(one.accepted for one in tried) and (other := _other_content(lines)):
        raise FormatError(f"format auto: {other}")
    raise FormatError(_nothing_fits(tried, lines) + (f"; {advice}" if (advice := hint(lines)) else ""))


def doubt(sample: bytes, chosen: Format) -> str:
    """What a notice says about the choice, behind its name; "" where it is sure.

    Nothing of an envelope. That others may look the same, on how many lines it fits if not on nearly all, and the next best.
    """
    from elf.agent.formats.products.catalogue import TABLES

    if chosen.envelope:
        return ""
    table = TABLES.get(chosen.name, {})
    guess = f", a guess by its shape ({table['summary']})" if table.get("guess") else ""
    lines = _lines(sample)
    one = _try(chosen, lines)
    if one.accepted * len(lines) >= one.lines * SURE_MIN:
        return guess
    rest = [_try(plan, lines) for plan in _candidates(lines) if plan != chosen]
    best = max(rest, key=lambda one: one.accepted, default=None)
    next_best = "no other fits any"
    if best is not None and best.accepted:
        next_best = f"next is {best.plan.name} with {best.accepted:.0%}"
    return f"{guess}, which fits {one.accepted:.0%} of the first {len(lines):,} lines ({next_best})"


def _candidates(lines: list[bytes]) -> Iterator[Format]:
    """The formats to try, the more specific first."""
    from elf.agent.formats.products import catalogue, own

    for name, (path, table) in own.own_tables().items():
        yield own.read_own(path, table, name)
    objects = _objects(lines)
    if len(objects) * 2 > len(lines):
        name = _json_name(objects)
        if name not in PRESETS:
            yield catalogue.product(name)
            name = "json"
        yield PRESETS[name]
        return
    some = _some(lines)
    for name in catalogue.likely(tuple(some)):
        if catalogue.is_like(name, lines, some):
            yield catalogue.product(name)
    likely = [PRESETS[name] for name in _TEXT if _is_likely(PRESETS[name], some)]
    yield from likely
    yield from (PRESETS[name] for name in _TEXT if PRESETS[name] not in likely)


def _is_likely(plan: Format, lines: list[bytes]) -> bool:
    """Whether one of the lines has the format's fixed texts, up to the first field that may be absent."""
    if plan.shape is not Shape.LITERAL:
        return True
    optional = next((at for at, field in enumerate(plan.fields) if field.optional), len(plan.fields) + 1)
    texts = [plan.prefix.encode(), *(field.after.encode() for field in plan.fields[: optional - 1])]
    from elf.agent.formats.products.catalogue import has_texts

    return any(has_texts(line, texts) for line in lines)


def _some(lines: list[bytes]) -> list[bytes]:
    """Some lines, evenly spread."""
    return lines[:: -(-len(lines) // LOOKED_AT)]


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
    from elf.agent.formats.products.catalogue import writer

    return writer(objects) or "json"


def _try(plan: Format, lines: list[bytes]) -> _Tried:
    batch = Parser(plan, ()).parse(b"\n".join(lines) + b"\n")
    return _Tried(plan, batch.rows / len(lines), batch.lines, next(iter(batch.samples), None))


def _nearness(one: _Tried) -> tuple[float, bool, int]:
    if one.first is None or one.first.reason in (
        Reason.MISSING,
        Reason.NUL,
    ):  # found at the line's end, or before any field
        return one.accepted, False, -1
    return one.accepted, one.first.reason is Reason.TRAILING, one.first.offset


def _is_near(one: _Tried) -> bool:
    """Whether lines look like that format: it accepts some, or reads to a line's time past other fields. Any text has a first
    word."""
    first = one.first
    if first is None or one.accepted or first.reason is Reason.TRAILING:
        return True
    if first.reason is Reason.MISSING:
        return bool(_objects([first.line]))
    fields = [field.name for field in one.plan.fields]
    time_at = next((at for at, field in enumerate(one.plan.fields) if "time" in field.columns), 0)
    failed_at = fields.index(first.field) if first.field in fields else 0
    return failed_at > time_at or failed_at == time_at >= FIELDS_MIN


def _question(near: _Tried, lines: list[bytes]) -> str:
    """A format string that fits lines of combined (or a like format) with further fields, as a question; "" if there is none."""
    from elf.agent.formats.products.suggestion import extended

    if near.first is None or near.first.reason is not Reason.TRAILING:
        return ""
    text = extended(
        near.plan.name, near.first.line[near.first.offset :].rstrip(b"\r").decode("utf-8", "replace")
    )
    if text is None:
        return ""
    fits = _try(nginx.from_string(text), lines).accepted
    return f" is it --format '{text}' ({fits:.0%} of them fit)? Else" if fits >= ACCEPTED_MIN else ""


def _nothing_fits(tried: list[_Tried], lines: list[bytes]) -> str:
    """One line: the formats tried, and the first mismatch of the nearest one.

    The nearest one accepts most lines, or else reads farthest. A format that read all its fields, with more text after them,
    counts as nearer than one that failed in a field.
    """
    near = max(tried, key=lambda one: (_is_near(one), *_nearness(one)))
    names = ", ".join(one.plan.name for one in tried)
    if near.first is None:
        return f"format auto: none of {names} fits; name the format"
    if not _is_near(near):
        line = lines[0][:LINE_SHOWN].decode("utf-8", "replace")
        return (
            f"format auto: none of {names} fits, and these lines look like none of them, such as {line!r}: if they are a web"
            " server's, name the format (nginx:FILE#NAME, apache:FILE#NAME, a pasted format string, regex:PATTERN, or a table"
            " [format.NAME] of your own)"
        )
    if len(tried) == 1:
        fit = f"the lines look like {names}, but {near.accepted:.0%} of the first {near.lines:,} fit: it"
    else:
        fit = f"none of {names} fits; nearest is {near.plan.name} ({near.accepted:.0%} of {near.lines} lines), which"
    return (
        f"format auto: {fit} expected {_mismatch(near, near.first)};{_question(near, lines)} name the format"
        " (nginx:FILE#NAME, apache:FILE#NAME, a pasted format string, regex:PATTERN, or a table [format.NAME] of your own)"
    )


def _mismatch(near: _Tried, first: Reject) -> str:
    """What was expected, and what was found."""
    if first.reason is Reason.MISSING:
        keys = [field.name for field in near.plan.fields if "time" in field.columns]
        if first.field in keys:
            objects = _objects([first.line])
            found = (
                f" and found the keys {', '.join(list(objects[0])[:KEYS_MAX]) or 'of no value'}"
                if objects
                else ""
            )
            return f"a time under one of the keys {', '.join(keys)}{found}"
        return first.expected
    found = first.line[first.offset :][:40].decode("utf-8", "replace")
    field = f" in {first.field}" if first.field else ""
    return f"{first.expected}{field} at byte {first.offset} and found {found!r}"


def _other_content(lines: list[bytes]) -> str:
    """What the lines are, if they are no lines of a log, and what to do; else ""."""
    first = lines[0].strip()
    if any(b"\0" in line for line in lines):
        return "this is not text: there are NUL bytes in its first lines"
    if first in (b"[", b"[{") or first.startswith((b'[{"', b"[ {")):
        return "this is one JSON array, and a log has an object on each line: pipe it through jq -c '.[]'"
    if first == b"{":
        return "these are JSON objects over several lines each, and a log has an object on each line: pipe it through jq -c ."
    return ""
