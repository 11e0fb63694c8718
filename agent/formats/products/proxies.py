"""Proxies and caches."""

from __future__ import annotations

from typing import Any

from elf.agent.formats.products.servers import NGINX

_HAPROXY_COUNTS = (
    "{actconn:int}/{feconn:int}/{beconn:int}/{srv_conn:int}/{retries:int} {srv_queue:int}/{backend_queue:int}"
)

TABLES: dict[str, dict[str, Any]] = {
    "envoy": {
        "summary": "Envoy's default access log",
        "source": "https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage",
        "line": '[{time:iso}] "{request}" {status:status=0} {response_flags} {request_length} {bytes} {request_time:ms}'
        ' {upstream_response_time:ms} "{http_x_forwarded_for}" "{user_agent}" "{request_id}" "{host:host}" "{upstream_addr}"',
        "escape": "none",
        "time_is": "start",
    },
    "istio": {
        "summary": "Istio's sidecars and gateways, with the default access log",
        "source": "https://istio.io/latest/docs/tasks/observability/logs/access-log/",
        "line": '[{time:iso}] "{request}" {status:status=0} {response_flags} {response_code_details}'
        ' {connection_termination_details} "{upstream_transport_failure_reason}" {request_length} {bytes} {request_time:ms}'
        ' {upstream_response_time:ms} "{http_x_forwarded_for}" "{user_agent}" "{request_id}" "{host:host}" "{upstream_addr}"'
        " {upstream_cluster} {upstream_local_address} {downstream_local_address} {client_ip:host_port} {requested_server_name}"
        " {route_name}",
        "escape": "none",
        "time_is": "start",
    },
    "istio_18": {
        "summary": "Istio 1.5 to 1.8, with the default access log of these versions",
        "source": "https://istio.io/v1.8/docs/tasks/observability/logs/access-log/",
        "line": '[{time:iso}] "{request}" {status:status=0} {response_flags} "{upstream_transport_failure_reason}"'
        ' {request_length} {bytes} {request_time:ms} {upstream_response_time:ms} "{http_x_forwarded_for}" "{user_agent}"'
        ' "{request_id}" "{host:host}" "{upstream_addr}" {upstream_cluster} {upstream_local_address}'
        " {downstream_local_address} {client_ip:host_port}"
        " {requested_server_name} {route_name}",
        "escape": "none",
        "time_is": "start",
    },
    "haproxy_tcp": {
        "summary": "HAProxy's `option tcplog`, with or without a syslog prefix",
        "source": "https://docs.haproxy.org/3.0/configuration.html#8.2.2",
        "line": "{client_ip:host_port} [{time:clf}] {frontend} {backend=<NOSRV>}/{server=<NOSRV>} {queue_time:ms=-1}/"
        "{connect_time:ms=-1}/{request_time:ms=-1} {bytes:int} {termination_state} " + _HAPROXY_COUNTS,
        "skip_to": "]: ",
        "like": r'.*\] [^ "]+ ',
        "zone": False,
        "time_is": "start",
    },
    "squid": {
        "summary": "Squid's native access.log",
        "source": "https://wiki.squid-cache.org/Features/LogFormat",
        "regex": r"(?P<time>[0-9]+\.[0-9]+) +(?P<request_time_ms>-?[0-9]+) (?P<client_ip>\S+) (?P<cache_result>[A-Z_]+)/"
        r"(?P<status>[0-9]{3}) (?P<bytes>[0-9]+) (?P<method>\S+) (?P<url>\S+) (?P<user>\S+) (?P<hierarchy>[A-Z_]+)/"
        r"(?P<peer>\S+) (?P<content_type>\S+)",
        "types": {"time": "epoch", "status": "status=000", "url": "url"},
        "has": (".", " ", "/", " ", "/"),
        "like": r"[0-9]{9,10}\.[0-9]{3} ",
    },
    "varnish": {
        "summary": "varnishncsa: combined with the whole URL in the request",
        "source": "https://varnish-cache.org/docs/trunk/reference/varnishncsa.html",
        "line": '{client_ip} {ident} {user} [{time:clf}] "{request:request_url}" {status} {bytes} "{referer}" "{user_agent}"',
        "time_is": "start",
        "like": r'\S+ \S+ .*?\] "[A-Z]+ https?://',
    },
    "kong": {
        "summary": "Kong's proxy access log: combined and the request's id (that of older versions is `combined`)",
        "source": "https://github.com/Kong/kong/blob/master/kong/templates/nginx_kong.lua",
        "nginx": f'{NGINX} kong_request_id: "$request_id"',
    },
    "kong_json": {
        "summary": "Kong's File Log plugin, and others that write its log serializer's JSON",
        "source": "https://developer.konghq.com/plugins/file-log/",
        "json": {
            "time:epoch_ms": "started_at",
            "client_ip": "client_ip",
            "user": "consumer.username",
            "method": "request.method",
            ":url": "request.url request.request_uri request.uri",
            "status": "response.status",
            "bytes": "response.size",
            "request_length": "request.size",
            "referer": "request.headers.referer",
            "user_agent": "request.headers.user-agent",
            "http_x_forwarded_for": "request.headers.x-forwarded-for",
            "request_time:ms": "latencies.request",
            "upstream_response_time:ms=-1": "latencies.proxy",
            "kong_time:ms": "latencies.kong",
            "request_id": "request.id",
            "service": "service.name",
            "route": "route.name",
            "upstream_uri": "upstream_uri",
            "upstream_status": "upstream_status",
        },
        "keys": "latencies started_at upstream_uri tries workspace authenticated_entity",
        "time_is": "start",
    },
    "caddy_text": {
        "summary": "Caddy's access log in the form of its console (`format console`)",
        "source": "https://caddyserver.com/docs/caddyfile/directives/log#console",
        "regex": r"(?P<time>[0-9/]{10} [0-9:.]{12})\t(?:\x1b\[[0-9]+m)?(?P<level>[A-Z]+)(?:\x1b\[0m)?\t(?P<logger>\S+)\t"
        r'(?P<message>[^\t]*)\t\{"request": \{"remote_ip": "(?P<remote_ip>[^"]*)", "remote_port": "[0-9]*", '
        r'(?:"client_ip": "(?P<client_ip>[^"]*)", )?"proto": "(?P<protocol>[^"]*)", "method": "(?P<method>[^"]*)", '
        r'"host": "(?P<host>[^"]*)", "uri": "(?P<uri>(?:[^"\\]|\\.)*)", .*[^\\]"duration": (?P<request_time>[0-9.e-]+), '
        r'"size": (?P<bytes>[0-9]+), "status": (?P<status>[0-9]+)[,}].*',
        "has": ("\t", "\t", "\t", '\t{"request": {"remote_ip": "', '"duration": '),
        "types": {"time": "%Y/%m/%d %H:%M:%S.%f", "host": "host", "status": "status=0"},
        "escape": "json",
    },
}
