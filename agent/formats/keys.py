"""Formats whose lines name their values (JSON, LTSV, logfmt): which key fills which column.

A key is the dotted path of the names around the value ("request.headers.User-Agent.0"), however they are nested. Where
several keys of a column are in one line, the first in the table's order that is not NULL wins. A key whose meaning depends
on the writer of the line has one meaning here, given in docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elf.agent.formats import nginx
from elf.agent.formats.fields import Convert, Escape, Field, is_text

_EMPTY = (b"-", b"")
_LEVELS = (b"ok", b"info", b"warn", b"error")
"""Values that some loggers write under "status"; the HTTP status is then under another key."""

Row = tuple[str, Convert, str]
"""(column, conversion, keys divided by spaces)"""

# Written by: bunyan and pino (req.*, res.*, responseTime), ECS (http.*, url.*, event.*), Google Cloud (httpRequest.*), Envoy and
# Istio (start_time, response_code, authority), Apache and nginx JSON templates, Echo, chi, zerolog, AWS API Gateway.
_GENERIC: tuple[Row, ...] = (
    (
        "time",
        Convert.TIME_ANY,
        "time @timestamp timestamp ts start_time StartUTC time_iso8601 time_local msec datetime requestTime eventTime",
    ),
    (
        "client_ip",
        Convert.HOST,
        "client_ip clientip clientIp client.ip source.ip client.address source.address remote_ip remoteIP remoteIp"
        " remote_addr remoteAddr remote_address remoteAddress downstream_remote_address httpRequest.remoteIp"
        " req.remoteAddress request.client_ip request.remote_ip request.remote_addr ClientHost remote_host client ip",
    ),
    (
        "user",
        Convert.STRING,
        "user user.name remote_user remoteUser username user_name userName ClientUsername",
    ),
    ("", Convert.REQUEST, "request request_line requestLine"),
    (
        "method",
        Convert.STRING,
        "method request_method requestMethod http.request.method http.method httpRequest.requestMethod req.method"
        " request.method httpMethod http_method verb RequestMethod",
    ),
    (
        "",
        Convert.URL,
        "request_uri requestUri url.original url.full httpRequest.requestUrl req.url request.url request.uri uri url"
        " http.url http.target",
    ),
    ("", Convert.URI, "path url.path request_path requestPath RequestPath http.path"),
    ("query", Convert.QUERY, "query url.query args query_string queryString"),
    (
        "protocol",
        Convert.STRING,
        "protocol server_protocol http.version httpRequest.protocol request.proto proto req.httpVersion RequestProtocol",
    ),
    (
        "status",
        Convert.STATUS,
        "status status_code statusCode http.response.status_code http.status_code httpRequest.status res.statusCode"
        " response.status response.status_code response.statusCode response_code responseCode DownstreamStatus",
    ),
    (
        "bytes",
        Convert.INT,
        "bytes body_bytes_sent bytes_sent bytesSent bytes_out http.response.body.bytes http.response.bytes"
        " httpRequest.responseSize response_size responseSize response_length responseLength response.size"
        " res.contentLength res.headers.content-length size DownstreamContentSize",
    ),
    (
        "referer",
        Convert.STRING,
        "referer referrer http_referer http.request.referrer httpRequest.referer req.headers.referer headers.referer"
        " request.headers.Referer.0 request_Referer",
    ),
    (
        "user_agent",
        Convert.STRING,
        "user_agent user_agent.original userAgent http_user_agent httpRequest.userAgent req.headers.user-agent"
        " headers.user-agent request.headers.User-Agent.0 useragent http.useragent agent ua request_User-Agent",
    ),
    (
        "request_time",
        Convert.SECONDS,
        "request_time duration_s duration_seconds elapsed_seconds latency_seconds",
    ),
    (
        "request_time",
        Convert.MILLISECONDS,
        "request_time_ms response_time_ms duration_ms latency_ms elapsed_ms took_ms time_taken_ms durationMs latencyMs"
        " elapsedMs responseTimeMs responseTime time_taken timeTaken",
    ),
    (
        "request_time",
        Convert.MICROSECONDS,
        "request_time_us response_time_us duration_us latency_us elapsed_us",
    ),
    ("request_time", Convert.NANOSECONDS, "event.duration duration_ns latency_ns elapsed_ns Duration"),
    ("request_time", Convert.DURATION, "httpRequest.latency latency_human latency response_time"),
    ("request_time", Convert.DURATION_MS, "duration elapsed took"),
    (
        "host",
        Convert.HOST,
        "host http_host server_name vhost virtual_host authority url.domain request.host req.headers.host RequestHost domain",
    ),
    ("upstream_response_time", Convert.SECONDS_LIST, "upstream_response_time"),
    ("upstream_response_time", Convert.MILLISECONDS, "upstream_service_time"),
    ("upstream_response_time", Convert.NANOSECONDS, "OriginDuration"),
    ("scheme", Convert.STRING, "scheme url.scheme request.scheme RequestScheme"),
    (
        "request_length",
        Convert.INT,
        "request_length bytes_received bytes_in http.request.bytes http.request.body.bytes httpRequest.requestSize"
        " request_size requestSize",
    ),
    ("request_id", Convert.STRING, "request_id requestId req.id reqId http.request.id x_request_id id"),
    ("level", Convert.STRING, "level severity log.level lvl"),
    ("message", Convert.STRING, "message msg"),
)

# https://caddyserver.com/docs/logging: logged when the response is written. A status of 0 means that no response was.
_CADDY: tuple[Row, ...] = (
    ("time", Convert.TIME_ANY, "ts time timestamp"),
    ("client_ip", Convert.HOST, "request.client_ip request.remote_ip request.remote_addr"),
    ("user", Convert.STRING, "user_id"),
    ("method", Convert.STRING, "request.method"),
    ("", Convert.URI, "request.uri"),
    ("protocol", Convert.STRING, "request.proto"),
    ("status", Convert.STATUS, "status"),
    ("bytes", Convert.INT, "size"),
    ("referer", Convert.STRING, "request.headers.Referer.0"),
    ("user_agent", Convert.STRING, "request.headers.User-Agent.0"),
    ("request_time", Convert.DURATION, "duration"),
    ("host", Convert.HOST, "request.host"),
    ("bytes_read", Convert.INT, "bytes_read"),
    ("remote_port", Convert.INT, "request.remote_port"),
    ("server_name", Convert.STRING, "request.tls.server_name"),
    ("http_x_forwarded_for", Convert.STRING, "request.headers.X-Forwarded-For.0"),
    ("content_type", Convert.STRING, "resp_headers.Content-Type.0"),
    ("logger", Convert.STRING, "logger"),
    ("level", Convert.STRING, "level"),
    ("message", Convert.STRING, "msg"),
)

# https://doc.traefik.io/traefik/observability/access-logs/#available-fields; durations are nanoseconds.
_TRAEFIK: tuple[Row, ...] = (
    ("time", Convert.TIME_ANY, "StartUTC StartLocal time"),
    ("client_ip", Convert.HOST, "ClientHost ClientAddr"),
    ("user", Convert.STRING, "ClientUsername"),
    ("method", Convert.STRING, "RequestMethod"),
    ("", Convert.URI, "RequestPath"),
    ("protocol", Convert.STRING, "RequestProtocol"),
    ("status", Convert.STATUS, "DownstreamStatus"),
    ("bytes", Convert.INT, "DownstreamContentSize"),
    ("referer", Convert.STRING, "request_Referer"),
    ("user_agent", Convert.STRING, "request_User-Agent"),
    ("request_time", Convert.NANOSECONDS, "Duration"),
    ("host", Convert.HOST, "RequestHost RequestAddr"),
    ("upstream_response_time", Convert.NANOSECONDS, "OriginDuration"),
    ("scheme", Convert.STRING, "RequestScheme"),
    ("request_length", Convert.INT, "RequestContentSize"),
    ("overhead", Convert.NANOSECONDS, "Overhead"),
    ("origin_status", Convert.STATUS, "OriginStatus"),
    ("origin_bytes", Convert.INT, "OriginContentSize"),
    ("router", Convert.STRING, "RouterName"),
    ("service", Convert.STRING, "ServiceName"),
    ("server", Convert.STRING, "ServiceURL.Host ServiceAddr ServiceURL"),
    ("entry_point", Convert.STRING, "entryPointName"),
    ("request_count", Convert.INT, "RequestCount"),
    ("retries", Convert.INT, "RetryAttempts"),
    ("request_id", Convert.STRING, "request_X-Request-Id"),
    ("http_x_forwarded_for", Convert.STRING, "request_X-Forwarded-For"),
    ("tls_version", Convert.STRING, "TLSVersion"),
    ("tls_cipher", Convert.STRING, "TLSCipher"),
    ("level", Convert.STRING, "level"),
)

# http://ltsv.org#labels; then nginx's variables, which many write as labels.
_LTSV: tuple[Row, ...] = (
    ("time", Convert.TIME_ANY, "time time_iso8601 time_local msec"),
    ("client_ip", Convert.STRING, "host remote_addr remote_host remote_ip client_ip"),
    ("user", Convert.STRING, "user remote_user"),
    ("ident", Convert.STRING, "ident"),
    ("", Convert.REQUEST, "req request"),
    ("method", Convert.STRING, "method request_method"),
    ("", Convert.URI, "uri request_uri path"),
    ("query", Convert.QUERY, "query args"),
    ("protocol", Convert.STRING, "protocol server_protocol"),
    ("status", Convert.STATUS, "status"),
    ("bytes", Convert.SIZE, "size body_bytes_sent bytes_sent"),
    ("referer", Convert.STRING, "referer http_referer"),
    ("user_agent", Convert.STRING, "ua user_agent http_user_agent"),
    ("request_time", Convert.MICROSECONDS, "reqtime_microsec"),
    ("request_time", Convert.SECONDS, "reqtime request_time"),
    ("host", Convert.HOST, "vhost http_host server_name"),
    ("upstream_response_time", Convert.SECONDS_LIST, "apptime upstream_response_time"),
    ("scheme", Convert.STRING, "scheme"),
    ("request_length", Convert.INT, "reqsize request_length"),
    ("http_x_forwarded_for", Convert.STRING, "forwardedfor http_x_forwarded_for"),
    ("cache", Convert.STRING, "cache"),
    ("runtime", Convert.SECONDS, "runtime"),
    ("request_id", Convert.STRING, "reqid request_id"),
)
_LOGFMT_FIRST: tuple[Row, ...] = (
    ("time", Convert.TIME_ANY, "time ts t timestamp"),
    ("request_id", Convert.STRING, "request_id"),
)


def _fields(rows: Iterable[Row], escape: Escape) -> tuple[Field, ...]:
    """Fields in the table's order; a key that occurs twice keeps its first meaning."""
    out: dict[str, Field] = {}
    for column, convert, names in rows:
        for name in names.split():
            nulls: tuple[bytes, ...] = (*_EMPTY, *_LEVELS) if convert is Convert.STATUS else _EMPTY
            if convert is Convert.SIZE:  # ltsv.org: Apache's %b, which is - for 0
                nulls = (b"",)
            out.setdefault(
                name,
                Field(name, convert, column, nulls=nulls, escape=escape if is_text(convert) else Escape.NONE),
            )
    return tuple(out.values())


