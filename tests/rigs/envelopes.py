"""Puts lines into envelopes as their writers do; each wrapped line with the values that its envelope's columns must have."""

from __future__ import annotations

import json
from itertools import pairwise

KINDS = ("cri", "syslog", "kubectl", "compose", "stern", "docker", "journald", "json")
MAY_US = 1431857104_500_000
"""2015-05-17T10:05:04.5Z"""

COLUMNS: dict[str, dict[str, object]] = {
    "cri": {"log_time": MAY_US, "stream": "stdout"},
    "syslog": {"log_time": MAY_US - 500_000, "log_host": "web1", "program": "nginx"},
    "kubectl": {"log_time": MAY_US, "log_host": "web-7fb96c846b-x2k4p", "container": "nginx"},
    "compose": {"log_time": None, "container": "nginx_1"},
    "stern": {"log_time": None, "log_host": "web-7fb96c846b-x2k4p", "container": "nginx"},
    "docker": {"log_time": MAY_US, "stream": "stdout"},
    "journald": {"log_time": MAY_US, "log_host": "web1", "program": "nginx", "container": None},
    "json": {"log_time": MAY_US, "log_host": "web1", "program": None, "container": "nginx", "stream": None},
}
"""Of each kind, what `wrap` puts around a line. The time of syslog is read in UTC and in the year of the line's own time."""

_PREFIX = {
    "cri": b"2015-05-17T10:05:04.5Z stdout F ",
    "syslog": b"May 17 10:05:04 web1 nginx[812]: ",
    "kubectl": b"[pod/web-7fb96c846b-x2k4p/nginx] 2015-05-17T10:05:04.500000000Z ",
    "compose": b"nginx_1  | ",
    "stern": b"web-7fb96c846b-x2k4p nginx ",
}


def wrap(kind: str, line: bytes) -> bytes:
    """The line in its envelope, without a newline. JSON holds text, so its lines must be UTF-8; journald writes bytes as well."""
    if kind in _PREFIX:
        return _PREFIX[kind] + line
    if kind == "docker":
        return docker(line.decode() + "\n")
    if kind == "journald":
        try:
            message: object = line.decode()
        except UnicodeDecodeError:
            message = list(line)
        fields = {
            "_HOSTNAME": "web1",
            "SYSLOG_IDENTIFIER": "nginx",
            "__REALTIME_TIMESTAMP": str(MAY_US),
            "PRIORITY": "6",
        }
        return json.dumps({**fields, "MESSAGE": message}, ensure_ascii=False).encode()
    outer = {
        "@timestamp": "2015-05-17T10:05:04.500Z",
        "host": {"name": "web1"},
        "container": {"name": "nginx"},
    }
    return json.dumps({**outer, "message": line.decode(), "tags": ["a", {"b": 1}]}).encode()


def docker(text: str, stream: str = "stdout") -> bytes:
    """A line of docker's json-file driver; a part of a line if the text does not end with a newline."""
    found = {"log": text, "stream": stream, "time": "2015-05-17T10:05:04.5Z"}
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()


def parts(kind: str, line: bytes, cuts: list[int], stream: str = "stdout") -> list[bytes]:
    """The line as the runtime writes it in parts, cut at these places. ASCII."""
    places = [0, *sorted(cuts), len(line)]
    texts = [line[start:end] for start, end in pairwise(places)]
    if kind == "cri":
        tags = [b"P"] * (len(texts) - 1) + [b"F"]
        stamp = b"2015-05-17T10:05:04.5Z " + stream.encode()
        return [stamp + b" " + tag + b" " + text for tag, text in zip(tags, texts, strict=True)]
    return [
        docker(text.decode() + ("\n" if at == len(texts) - 1 else ""), stream)
        for at, text in enumerate(texts)
    ]
