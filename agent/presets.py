"""The formats known by name, as field plans. Every layout is taken from the maker's documentation, named beside it."""

from __future__ import annotations

from elf.agent.fields import Convert, Escape, Field, Format
from elf.agent.layout import Piece, literal

CLIENT = Field("%h", Convert.STRING, "client_ip")
TIME = Field("%t", Convert.TIME_CLF, "time", nulls=())
REQUEST = Field("%r", Convert.REQUEST, escape=Escape.BACKSLASH)

# https://httpd.apache.org/docs/2.4/mod/mod_log_config.html#examples; nginx's "combined" writes the same.
_COMMON: tuple[Piece, ...] = (
    CLIENT,
    " ",
    Field("%l", Convert.STRING, "ident"),
    " ",
    # An empty user name is logged as two quotes by Apache.
    Field("%u", Convert.STRING, "user", nulls=(b"-", b'""'), escape=Escape.BACKSLASH),
    " [",
    TIME,
    '] "',
    REQUEST,
    '" ',
    Field("%>s", Convert.STATUS, "status"),
    " ",
    Field("%b", Convert.INT, "bytes"),
)
_REFERER_AGENT: tuple[Piece, ...] = (
    ' "',
    Field("%{Referer}i", Convert.STRING, "referer", escape=Escape.BACKSLASH),
    '" "',
    Field("%{User-Agent}i", Convert.STRING, "user_agent", escape=Escape.BACKSLASH),
    '"',
)
# Debian's apache2.conf: "%v:%p %h …"
_VHOST: tuple[Piece, ...] = (
    Field("%v", Convert.STRING, "host"),
    ":",
    Field("%p", Convert.INT, "server_port", nulls=(b"-", b"")),
    " ",
)

COMMON = literal("common", _COMMON, time_is="start")
COMBINED = literal("combined", (*_COMMON, *_REFERER_AGENT), time_is="start")
VHOST_COMMON = literal("vhost_common", (*_VHOST, *_COMMON), time_is="start")
VHOST_COMBINED = literal("vhost_combined", (*_VHOST, *_COMMON, *_REFERER_AGENT), time_is="start")

PRESETS: dict[str, Format] = {
    preset.name: preset for preset in (COMMON, COMBINED, VHOST_COMMON, VHOST_COMBINED)
}