_NGINX_TEXT = (
    "request_id http_x_forwarded_for http_x_request_id http_cookie content_type content_length hostname nginx_version"
    " server_addr ssl_protocol ssl_cipher ssl_session_reused upstream_addr upstream_status upstream_cache_status"
    " upstream_response_length upstream_bytes_sent upstream_bytes_received gzip_ratio pipe request_completion"
    " sent_http_content_type geoip_country_code"
)


def _nginx_fields() -> tuple[Field, ...]:
    """Every variable under its own name as key, the canonical ones first; then what the generic table knows besides."""
    names = [name for variables in nginx.CANONICAL.values() for name, _ in variables]
    fields = {name: nginx.variable(name, Escape.JSON).field for name in names}
    for name in ("uri", "document_uri"):  # as a key, often the name of $request_uri
        fields[name] = Field(name, Convert.URI, nulls=_EMPTY, escape=Escape.JSON)
    others = (*nginx.OWN, *_NGINX_TEXT.split())
    fields.update({n: nginx.variable(n, Escape.JSON).otherwise for n in others if n not in fields})
    for field in GENERIC:
        fields.setdefault(field.name, field)
    return tuple(fields.values())


def _statuses_of_none(fields: Iterable[Field]) -> tuple[Field, ...]:
    """The fields of a writer whose status 0 says that there was no response."""
    return tuple(
        msgspec.structs.replace(f, nulls=(b"0", *_EMPTY)) if f.convert is Convert.STATUS else f
        for f in fields
    )


GENERIC = _fields(_GENERIC, Escape.JSON)
CADDY = _statuses_of_none(_fields(_CADDY, Escape.JSON))
TRAEFIK = _statuses_of_none(_fields(_TRAEFIK, Escape.JSON))
LTSV = _fields(_LTSV, Escape.BACKSLASH)
LOGFMT = _fields((*_LOGFMT_FIRST, *_GENERIC), Escape.BACKSLASH)
NGINX = _nginx_fields()
