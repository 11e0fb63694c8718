"""Writes combined log lines for the benchmarks: the same bytes for the same arguments, on every machine.

    python benchmarks/generate.py LINES FILE [--seed 1]

A shop's traffic: 20,000 paths by Zipf's law, half of the lines from an address that occurs once and half from a pool of
50,000, a thousand lines a second with neighbours out of order by up to two seconds.
"""

from __future__ import annotations

import argparse
import random
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path

PATHS = 20_000
ADDRESSES = 50_000
LINES_PER_SECOND = 1000
START = 1_736_899_200  # 2025-01-15 00:00:00 UTC
STATUSES = ([200] * 86 + [304] * 6 + [404] * 4 + [301] * 2 + [500, 502], 100)
WORDS = [
    "shoe",
    "shirt",
    "lamp",
    "chair",
    "phone",
    "cable",
    "watch",
    "table",
    "mouse",
    "clock",
    "brush",
    "glove",
    "scarf",
    "bottle",
    "mirror",
    "candle",
]


def paths(rng: random.Random) -> list[str]:
    """Distinct paths, most popular first."""
    out = [
        "/",
        "/cart",
        "/login",
        "/api/cart",
        "/api/search",
        "/static/app.js",
        "/static/app.css",
        "/favicon.ico",
    ]
    while len(out) < PATHS:
        n = len(out)
        word = rng.choice(WORDS)
        shape = rng.randrange(5)
        if shape == 0:
            out.append(f"/product/{word}-{n}")
        elif shape == 1:
            out.append(f"/category/{word}/page/{n}")
        elif shape == 2:
            out.append(f"/api/v1/items/{n}/reviews")
        elif shape == 3:
            out.append(f"/images/{word}/{n:06x}-large.jpg")
        else:
            out.append(f"/search/{word}/{n}?sort=price&page={n % 9}")
    return out


def user_agents(rng: random.Random) -> list[str]:
    systems = [
        "Windows NT 10.0; Win64; x64",
        "Macintosh; Intel Mac OS X 10_15_7",
        "X11; Linux x86_64",
        "iPhone; CPU iPhone OS 17_4 like Mac OS X",
        "Linux; Android 14; Pixel 8",
    ]
    return [
        f"Mozilla/5.0 ({rng.choice(systems)}) AppleWebKit/537.36 (KHTML, like Gecko) "
        f"Chrome/{rng.randrange(90, 131)}.0.{rng.randrange(1000, 7000)}.{rng.randrange(10, 200)} Safari/537.36"
        for _ in range(400)
    ]


def write(lines: int, target: Path, seed: int = 1) -> None:
    """Write `lines` lines to `target`, about 230 bytes each. O(lines), roughly half a million lines a second."""
    rng = random.Random(seed)
    all_paths, agents = paths(rng), user_agents(rng)
    weights = list(accumulate(1 / (rank + 10) ** 1.05 for rank in range(PATHS)))
    pool = [_address(rng.getrandbits(32)) for _ in range(ADDRESSES)]
    referers = ["-", *(f"https://www.shop.example{path}" for path in all_paths[:2000])]
    block = 50_000
    with target.open("w", encoding="ascii", newline="\n") as out:
        for at in range(0, lines, block):
            n = min(block, lines - at)
            chosen = rng.choices(all_paths, cum_weights=weights, k=n)
            codes = rng.choices(STATUSES[0], k=n)
            agent = rng.choices(agents, k=n)
            referer = rng.choices(referers, k=n)
            text = []
            for i in range(n):
                number = at + i
                # A bijection of the line number: an address that occurs once.
                address = (
                    _address(number * 2_654_435_761 + 12345)
                    if number & 1
                    else pool[int(rng.random() * ADDRESSES)]
                )
                second = number // LINES_PER_SECOND - (2 if number % 97 == 0 else 0)
                size = 0 if codes[i] == 304 else int(200 / (rng.random() + 0.002))
                text.append(
                    f'{address} - - [{_time(START + second)}] "GET {chosen[i]} HTTP/1.1" {codes[i]} {size} '
                    f'"{referer[i]}" "{agent[i]}"\n'
                )
            out.write("".join(text))


def _address(bits: int) -> str:
    return f"{bits >> 24 & 255}.{bits >> 16 & 255}.{bits >> 8 & 255}.{bits & 255}"


_times: dict[int, str] = {}


def _time(second: int) -> str:
    known = _times.get(second)
    if known is None:
        known = _times[second] = datetime.fromtimestamp(second, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    return known


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lines", type=int)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    write(arguments.lines, arguments.file, arguments.seed)
