"""Servers' error logs, whose lines have a level and a message, and those of a request also its client."""

from __future__ import annotations

from typing import Any

TABLES: dict[str, dict[str, Any]] = {
    "nginx_error": {
        "summary": "nginx's error log",
        "source": "https://nginx.org/en/docs/ngx_core_module.html#error_log",
        "regex": r"(?P<time>[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9:]{8}) \[(?P<level>[a-z]+)\] (?P<pid>[0-9]+)#(?P<tid>[0-9]+): "
        r"(?:\*(?P<connection>[0-9]+) )?(?P<message>.*?)"
        r"(?:, client: (?P<client_ip>[0-9A-Fa-f.:]+|unix:)(?:, server: (?P<server_name>[^,]*))?"
        r'(?:, request: "(?P<request>.*?)")?(?:, subrequest: "(?P<subrequest>[^"]*)")?(?:, upstream: "(?P<upstream>[^"]*)")?'
        r'(?:, host: "(?P<host>[^"]*)")?(?:, referrer: "(?P<referer>[^"]*)")?)?',
        "has": ("/", "/", " ", ":", " [", "] ", "#", ": "),
        "types": {
            "time": "%Y/%m/%d %H:%M:%S",
            "pid": "int",
            "tid": "int",
            "connection": "int",
            "host": "host",
        },
    },
    "apache_error": {
        "summary": "Apache's error log (2.4)",
        "source": "https://httpd.apache.org/docs/2.4/mod/core.html#errorlogformat",
        "regex": r"\[(?P<time>[A-Z][a-z]{2} [A-Z][a-z]{2} [0-9]{2} [0-9:]{8}\.[0-9]{6} [0-9]{4})\]"
        r" \[(?P<module>\w*):(?P<level>\w+)\] \[pid (?P<pid>[0-9]+)(?::tid (?P<tid>[0-9]+))?\] "
        r"(?:(?P<source>[\w.]+\([0-9]+\)): )?"
        r"(?:(?P<error>\([0-9]+\)[^:]*): )?(?:\[(?:client|remote) (?P<client_ip>[^\]\s]+?)(?::[0-9]+)?\] )?"
        r"(?:(?P<code>AH[0-9]{5,6}): )?(?P<message>.*?)(?:, referer: (?P<referer>.*))?",
        "has": ("[", "] [", ":", "] [pid ", "] "),
        "types": {"time": "%a %b %d %H:%M:%S.%f %Y", "pid": "int", "tid": "int"},
    },
    "apache_error_22": {
        "summary": "Apache's error log before 2.4",
        "source": "https://httpd.apache.org/docs/2.2/logs.html#errorlog",
        "regex": r"\[(?P<time>[A-Z][a-z]{2} [A-Z][a-z]{2} [0-9]{2} [0-9:]{8} [0-9]{4})\] \[(?P<level>\w+)\] "
        r"(?:\[client (?P<client_ip>[^\]]+)\] )?(?P<message>.*?)(?:, referer: (?P<referer>\S*))?",
        "has": ("[", "] [", "] "),
        "like": r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} ",
        "types": {"time": "%a %b %d %H:%M:%S %Y"},
    },
}
