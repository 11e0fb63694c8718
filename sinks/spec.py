"""The text that names a sink on the command line and in the configuration: `console`, `console:json`, or `parquet:DIR`."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

EXPECTED = '"console", "console:table" (or json, csv), or "parquet:DIR"'
FORMS = ("table", "json", "csv")


class SinkSpec(msgspec.Struct, frozen=True):
    """kind: "console" or "parquet". folder: where a parquet sink writes. output: the console's format; "auto": by its stream."""

    kind: str
    folder: Path | None = None
    output: str = "auto"

    def __str__(self) -> str:
        if self.folder is not None:
            return f"{self.kind}:{self.folder}"
        return self.kind if self.output == "auto" else f"{self.kind}:{self.output}"


def parse(text: str, base: Path = Path()) -> SinkSpec:
    """The sink that `text` names; a relative folder is relative to `base`. Raises ValueError, which says what is expected."""
    kind, colon, rest = text.partition(":")
    if kind == "console" and not colon:
        return SinkSpec("console")
    if kind == "console" and rest in FORMS:
        return SinkSpec("console", output=rest)
    if kind == "parquet" and rest:
        return SinkSpec("parquet", base / rest)
    raise ValueError(EXPECTED)


class Broker(msgspec.Struct, frozen=True):
    """An MQTT broker. mesh: a level of its topics. credentials: a file with one line, USER:PASSWORD. ca: certificates that sign
    the broker's, instead of those of the host. cert, key: of the client. All files in PEM. commands: whether the agent takes
    operators' signed commands from it."""

    host: str
    port: int
    tls: bool
    mesh: str = "main"
    credentials: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    commands: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


BROKER_EXPECTED = (
    "mqtt://HOST:PORT or mqtts://HOST:PORT (with TLS), without a user: credentials names a file for it"
)


def parse_broker(text: object) -> Broker:
    """The broker at that address, with all else by default. Raises ValueError with what was expected, and none of the text, which
    may contain a password."""
    try:
        url = urlsplit(text) if isinstance(text, str) else None
        port = url.port if url is not None else None
    except ValueError:
        url, port = None, None
    if (
        url is None
        or url.scheme not in ("mqtt", "mqtts")
        or not url.hostname
        or "@" in url.netloc
        or url.path.strip("/")
        or url.query
        or url.fragment
        or port == 0
    ):
        raise ValueError(BROKER_EXPECTED)
    tls = url.scheme == "mqtts"
    return Broker(url.hostname, port or (8883 if tls else 1883), tls)


class Hook(msgspec.Struct, frozen=True):
    """A webhook's endpoint. path: with its query; it may be a secret, and is not shown. mesh: a level of the events' source.
    secret: the file of secrets that sign. ca: certificates that sign the endpoint's, instead of those of the host. is_private:
    whether it may have a private address. credentials: a file with one line, USER:PASSWORD, of an Alertmanager."""

    host: str
    port: int
    tls: bool
    path: str
    mesh: str = "main"
    secret: Path = Path()
    ca: Path | None = None
    is_private: bool = False
    credentials: Path | None = None

    @property
    def authority(self) -> str:
        """HOST, or HOST:PORT for another port than the scheme's, as a request names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"


class Prometheus(msgspec.Struct, frozen=True):
    """write: the remote-write receiver; None: gauges on the agent's metrics page. credentials: a file with one line,
    USER:PASSWORD."""

    write: Hook | None = None
    credentials: Path | None = None

    def __str__(self) -> str:
        return "gauges at /metrics" if self.write is None else f"remote-write to {self.write}"


PROMETHEUS_EXPECTED = '"scrape", or the address of a receiver like "http://HOST:9090/api/v1/write"'


def parse_prometheus(text: object) -> Prometheus:
    """Raises ValueError with what was expected."""
    if text == "scrape":
        return Prometheus()
    try:
        return Prometheus(parse_hook(text))
    except ValueError:
        raise ValueError(PROMETHEUS_EXPECTED) from None


HOOK_EXPECTED = "https://HOST/PATH or http://HOST/PATH, without a user: secret names a file that signs"


def parse_hook(text: object) -> Hook:
    """The endpoint at that address, with all else by default. Raises ValueError with what was expected, and none of the text,
    which may contain a secret."""
    try:
        url = urlsplit(text) if isinstance(text, str) else None
        port = url.port if url is not None else None
    except ValueError:
        url, port = None, None
    if (
        url is None
        or url.scheme not in ("http", "https")
        or not url.hostname
        or "@" in url.netloc
        or url.fragment
        or port == 0
        or not re.fullmatch(r"[!-~]*", url.netloc + url.path + url.query)
    ):
        raise ValueError(HOOK_EXPECTED)
    tls = url.scheme == "https"
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return Hook(url.hostname, port or (443 if tls else 80), tls, path)
