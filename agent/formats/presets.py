"""The formats known by name, as field plans. Every layout is taken from the maker's documentation, named beside it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from elf.agent.formats import keys, nginx, w3c
from elf.agent.formats.fields import Convert, Escape, Field, Form, Format, Shape
from elf.agent.formats.layout import Piece, literal
from elf.jobmaster.values.sql_types import BIGINT, MICROS, STRING, TIMESTAMP, SqlType

COLUMN_TYPES: dict[str, SqlType] = {
    "time": TIMESTAMP,
    "client_ip": STRING,
    "user": STRING,
    "method": STRING,
    "path": STRING,
    "query": STRING,
    "protocol": STRING,
    "status": BIGINT,
    "bytes": BIGINT,
    "referer": STRING,
    "user_agent": STRING,
    "request_time": MICROS,
    "host": STRING,
    "upstream_response_time": MICROS,
    "scheme": STRING,
    "request_length": BIGINT,
    "agent": STRING,
}
"""The canonical columns: whatever the format, a column of this name has this type."""


def beyond(columns: Mapping[str, SqlType]) -> dict[str, SqlType]:
    """The columns that are not canonical, nor differ from a canonical one by case only."""
    return {name: type for name, type in columns.items() if name.lower() not in COLUMN_TYPES}


_STRING, _INT, _STATUS = Convert.STRING, Convert.INT, Convert.STATUS
_NULLS = (b"-", b"")


def _text(name: str, column: str, form: Form = Form.WORD) -> Field:
    nulls = (b"-",) if form in (Form.CLIENT, Form.IDENT) else _NULLS
    return Field(name, _STRING, column, nulls=nulls, form=form)


def _int(name: str, column: str) -> Field:
    return Field(name, _INT, column, nulls=_NULLS)


def _size(name: str, column: str) -> Field:
    """Apache writes - for a body of no bytes, nginx 0."""
    return Field(name, Convert.SIZE, column, nulls=())


def _quoted(name: str, column: str) -> tuple[Piece, ...]:
    return '"', Field(name, _STRING, column, escape=Escape.BACKSLASH), '"'


def _divided(separator: str, *parts: Field | tuple[Piece, ...]) -> tuple[Piece, ...]:
    """The parts with the separator between each two."""
    pieces: list[Piece] = []
    for part in parts:
        pieces += [separator, *(part if isinstance(part, tuple) else (part,))]
    return tuple(pieces[1:])


def _common(request: Escape, bytes: Field, status: tuple[bytes, ...] = _NULLS) -> tuple[Piece, ...]:
    return _divided(
        " ",
        _text("%h", "client_ip", Form.CLIENT),
        _text("%l", "ident", Form.IDENT),
        # An empty user name is logged as two quotes by Apache; Jetty up to 9.2 has a space on each side of its dash.
        Field("%u", _STRING, "user", nulls=(b"-", b'""', b" - "), escape=request, form=Form.USER),
        ("[", Field("%t", Convert.TIME_CLF, "time", nulls=()), "]"),
        ('"', Field("%r", Convert.REQUEST, escape=request), '"'),
        Field("%>s", _STATUS, "status", nulls=status),
        bytes,
    )


# https://httpd.apache.org/docs/2.4/mod/mod_log_config.html#examples; nginx's "combined" writes the same.
_COMMON = _common(Escape.BACKSLASH, _size("%b", "bytes"))
_REFERER_AGENT = _divided(" ", _quoted("%{Referer}i", "referer"), _quoted("%{User-Agent}i", "user_agent"))
_COMBINED = _divided(" ", _COMMON, _REFERER_AGENT)
# Debian's apache2.conf: "%v:%p %h …"
_VHOST: tuple[Piece, ...] = (_text("%v", "host"), ":", _int("%p", "server_port"))
# What the Kubernetes ingress controller adds to nginx's combined format:
# https://kubernetes.github.io/ingress-nginx/user-guide/nginx-configuration/log-format/
_INGRESS = (
    "$request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] $upstream_addr"
    " $upstream_response_length $upstream_response_time $upstream_status $req_id"
)
# https://doc.traefik.io/traefik/observability/access-logs/: common log format; the time is StartUTC. Users and requests are not
# escaped, headers are.
_TRAEFIK = _divided(
    " ",
    _common(Escape.NONE, _int("OriginContentSize", "bytes"), (*_NULLS, b"0")),
    _REFERER_AGENT,
    _int("RequestCount", "request_count"),
    _quoted("RouterName", "router"),
    _quoted("ServiceURL", "server"),
    Field("Duration", Convert.DURATION, "request_time", nulls=_NULLS),
)


def _alb_time(name: str) -> Field:
    return Field(name, Convert.SECONDS, "request_time", nulls=(b"-1", b"-"), sum=True)


def _appended(*pieces: Piece) -> tuple[Piece, ...]:
    """Optional fields: the line may end before any of them (AWS appends fields over the years)."""
    return tuple(p if isinstance(p, str) else msgspec.structs.replace(p, optional=True) for p in pieces)


# https://docs.aws.amazon.com/elasticloadbalancing/latest/application/load-balancer-access-logs.html; `time` is when the
# load balancer generated the response.
_ALB = _divided(
    " ",
    _text("type", "type"),
    Field("time", Convert.TIME_ISO, "time", nulls=()),
    _text("elb", "elb"),
    Field("client:port", Convert.HOST_PORT, "client_ip", form=Form.CLIENT),
    _text("target:port", "target"),
    _alb_time("request_processing_time"),
    _alb_time("target_processing_time"),
    _alb_time("response_processing_time"),
    Field("elb_status_code", _STATUS, "status"),
    Field("target_status_code", _STATUS, "target_status"),
    _int("received_bytes", "request_length"),
    _int("sent_bytes", "bytes"),
    ('"', Field("request", Convert.REQUEST_URL, escape=Escape.BACKSLASH), '"'),
    _quoted("user_agent", "user_agent"),
    _text("ssl_cipher", "ssl_cipher"),
    _text("ssl_protocol", "ssl_protocol"),
)
_ALB_LATER = _divided(
    " ",
    _text("target_group_arn", "target_group_arn"),
    _quoted("trace_id", "trace_id"),
    _quoted("domain_name", "domain_name"),
    _quoted("chosen_cert_arn", "chosen_cert_arn"),
    Field("matched_rule_priority", _INT, "matched_rule_priority", nulls=(b"-", b"-1")),
    _text("request_creation_time", "request_creation_time"),
    _quoted("actions_executed", "actions_executed"),
    _quoted("redirect_url", "redirect_url"),
    _quoted("error_reason", "error_reason"),
    _quoted("target:port_list", "target_list"),
    _quoted("target_status_code_list", "target_status_list"),
    _quoted("classification", "classification"),
    _quoted("classification_reason", "classification_reason"),
    _text("conn_trace_id", "conn_trace_id"),
    Field("(appended later)", Convert.SKIP),
)


def _timer(name: str, column: str) -> Field:
    return Field(name, Convert.MILLISECONDS, column, nulls=(b"-1", b"-"))


# https://docs.haproxy.org/3.0/configuration.html#8.2.3 (option httplog); the time is when the request began (%tr).
_HAPROXY = _divided(
    " ",
    Field("%ci:%cp", Convert.HOST_PORT, "client_ip", form=Form.CLIENT),
    ("[", Field("%tr", Convert.TIME_CLF, "time", nulls=()), "]"),
    _text("%ft", "frontend"),
    _divided(
        "/",
        Field("%b", _STRING, "backend", nulls=(b"-", b"<NOSRV>"), form=Form.WORD),
        Field("%s", _STRING, "server", nulls=(b"-", b"<NOSRV>"), form=Form.WORD),
    ),
    _divided(
        "/",
        _timer("%TR", "receive_time"),
        _timer("%Tw", "queue_time"),
        _timer("%Tc", "connect_time"),
        _timer("%Tr", "upstream_response_time"),
        _timer("%Ta", "request_time"),
    ),
    Field("%ST", _STATUS, "status", nulls=(b"-1", b"-")),
    _int("%B", "bytes"),
    _text("%CC", "request_cookie", Form.ANY),
    _text("%CS", "response_cookie", Form.ANY),
    Field("%tsc", _STRING, "termination_state", nulls=(), form=Form.WORD),
    _divided(
        "/",
        _int("%ac", "actconn"),
        _int("%fc", "feconn"),
        _int("%bc", "beconn"),
        _int("%sc", "srv_conn"),
        _int("%rc", "retries"),
    ),
    _divided("/", _int("%sq", "srv_queue"), _int("%bq", "backend_queue")),
    # Captured headers "{…} {…} " are there only if the frontend captures any; a quote within them is written #22.
    (Field("%hr %hs", _STRING, "captured_headers", nulls=(b"",)), '"', Field("%r", Convert.REQUEST_URL), '"'),
    # What option httpslog adds: handshake errors, SNI, TLS version and cipher.
    _appended(Field("(httpslog)", Convert.SKIP)),
)


def _with_stray_quotes(plan: Format) -> Format:
    """`plan` of a server that escapes no quotes in headers (Traefik up to May 2026): the referer ends at the next field's quote,
    the user agent where the fields behind it fit."""
    fields = [
        msgspec.structs.replace(
            field,
            quote="" if field.column == "referer" else field.quote,
            stray=field.column == "user_agent",
        )
        for field in plan.fields
    ]
    return msgspec.structs.replace(plan, fields=tuple(fields))


def _headed(kind: str, header: bytes) -> Format:
    fields = w3c.fields_for(header)
    return Format(kind, Shape.LITERAL, fields, comment="#", header=kind, zone=True)


PRESETS: dict[str, Format] = {
    preset.name: preset
    for preset in (
        literal("common", _COMMON, time_is="start"),
        literal("combined", _COMBINED, time_is="start"),
        literal("vhost_common", _divided(" ", _VHOST, _COMMON), time_is="start"),
        literal("vhost_combined", _divided(" ", _VHOST, _COMBINED), time_is="start"),
        # The log_format that the packages and images of nginx.org come with.
        nginx.from_string(nginx.COMBINED + ' "$http_x_forwarded_for"', name="nginx_main"),
        nginx.from_string(f"{nginx.COMBINED} {_INGRESS}", name="nginx_ingress"),
        Format("nginx_json", Shape.JSON, keys.NGINX),
        Format("json", Shape.JSON, keys.GENERIC),
        Format("ltsv", Shape.LTSV, keys.LTSV),
        Format("logfmt", Shape.LOGFMT, keys.LOGFMT),
        _headed("w3c", w3c.IIS_FIELDS),
        _headed("cloudfront", w3c.CLOUDFRONT_FIELDS),
        literal("alb", _divided(" ", _ALB, _appended(*_ALB_LATER))),
        literal("haproxy", _HAPROXY, time_is="start", zone=False, skip_prefix="]: "),
        Format("caddy", Shape.JSON, keys.CADDY),
        _with_stray_quotes(literal("traefik", _TRAEFIK, time_is="start")),
        Format("traefik_json", Shape.JSON, keys.TRAEFIK, time_is="start"),
    )
}
