"""nginx: its variables as columns, its `log_format` strings as field plans, and its configuration read by name.

Source: https://nginx.org/en/docs/http/ngx_http_log_module.html and the variables' index. nginx logs when a request ends, so
every time is the request's end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from elf.agent.formats.fields import Convert, Escape, Field, Form, Format, is_text
from elf.agent.formats.layout import Variable, literal, settle, unused
from elf.agent.formats.serverconf import included, read_config
from elf.errors import FormatError

_VARIABLE = r"\$(?:\{(\w+)\}|(\w+))"

# The variables that may fill each canonical column, the best first. The best one of a format fills it; others keep their names.
CANONICAL: dict[str, tuple[tuple[str, Convert], ...]] = {
    "time": (
        ("msec", Convert.TIME_EPOCH),
        ("time_iso8601", Convert.TIME_ISO),
        ("time_local", Convert.TIME_CLF),
    ),
    "client_ip": (("remote_addr", Convert.STRING), ("realip_remote_addr", Convert.STRING)),
    "user": (("remote_user", Convert.STRING),),
    "": (("request", Convert.REQUEST), ("request_uri", Convert.URI)),
    "method": (("request_method", Convert.STRING),),
    "path": (("uri", Convert.STRING), ("document_uri", Convert.STRING)),
    "query": (("args", Convert.QUERY), ("query_string", Convert.QUERY)),
    "protocol": (("server_protocol", Convert.STRING),),
    "status": (("status", Convert.STATUS),),
    "bytes": (("body_bytes_sent", Convert.SIZE), ("bytes_sent", Convert.SIZE)),
    "referer": (("http_referer", Convert.STRING),),
    "user_agent": (("http_user_agent", Convert.STRING),),
    "request_time": (("request_time", Convert.SECONDS),),
    "host": (("host", Convert.STRING), ("http_host", Convert.HOST), ("server_name", Convert.STRING)),
    "upstream_response_time": (("upstream_response_time", Convert.SECONDS_LIST),),
    "scheme": (("scheme", Convert.STRING),),
    "request_length": (("request_length", Convert.INT),),
}
_PREFERRED = {
    name: (column, convert) for column, variables in CANONICAL.items() for name, convert in variables
}
_ORDER = {name: order for order, name in enumerate(_PREFERRED)}

# Only variables that nginx itself computes are numbers: a client chooses the text of $content_length or $http_….
OWN: dict[str, Convert] = {
    "connection": Convert.INT,
    "connection_requests": Convert.INT,
    "connection_time": Convert.SECONDS,
    "pid": Convert.INT,
    "remote_port": Convert.INT,
    "server_port": Convert.INT,
    "bytes_sent": Convert.SIZE,
    "tcpinfo_rtt": Convert.INT,
    "tcpinfo_rttvar": Convert.INT,
    "tcpinfo_snd_cwnd": Convert.INT,
    "tcpinfo_rcv_space": Convert.INT,
    "upstream_connect_time": Convert.SECONDS_LIST,
    "upstream_header_time": Convert.SECONDS_LIST,
    "upstream_queue_time": Convert.SECONDS_LIST,
}
_OWN_WORDS = (
    "request_method scheme server_protocol server_name server_addr hostname nginx_version request_id pipe https"
    " request_completion gzip_ratio ssl_protocol ssl_cipher ssl_session_reused ssl_curve upstream_addr upstream_status"
    " upstream_cache_status upstream_response_length upstream_bytes_sent upstream_bytes_received proxy_upstream_name"
    " proxy_alternative_upstream_name namespace ingress_name service_name service_port proxy_host proxy_port binary_remote_addr"
    " geoip_country_code limit_req_status limit_conn_status http2 http3"
)
_FORMS = {
    "remote_addr": Form.CLIENT,
    "realip_remote_addr": Form.CLIENT,
    "remote_user": Form.USER,
    **dict.fromkeys(_OWN_WORDS.split(), Form.WORD),
}
"""Of the variables that nginx logs unquoted, those that are not any text that a client likes."""
_LISTS = {"http_x_forwarded_for", "proxy_add_x_forwarded_for"}

ESCAPES = {"default": Escape.BACKSLASH, "json": Escape.JSON, "none": Escape.NONE}


def variable(name: str, escape: Escape) -> Variable:
    """The column of `$name`. escape=default logs a missing value as '-', the other escapes log it as empty text."""
    own = _field(name, name.lower(), OWN.get(name, Convert.STRING), escape)
    if name not in _PREFERRED:
        return Variable(own, len(_ORDER), own)
    column, convert = _PREFERRED[name]
    if column == "time":
        time = msgspec.structs.replace(_field(name, column, convert, escape), nulls=())
        return Variable(time, _ORDER[name], unused(time))
    return Variable(_field(name, column, convert, escape), _ORDER[name], own)


def _field(name: str, column: str, convert: Convert, escape: Escape) -> Field:
    text = is_text(convert)
    return Field(
        name,
        convert,
        "" if convert in (Convert.REQUEST, Convert.URI) else column,
        nulls=_nulls(column, convert, escape),
        escape=escape if text else Escape.NONE,
        list=name.startswith("upstream_") or name in _LISTS,
        form=_FORMS.get(name, Form.ANY),
    )


def _nulls(column: str, convert: Convert, escape: Escape) -> tuple[bytes, ...]:
    """A missing value is '-' with escape=default, else empty; an empty one is as good as missing. Clients and users have text."""
    if escape is Escape.BACKSLASH and column in ("client_ip", "user"):
        return (b"-",)
    if convert is Convert.SIZE:
        return () if escape is Escape.BACKSLASH else (b"",)
    return b"-", b""


def from_string(text: str, *, name: str = "nginx", escape: str = "default") -> Format:
    """The field plan of a `log_format` string ('$remote_addr - $remote_user …'), as nginx sees it after unquoting.

    Raises FormatError for adjacent variables and for a format without a time.
    """
    pieces: list[str | Variable] = []
    for piece in _pieces(text):
        if isinstance(piece, str):
            pieces.append(piece)
        else:
            pieces.append(variable(piece.group(1) or piece.group(2), ESCAPES[escape]))
    return literal(name, settle(_uri_joined(pieces)))


def _pieces(text: str) -> Iterator[str | re.Match[str]]:
    at = 0
    for found in re.finditer(_VARIABLE, text):
        yield text[at : found.start()]
        yield found
        at = found.end()
    yield text[at:]


def _uri_joined(pieces: list[str | Variable]) -> list[str | Variable]:
    """Join `$uri$is_args$args` to one URI field, which is split when it is read, since its '?' is optional."""
    out: list[str | Variable] = []
    for piece in pieces:
        if piece == "":
            continue
        out.append(piece)
        names = [part.field.name for part in out[-3:] if isinstance(part, Variable)]
        if (
            names[:2] in (["uri", "is_args"], ["document_uri", "is_args"])
            and names[2:] in (["args"], ["query_string"])
            and isinstance(piece, Variable)
        ):
            escape = piece.field.escape
            whole = _field("uri$is_args$args", "", Convert.URI, escape)
            own = _field("uri$is_args$args", "uri", Convert.STRING, escape)
            out[-3:] = [Variable(whole, _ORDER["request_uri"], own)]
    return out


def from_pasted(text: str) -> Format:
    """The plan of a text copied from a configuration: a whole `log_format name [escape=…] 'part' 'part';` statement, its
    quoted parts, or the bare string. (A bare string may begin with a double quote, so only ' begins quoted parts.)
    """
    text = text.strip()
    if not text.startswith(("'", "log_format", "escape=")):
        return from_string(text)
    words = [word for word, _ in _words(text) if word is not None]
    if words[0] != "log_format":
        return _named("", words)
    if len(words) < 3:
        raise FormatError("log_format needs a name and a string: log_format main '$remote_addr …';")
    return _named(words[1], words[2:])


def _named(name: str, arguments: list[str]) -> Format:
    """The plan of a statement's arguments. nginx joins the parts without a separator."""
    escape = "default"
    if arguments and arguments[0].startswith("escape="):
        escape = arguments[0].removeprefix("escape=")
        arguments = arguments[1:]
        if escape not in ESCAPES:
            raise FormatError(f"log_format {name}: escape={escape} is not one of {', '.join(ESCAPES)}")
    return from_string("".join(arguments), name=f"nginx:{name}" if name else "nginx", escape=escape)


def from_config(path: str, name: str) -> Format:
    """The `log_format` called `name` of a configuration file and of all that it includes (relative to its folder).

    Raises FormatError for an unknown name (listing the known ones), for include cycles, and for unreadable files.
    """
    known = {arguments[0]: arguments[1:] for arguments in _log_formats(Path(path), Path(path).parent, ())}
    if name in known:
        return _named(name, known[name])
    if name == "combined":  # built into nginx
        return from_string(COMBINED, name="nginx:combined")
    listed = ", ".join([*known, "combined"])
    raise FormatError(f"{path}: there is no log_format {name!r}; it has {listed}")


COMBINED = '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"'


def _log_formats(path: Path, root: Path, chain: tuple[Path, ...]) -> Iterator[list[str]]:
    """The arguments of every log_format in reading order."""
    text, chain = read_config(path, chain)
    statement: list[str] = []
    for word, quoted in _words(text):
        if word is None:
            if statement[:1] == ["log_format"] and len(statement) >= 3:
                yield statement[1:]
            elif statement[:1] == ["include"] and len(statement) == 2:
                for file in included(statement[1], root):
                    yield from _log_formats(file, root, chain)
            statement = []
        elif statement or not quoted:
            statement.append(word)


_TOKEN = r"""(?xs) \s+ | \#[^\n]* | (?P<end>[;{}]) | '(?P<single>(?:[^'\\]|\\.)*)' | "(?P<double>(?:[^"\\]|\\.)*)"
      | (?P<lua>\w+_by_lua_block\s*\{) | (?P<word>(?:\$\{|\\.|[^\s;{}\\])+) | ."""
"""As `_VARIABLE`, compiled at first use: most runs read no configuration of nginx."""
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n"}


def _words(text: str) -> Iterator[tuple[str | None, bool]]:
    """nginx's lexer: (word, whether it was quoted); (None, False) where a statement ends. Skips Lua blocks."""
    at, tokens = 0, re.compile(_TOKEN)
    while at < len(text):
        token = tokens.match(text, at)
        assert token is not None  # the last alternative takes any character
        at = token.end()
        if token["lua"]:
            at = _block_end(text, at)
            yield None, False
        elif token["end"]:
            yield None, False
        elif token["word"] is not None:
            yield token["word"], False
        else:
            body = token["single"] if token["single"] is not None else token["double"]
            if body is not None:
                yield re.sub(r"\\(['\"\\trn])", lambda m: _ESCAPED.get(m[1], m[1]), body), True


def _block_end(text: str, at: int) -> int:
    """The place after the brace that closes a block opened just before `at`."""
    depth = 1
    while at < len(text) and depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at
