"""Apache httpd: its `LogFormat` directives as columns, and its configuration read by name.

Source: https://httpd.apache.org/docs/2.4/mod/mod_log_config.html and mod_logio. Apache's time is the request's start unless
the directive says `end:`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from elf.agent.formats.apache_times import has_zone, read_times
from elf.agent.formats.fields import Convert, Escape, Field, Form, Format, is_text
from elf.agent.formats.layout import Variable, literal, settle
from elf.agent.formats.serverconf import included, read_config
from elf.errors import FormatError

_DIRECTIVE = re.compile(r"%(?P<modifiers>(?:[!<>,\d]|\{[^}\n]*\})*)(?P<letter>\^\w\w|[a-zA-Z%])")

# directive -> (canonical column, conversion, rank among the directives of that column, own name for formats with a better one).
DIRECTIVES: dict[str, tuple[str, Convert, int, str]] = {
    "a": ("client_ip", Convert.STRING, 1, "client_addr"),
    "h": ("client_ip", Convert.STRING, 2, "remote_host"),
    "{c}h": ("client_ip", Convert.STRING, 3, "peer_host"),
    "{c}a": ("client_ip", Convert.STRING, 4, "peer_addr"),
    "A": ("server_addr", Convert.STRING, 1, ""),
    "B": ("bytes", Convert.SIZE, 1, ""),
    "b": ("bytes", Convert.SIZE, 2, ""),
    "O": ("bytes", Convert.SIZE, 3, "bytes_sent"),
    "D": ("request_time", Convert.MICROSECONDS, 1, ""),
    "{us}T": ("request_time", Convert.MICROSECONDS, 1, ""),
    "{ms}T": ("request_time", Convert.MILLISECONDS, 2, ""),
    "T": ("request_time", Convert.SECONDS, 3, ""),
    "{s}T": ("request_time", Convert.SECONDS, 3, ""),
    "f": ("filename", Convert.STRING, 1, ""),
    "H": ("protocol", Convert.STRING, 2, "request_protocol"),
    "I": ("request_length", Convert.INT, 1, ""),
    "k": ("keepalive_requests", Convert.INT, 1, ""),
    "l": ("ident", Convert.STRING, 1, ""),
    "L": ("log_id", Convert.STRING, 1, ""),
    "m": ("method", Convert.STRING, 2, "request_method"),
    "p": ("server_port", Convert.INT, 1, ""),
    "{canonical}p": ("server_port", Convert.INT, 1, ""),
    "{local}p": ("server_port", Convert.INT, 2, "local_port"),
    "{remote}p": ("remote_port", Convert.INT, 1, ""),
    "P": ("pid", Convert.INT, 1, ""),
    "{pid}P": ("pid", Convert.INT, 1, ""),
    "{tid}P": ("tid", Convert.INT, 1, ""),
    "{hextid}P": ("tid", Convert.STRING, 2, "hextid"),
    "q": ("query", Convert.QUERY, 2, "query_string"),
    "r": ("", Convert.REQUEST, 0, ""),
    "R": ("handler", Convert.STRING, 1, ""),
    ">s": ("status", Convert.STATUS, 1, ""),
    "s": ("status", Convert.STATUS, 2, "original_status"),
    "<s": ("status", Convert.STATUS, 2, "original_status"),
    "S": ("bytes_total", Convert.INT, 1, ""),
    "u": ("user", Convert.STRING, 1, ""),
    "<u": ("user", Convert.STRING, 1, ""),
    ">u": ("user", Convert.STRING, 1, ""),
    "U": ("path", Convert.STRING, 2, "url_path"),
    "U%q": ("", Convert.URI, 1, "url"),
    "v": ("host", Convert.STRING, 1, "server_name"),
    "V": ("host", Convert.STRING, 2, "requested_host"),
    "X": ("connection_status", Convert.STRING, 1, ""),
    "^FB": ("first_byte_time", Convert.MICROSECONDS, 1, ""),
    "{referer}i": ("referer", Convert.STRING, 1, ""),
    "{user-agent}i": ("user_agent", Convert.STRING, 1, ""),
    "{host}i": ("host", Convert.HOST, 3, "http_host"),
}
# letter -> the prefix of the column name of an arbitrary {parameter}.
_NAMED = {
    "i": "http_",
    "o": "sent_http_",
    "C": "cookie_",
    "e": "env_",
    "n": "note_",
    "x": "",
    "^ti": "trailer_",
    "^to": "sent_trailer_",
}


def directive(text: str) -> Variable:
    """The column of one directive ("%>s", "%{Referer}i"), except times. Raises FormatError for an unknown directive."""
    found = _DIRECTIVE.fullmatch(text)
    assert found is not None, text
    letter = found["letter"]
    parameter = "".join(re.findall(r"\{([^}]*)\}", found["modifiers"]))
    which = "".join(re.findall(r"[<>]", re.sub(r"\{[^}]*\}", "", found["modifiers"])))
    key = which + (f"{{{parameter.lower() if letter in 'io' else parameter}}}" if parameter else "") + letter
    if key in DIRECTIVES:
        return _variable(text, *DIRECTIVES[key])
    if letter in _NAMED and parameter:
        own = _NAMED[letter] + re.sub(r"\W", "_", parameter).lower()
        return _variable(text, own, Convert.STRING, 9, "")
    if letter in DIRECTIVES:  # a modifier that changes nothing here, as in %>D
        return _variable(text, *DIRECTIVES[letter])
    raise FormatError(
        f"LogFormat: {text} is not a directive of Apache; take it out, or write %% for a percent sign"
    )


def _variable(text: str, column: str, convert: Convert, rank: int, own: str) -> Variable:
    nulls: tuple[bytes, ...] = () if convert is Convert.SIZE else (b"-", b"")
    if column in ("client_ip", "ident"):
        nulls = (b"-",)
    if column == "user":
        nulls = (
            b"-",
            b'""',
            b" - ",
        )  # an empty user name is logged as two quotes; none as " - " by Jetty up to 9.2
    if column == "connection_status":
        nulls = ()  # '-' says that the connection is closed after the response
    field = Field(
        text,
        convert,
        column,
        nulls=nulls,
        escape=Escape.BACKSLASH if is_text(convert) else Escape.NONE,
        list=column == "http_x_forwarded_for",
        form=_form(column, text),
    )
    other = Convert.STRING if convert in (Convert.QUERY, Convert.URI, Convert.HOST) else convert
    otherwise = msgspec.structs.replace(field, column=own or column, convert=other)
    return Variable(field, rank, otherwise)


_FORMS = {"client_ip": Form.CLIENT, "ident": Form.IDENT, "user": Form.USER}
_WORDS = frozenset("AHLPXkmpv")


def _form(column: str, text: str) -> Form:
    """What a directive's text is; of any text are those that a client chooses, and those of a module's own (%{…}n, %{…}x)."""
    if column in _FORMS:
        return _FORMS[column]
    return Form.WORD if text[-1] in _WORDS and "^" not in text else Form.ANY


def from_string(text: str, *, name: str = "apache") -> Format:
    r"""The field plan of a `LogFormat` string, with or without the escapes (`\"`) of the configuration file around it.

    Raises FormatError for unknown directives, for adjacent ones (except %U%q, which are one URI), and for a missing time.
    """
    text = re.sub(r"\\([\"\\tnr])", lambda m: {"t": "\t", "n": "\n", "r": "\r"}.get(m[1], m[1]), text)
    pieces = [
        directive(piece[0]) if isinstance(piece, re.Match) else piece
        for piece in read_times(_uri_joined(_pieces(text)))
    ]
    best = min(
        (p for p in pieces if isinstance(p, Variable) and p.field.column == "time"), default=None, key=_rank
    )
    return literal(
        name,
        settle(pieces),
        time_is="end" if best is not None and "{end:" in best.field.name else "start",
        zone=best is None or has_zone(best.field),
    )


def _rank(variable: Variable) -> int:
    return variable.rank


def _pieces(text: str) -> Iterator[str | re.Match[str]]:
    at = 0
    for found in _DIRECTIVE.finditer(text):
        yield text[at : found.start()]
        yield "%" if found["letter"] == "%" else found
        at = found.end()
    rest = text[at:]
    if "%" in rest:
        raise FormatError(
            f"LogFormat: {rest[rest.index('%') :]!r} is not a directive; write %% for a percent sign"
        )
    yield rest


def _uri_joined(pieces: Iterator[str | re.Match[str]]) -> Iterator[str | re.Match[str] | Variable]:
    """Join %U%q to one URI field, which is split when it is read: the query begins with its own '?'."""
    path: re.Match[str] | None = None
    for piece in pieces:
        if piece == "":
            continue
        if path is not None:
            if isinstance(piece, re.Match) and piece["letter"] == "q":
                yield _variable(path[0] + piece[0], *DIRECTIVES["U%q"])
                path = None
                continue
            yield path
            path = None
        if isinstance(piece, re.Match) and piece["letter"] == "U":
            path = piece
        else:
            yield piece
    if path is not None:
        yield path


_STATEMENT = re.compile(
    r"""\s*LogFormat\s+(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|(?P<bare>\S+))(?:\s+(?P<name>\S+))?\s*""",
    re.IGNORECASE,
)


def from_statement(text: str) -> Format:
    """The plan of a whole `LogFormat "…" name` line, or of its quoted string alone."""
    found = _STATEMENT.fullmatch(_unfolded(text))
    if found is None:
        bare = text.strip()
        quoted = len(bare) > 1 and bare[0] == bare[-1] == '"' and not re.search(r'(?<!\\)"', bare[1:-1])
        return from_string(bare[1:-1] if quoted else bare)
    name = (found["name"] or "").strip('"')
    return from_string(_string(found), name=f"apache:{name}" if name else "apache")


def _string(found: re.Match[str]) -> str:
    return next(s for s in (found["quoted"], found["single"], found["bare"]) if s is not None)


def _unfolded(text: str) -> str:
    return re.sub(r"\\\r?\n", "", text)


def from_config(path: str, name: str) -> Format:
    """The `LogFormat` called `name` of a configuration file and of all that it includes.

    Includes are relative to the file's ServerRoot, or to its folder if it names none. Raises FormatError for an unknown name
    (listing the known ones), for include cycles, and for unreadable files.
    """
    known: dict[str, str] = {}
    _collect(Path(path), Path(path).parent, (), known)
    if name in known:
        return from_string(known[name], name=f"apache:{name}")
    if name == "common":  # built into httpd
        return from_string('%h %l %u %t "%r" %>s %b', name="apache:common")
    listed = ", ".join([*known, "common"])
    raise FormatError(f"{path}: there is no LogFormat {name!r}; it has {listed}")


def _collect(path: Path, root: Path, chain: tuple[Path, ...], known: dict[str, str]) -> Path:
    """Read one file into `known` (a later LogFormat of a name replaces the earlier); returns the ServerRoot."""
    text, chain = read_config(path, chain)
    for line in _unfolded(text).splitlines():
        words = line.split(None, 1)
        if len(words) < 2:
            continue
        word, argument = words[0].lower(), words[1].strip().strip('"')
        if word == "serverroot":
            root = Path(argument)
        elif word in ("include", "includeoptional"):
            for file in included(argument, root):
                root = _collect(file, root, chain, known)
        elif word == "logformat" and (found := _STATEMENT.fullmatch(line)) and found["name"]:
            known[found["name"].strip('"')] = _string(found)
    return root
