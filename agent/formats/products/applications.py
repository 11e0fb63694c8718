"""Application servers and platforms."""

from __future__ import annotations

from typing import Any

from elf.agent.formats.products.servers import GUNICORN

TABLES: dict[str, dict[str, Any]] = {
    "uvicorn": {
        "summary": "uvicorn's access lines behind a time, as `%(asctime)s %(levelprefix)s …` writes (its default has no time)",
        "source": "https://www.uvicorn.org/settings/#logging",
        "regex": r"\[?(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:]{8})(?:[.,][0-9]+)?\]?(?: -)? (?P<level>[A-Z]+)(?:: +| +- | )"
        r'(?:uvicorn\.access(?: -|:) )?(?P<client_ip>[0-9A-Fa-f.:\[\]]+):[0-9]+ - "(?P<request>[^"]*)" (?P<status>[0-9]{3})'
        r"(?: [A-Za-z' -]+)?",
        "has": (' - "', '" '),
        "like": r"\[?[0-9]{4}-",
        "types": {"time": "time"},
    },
    "gunicorn": {
        "summary": "gunicorn's access log: the same as `combined`",
        "source": "https://docs.gunicorn.org/en/stable/settings.html#access-log-format",
        "line": GUNICORN,
        "detected": False,
    },
    "heroku": {
        "summary": "Heroku's router, from `heroku logs`",
        "source": "https://devcenter.heroku.com/articles/http-routing#heroku-router-log-format",
        "regex": r"(?P<time>[0-9T:.+-]{19,32}) heroku\[router\]: at=(?P<at>\w+)"
        r'(?: code=(?P<code>H[0-9]+) desc="(?P<message>[^"]*)")?'
        r' method=(?P<method>\S+) path="(?P<uri>.*)" host=(?P<host>\S+) request_id=(?P<request_id>\S+)'
        r' fwd="(?P<client_ip>[^",]*)(?:, ?(?P<forwarders>[^"]*))?" dyno=(?P<dyno>\S*) connect=(?P<connect_time>[0-9]*)(?:ms)?'
        r" service=(?P<request_time_ms>[0-9]*)(?:ms)? status=(?P<status>[0-9]{3}) bytes=(?P<bytes>[0-9]*)"
        r"(?: protocol=(?:(?P<scheme>https?)|(?P<protocol>http[0-9.]+)))?(?: tls=(?P<tls>\w+))?(?: .*)?",
        "has": (" heroku[router]: at=",),
        "types": {"time": "iso", "connect_time": "ms"},
    },
    "gitlab": {
        "summary": "GitLab's production_json.log and api_json.log",
        "source": "https://docs.gitlab.com/administration/logs/",
        "json": {
            "time:iso": "time",
            "client_ip": "remote_ip",
            "user": "username",
            "user_id:int": "user_id",
            "controller": "controller",
            "action": "action",
            "route": "route",
            "db_time:seconds": "db_duration_s",
            "view_time:seconds": "view_duration_s",
            "gitaly_time:seconds": "gitaly_duration_s",
            "redis_time:seconds": "redis_duration_s",
            "queue_time:seconds": "queue_duration_s",
            "cpu_time:seconds": "cpu_s",
            "request_id": "correlation_id",
        },
        "keys": "controller route queue_duration_s gitaly_calls db_duration_s view_duration_s gitaly_duration_s queue_duration",
    },
    "modsecurity": {
        "summary": "ModSecurity's concurrent audit log: its index, one line for each transaction",
        "source": "https://github.com/owasp-modsecurity/ModSecurity/wiki/ModSecurity-2-Data-Formats",
        "line": '{host} {client_ip} {user} {local_user} [{time:clf}] "{request}" {status} {bytes} "{referer}" "{user_agent}"'
        ' {request_id} "{session_id}" {audit_file} {audit_offset:int} {audit_bytes:int} {audit_hash}',
    },
    "modsecurity_json": {
        "summary": "ModSecurity 3's audit log as JSON (`SecAuditLogFormat JSON`)",
        "source": "https://github.com/owasp-modsecurity/ModSecurity/wiki/Reference-Manual-(v3.x)#SecAuditLogFormat",
        "json": {
            "time:%a %b %d %H:%M:%S %Y": "transaction.time_stamp",
            "client_ip": "transaction.client_ip",
            "client_port:int": "transaction.client_port",
            "server_addr": "transaction.host_ip",
            "server_port:int": "transaction.host_port",
            "request_id": "transaction.unique_id",
            "method": "transaction.request.method",
            ":uri": "transaction.request.uri",
            "protocol": "transaction.request.http_version",
            "host:host": "transaction.request.headers.Host transaction.request.headers.host",
            "user_agent": "transaction.request.headers.User-Agent transaction.request.headers.user-agent",
            "status:status=0": "transaction.response.http_code",
            "message": "transaction.messages.0.message",
            "rule_id": "transaction.messages.0.details.ruleId",
            "level": "transaction.messages.0.details.severity",
        },
        "keys": "transaction",
        "zone": False,
    },
}
