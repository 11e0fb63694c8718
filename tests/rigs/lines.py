"""Log lines for tests, made from a seed, and an independent reading of them: one regular expression, no kernel."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime
from typing import Any

COMBINED_TIME = re.compile(
    r'^(?P<client_ip>\S+) (?P<ident>\S+) (?P<user>\S+) \[(?P<time>[^\]]+)\] "(?P<request>(?:[^"\\]|\\.)*)" '
    r'(?P<status>\d{3}) (?P<bytes>\d+|-) "(?P<referer>(?:[^"\\]|\\.)*)" "(?P<user_agent>(?:[^"\\]|\\.)*)"'
    r"(?: (?P<request_time>\d+\.\d{3}|-))?$"
)

NGINX_FORMAT = (
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
    '"$http_referer" "$http_user_agent" $request_time'
)

START = 1_431_857_103  # 17/May/2015:10:05:03 +0000
PATHS = [
    "/",
    "/a",
    "/api/items",
    "/api/items/7",
    "/API/Mixed",
    "/über",
    "/a b".replace(" ", "%20"),
    "/x.png",
    "/static/app.js",
]
AGENTS = [
    "Mozilla/5.0 (X11; Linux)",
    "curl/8.0",
    "-",
    'odd \\"quoted\\" agent',
    "bot/1.0 (+http://bot.example)",
]


def line(rng: random.Random, second: int, *, with_time: bool = True) -> str:
    """One line that parses."""
    path = rng.choice(PATHS)
    query = rng.choice(["", "", "?q=1", "?q=shoe&page=2", "?"])
    request = f"{rng.choice(['GET', 'POST', 'HEAD'])} {path}{query} HTTP/1.1" if rng.random() > 0.03 else "-"
    stamp = datetime.fromtimestamp(second, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    size = "-" if rng.random() < 0.05 else str(int(100 / (rng.random() + 0.001)))
    address = f"10.0.{rng.randrange(3)}.{rng.randrange(40)}"
    user = rng.choice(["-", "-", "ann", "bob"])
    referer = rng.choice(["-", "http://shop.example/a?b=c#d", "https://u:p@shop.example:8443/x/y"])
    text = (
        f'{address} - {user} [{stamp}] "{request}" {rng.choice([200, 200, 200, 304, 404, 500, 503])} {size} '
        f'"{referer}" "{rng.choice(AGENTS)}"'
    )
    took = f"{rng.randrange(4000) / 1000:.3f}" if with_time else ""
    return f"{text} {'-' if size == '-' else took}" if with_time else text


def lines(
    n: int,
    seed: int,
    *,
    seconds: int = 120,
    disorder: int = 5,
    with_time: bool = True,
    start: int = START,
) -> list[str]:
    """`n` lines over `seconds` from `start` on, neighbours out of order by up to `disorder` seconds."""
    rng = random.Random(seed)
    return [
        line(rng, start + i * seconds // n - rng.randrange(disorder + 1), with_time=with_time)
        for i in range(n)
    ]


def records(log: list[str]) -> list[dict[str, Any]]:
    """What the lines say, by the canonical columns; times in microseconds, request_time as text of seconds."""
    out = []
    for text in log:
        match = COMBINED_TIME.match(text)
        assert match is not None, text
        fields: dict[str, Any] = {
            name: None if value == "-" else value for name, value in match.groupdict().items()
        }
        for name in ("referer", "user_agent"):
            if fields[name] is not None:
                fields[name] = fields[name].replace('\\"', '"')
        stamp = datetime.strptime(match["time"], "%d/%b/%Y:%H:%M:%S %z")
        fields["time"] = int(stamp.timestamp()) * 1_000_000
        request = re.fullmatch(r"([A-Z]+) (\S+) (HTTP/\S+)", fields.pop("request") or "")
        uri = request[2] if request else None
        path, mark, query = (uri or "").partition("?")
        fields.update(
            method=request[1] if request else None,
            path=path if uri is not None else None,
            query=query if mark else None,
            protocol=request[3] if request else None,
            status=int(fields["status"]),
            bytes=int(fields["bytes"] or 0),
        )
        del fields["ident"]
        out.append(fields)
    return out
