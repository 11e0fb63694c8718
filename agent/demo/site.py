"""The demo's web site: files of real sizes, and a schedule of visits whose mix looks like a day. Pure but for `build`."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

PRODUCTS = 80
IMAGES = 24
RATE_MEAN = 160.0
"""Requests a second, averaged over the day that the demo plays."""

LOG_FORMAT = (
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
    '"$http_referer" "$http_user_agent" $request_time'
)
"""nginx's combined, and how long each request took."""

BROWSERS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148",
)
BOTS = ("Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)", "curl/8.5.0")
SCANNED = ("/wp-login.php", "/.env", "/phpmyadmin/", "/admin.php")
WORDS = ("boots", "red+scarf", "caf%C3%A9", "lamp", "%22quoted%22", "tent")


class Visit(msgspec.Struct, frozen=True):
    """One request. at: seconds after the start. known: the visitor has it cached and asks whether it changed."""

    at: float
    method: str
    target: str
    client: str
    agent: str
    referer: str = "-"
    known: bool = False


def build(folder: Path) -> None:
    """Write the site's files below `folder`."""
    rng = random.Random(7)
    files = {"index.html": 9_000, "cart.html": 6_000, "robots.txt": 64}
    files |= {"assets/app.css": 31_000, "assets/app.js": 94_000}
    files |= {f"products/{n}.html": rng.randrange(4_000, 16_000) for n in range(1, PRODUCTS + 1)}
    files |= {f"images/{n}.jpg": rng.randrange(15_000, 120_000) for n in range(1, IMAGES + 1)}
    for name, size in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


def rate(share: float) -> float:
    """Requests a second at `share` (0 to 1) of the day: quiet at night, busy at noon, busiest in the evening."""
    hour = share * 24
    noon = math.exp(-(((hour - 12.5) / 3.5) ** 2))
    evening = 1.3 * math.exp(-(((hour - 20.0) / 2.2) ** 2))
    return RATE_MEAN * (0.25 + 1.45 * (noon + evening))


def visits(seed: int, seconds: float) -> Iterator[Visit]:
    """The requests of one played day of `seconds`, in time order; the same for the same seed."""
    rng = random.Random(seed)
    at = 0.0
    while (at := at + rng.expovariate(rate(at / seconds))) < seconds:
        yield _visit(rng, at)


def _visit(rng: random.Random, at: float) -> Visit:
    kind = rng.random()
    client = f"198.51.{rng.randrange(100, 104)}.{min(254, 1 + int(rng.paretovariate(0.8)))}"
    browser = rng.choice(BROWSERS)
    if kind < 0.04:
        return Visit(at, "GET", rng.choice(SCANNED), f"203.0.113.{rng.randrange(1, 9)}", BOTS[1])
    if kind < 0.09:
        return Visit(at, "GET", f"/products/{rng.randrange(1, PRODUCTS + 4)}", "192.0.2.66", BOTS[0])
    if kind < 0.12:
        target = "/api/pay?declined=1" if rng.random() < 0.2 else "/api/pay"
        return Visit(at, "POST", target, client, browser, "https://shop.example/cart")
    if kind < 0.18:
        return Visit(at, "GET", f"/search?q={rng.choice(WORDS)}", client, browser)
    return Visit(at, "GET", _page(rng), client, browser, "https://shop.example/", known=rng.random() < 0.15)


def _page(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.16:
        return "/"
    if draw < 0.52:
        return f"/products/{min(PRODUCTS, int(rng.paretovariate(0.9)))}"
    if draw < 0.70:
        return f"/images/{min(IMAGES, int(rng.paretovariate(0.7)))}.jpg"
    return rng.choice(("/assets/app.css", "/assets/app.js", "/cart", "/old", "/robots.txt"))
