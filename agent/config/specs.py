"""The sections of the configuration that make an agent part of a mesh, and the readers of their values.

`[agent] listen` joins; `[mesh]` holds the timings and bounds of `elf.srt.messages.parameters`, under their names less the unit,
which is part of the value: `flush = "200ms"` is `flush_us`, `link_max = "4MiB"` is `link_bytes_max`.
"""

from __future__ import annotations

import os
import re
from grp import getgrnam
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from elf.agent.config import units
from elf.agent.config.names import NAME_EXPECTED, is_name
from elf.agent.config.units import Age, Coarser
from elf.errors import PeerError
from elf.jobmaster.directory.limits import NO_LIMITS, Limits
from elf.sinks.spec import Broker, Hook, Prometheus, SinkSpec
from elf.srt.messages.addresses import Address, parse_address
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.patterns import PATTERNS_MAX

ADDRESS_EXPECTED = 'an address like "10.0.0.5:7070" or "web1.example.com:7070"'
SEED_EXPECTED = 'seeds like "10.0.0.5:7070/KEY", as elf keys issue prints them, or a list of them'
CONSOLES = {
    "auto": "a table on a terminal, else JSON lines",
    "table": "tables",
    "json": "JSON lines",
    "csv": "CSV",
}
"""What the forms of a stream are."""
WILDCARDS = ("0.0.0.0", "::")


class SinkSection(msgspec.Struct, frozen=True):
    """A sink that this agent serves to all jobs of the mesh: a lake, a stream, a broker, a webhook, files, or a command.

    parquet: the folder of the lake. console: the format in which the stream writes on the agent's standard output. mqtt: the
    broker. webhook: the endpoint. jsonl, results: the folder of the files. command: a program and its arguments. prometheus: a
    receiver, or the agent's metrics page. alertmanager: where it is; it takes alerts and no windows. shows_open: of a stream:
    whether it shows the open windows of the agent's own jobs too. keep: the age at which the lake's days expire; None: never.
    compact_after: that at which a day becomes one file, in microseconds. coarsen: those at which its windows become longer. jobs:
    patterns of the names of jobs whose windows it takes though they do not name it.
    """

    name: str
    parquet: Path | None = None
    console: str | None = None
    mqtt: Broker | None = None
    webhook: Hook | None = None
    jsonl: Path | None = None
    results: Path | None = None
    command: tuple[str, ...] | None = None
    alertmanager: Hook | None = None
    shows_open: bool = False
    keep: Age | None = None
    compact_after: int | None = None
    coarsen: tuple[Coarser, ...] | None = None
    prometheus: Prometheus | None = None
    jobs: tuple[str, ...] = ()

    @property
    def takes_rows(self) -> bool:
        """Whether it takes the rows of windows, and not the states of panes."""
        return self.parquet is None

    @property
    def moves(self) -> bool:
        """Whether its receiver is elsewhere, so that another agent with this sink may deliver in this one's place."""
        pushes = self.prometheus is not None and self.prometheus.write is not None
        receivers = (self.mqtt, self.webhook, self.command, self.alertmanager)
        return pushes or any(receiver is not None for receiver in receivers)

    def __str__(self) -> str:
        if self.mqtt is not None:
            return f"sink {self.name}: {self.mqtt}, topics elf/v1/{self.mqtt.mesh}/JOB/window"
        if self.webhook is not None:
            return f"sink {self.name}: webhook at {self.webhook}"
        if self.alertmanager is not None:
            return f"sink {self.name}: alertmanager at {self.alertmanager}, alerts only"
        if self.jsonl is not None:
            return f"sink {self.name}: {self.jsonl}/JOB.DAY.jsonl"
        if self.results is not None:
            return f"sink {self.name}: {self.results}/JOB/HOUR.parquet"
        if self.prometheus is not None:
            return f"sink {self.name}: Prometheus, {self.prometheus}"
        if self.command is not None:
            return f"sink {self.name}: runs {self.command[0]}"
        if self.parquet is not None:
            kept = f", days are kept for {self.keep}" if self.keep is not None else ""
            longer = f", windows of {', '.join(map(str, self.coarsen))}" if self.coarsen else ""
            return f"sink {self.name}: {self.parquet}{longer}{kept}"
        where = f"{self.parquet}" if self.console is None else f"standard output, {CONSOLES[self.console]}"
        return f"sink {self.name}: {where}"


def own_sink(asked: SinkSpec) -> SinkSection:
    """The sink of an agent whose job names it by what it is, and not by the name of a [[sink]]. A lake's name depends on its
    folder alone, so its ledger is found again whatever else stands in the file."""
    if asked.folder is None:
        name = "console" if asked.output == "auto" else f"console-{asked.output}"
        return SinkSection(name, console=asked.output, shows_open=True)
    digest = blake2b(os.fsencode(asked.folder.absolute()), digest_size=3).hexdigest()
    stem = re.sub("[^A-Za-z0-9_]", "_", asked.folder.name)[:40] or "lake"
    return SinkSection(f"{stem}-{digest}", asked.folder)


class MeshSection(msgspec.Struct, frozen=True):
    """The settings of an agent in a mesh.

    listen: port 0 takes a free one; None: the agent is alone, a mesh of one that opens no port. advertise: its address for other
    agents; port 0: the port that was taken. cpu_max: cores that reading may use, or None. bundle: its keys, None with security
    "none". metrics: the address for Prometheus, or None. control_group: the id of a group whose members may read at the control
    socket, or None.
    limits: of every job here.
    """

    listen: Address | None
    advertise: Address | None
    seeds: tuple[Address, ...]
    security: str
    bundle: Path | None
    parameters: Parameters
    cpu_max: float | None = None
    metrics: Address | None = None
    sinks: tuple[SinkSection, ...] = ()
    control_group: int | None = None
    limits: Limits = NO_LIMITS


def read_age(value: object) -> Age:
    """How long a lake keeps its days. Raises ValueError with what was expected."""
    if not isinstance(value, str) or (age := units.age(value)) == Age():
        raise ValueError(units.AGE_EXPECTED)
    return age


def read_compact_after(value: object) -> int:
    """The age at which a day of a lake is compacted, microseconds. Raises ValueError with what was expected."""
    age = read_age(value)
    if age.months:
        raise ValueError('a duration like "1 day" or "36h"')
    return age.us


def read_coarsen(value: object) -> tuple[Coarser, ...]:
    """When the windows of a lake become longer. Raises ValueError with what was expected."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"a list, each item {units.COARSER_EXPECTED}")
    return tuple(units.coarser(each) for each in value)


def parameter_keys() -> dict[str, str]:
    """Key in [mesh] -> field of `Parameters`."""
    return {re.sub("_us|_bytes", "", field): field for field in Parameters.__struct_fields__}


def read_parameter(field: str, value: Any) -> int:
    """The value of a key in [mesh], by its field. Raises ValueError with what was expected."""
    if "_us" in field:
        return _positive(units.duration_us(str(value)), units.DURATION_EXPECTED)
    if "_bytes" in field:
        return _positive(units.size(str(value)), units.SIZE_EXPECTED)
    expected = "a whole number above 0"
    if not re.fullmatch("[0-9]+", str(value)):  # text from the environment
        raise ValueError(expected)
    return _positive(int(value), expected)


def _positive(value: int, expected: str) -> int:
    if value <= 0:
        raise ValueError(expected)
    return value


def read_endpoint(value: Any) -> Address:
    """An address without a key. Raises ValueError with what was expected."""
    address = _address(value)
    if address is None or address.key is not None:
        raise ValueError(ADDRESS_EXPECTED)
    return address


def read_reachable(value: Any) -> Address:
    """An address that other hosts can connect to. Raises ValueError with what was expected."""
    endpoint = read_endpoint(value)
    if endpoint.host in WILDCARDS:
        raise ValueError(f"{ADDRESS_EXPECTED}, one that others can reach")
    return endpoint


def read_seeds(value: Any) -> tuple[Address, ...]:
    """Raises ValueError with what was expected."""
    values = [value] if isinstance(value, str) else value
    seeds = [_address(each) for each in values] if isinstance(values, list) else [None]
    known = tuple(seed for seed in seeds if seed is not None and seed.port and seed.host not in WILDCARDS)
    if len(known) < len(seeds):
        raise ValueError(SEED_EXPECTED)
    return known


def _address(value: Any) -> Address | None:
    try:
        return parse_address(value) if isinstance(value, str) else None
    except PeerError:
        return None


def read_command(value: Any) -> tuple[str, ...]:
    """A program and its arguments, which no shell reads."""
    texts = isinstance(value, list) and all(isinstance(each, str) and "\0" not in each for each in value)
    if not (texts and value and value[0].startswith("/")):
        raise ValueError(
            'a list of a program\'s absolute path and its arguments, like ["/usr/local/bin/notify", "-v"]'
        )
    return tuple(value)


def read_patterns(value: Any) -> tuple[str, ...]:
    """Names of jobs, or patterns of names."""
    texts = isinstance(value, list) and all(isinstance(each, str) and 0 < len(each) <= 64 for each in value)
    if not texts or not 0 < len(value) <= PATTERNS_MAX:
        raise ValueError(
            f'a list of at most {PATTERNS_MAX} names of jobs or patterns, each of at most 64 characters, like ["errors", "api-*"]'
        )
    return tuple(value)


def read_cores(value: Any) -> float:
    """Raises ValueError with what was expected."""
    expected = "a number of cores, at least 0.01, like 0.5"
    try:
        cores = float(value)
    except (TypeError, ValueError):
        raise ValueError(expected) from None
    if isinstance(value, bool) or not 0.01 <= cores <= 1e6:
        raise ValueError(expected)
    return cores


def read_group(value: Any) -> int:
    """The id of a group of this host, by its name. Raises ValueError with what was expected."""
    try:
        return getgrnam(value).gr_gid
    except (KeyError, TypeError, ValueError):
        raise ValueError('the name of a group of this host, like "adm" (getent group lists them)') from None


def read_name(value: Any) -> str:
    """Raises ValueError with what was expected."""
    if not isinstance(value, str) or not is_name(value):
        raise ValueError(NAME_EXPECTED)
    return value
