"""The configuration: one TOML file. The environment overrides its keys, and flags override both.

`[agent] name` is `ELF_AGENT_NAME`; `format` of the source `access` is `ELF_SOURCE_ACCESS_FORMAT`; `lateness` of the job
`errors` is `ELF_JOB_ERRORS_LATENESS`. A list is written there as in TOML: `["a", "b"]`. Every error is one line with the
file, line, key, what was expected and what was found. Relative paths begin at the file's folder.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from elf.agent.config import specs, units
from elf.agent.config.limits import CAP_KEYS, limits_of
from elf.agent.config.specs import MeshSection, SinkSection
from elf.agent.config.toml_lines import key_lines, toml_problem
from elf.agent.config.toml_values import (
    Key,
    found_text,
    meant_key,
    read_choice,
    read_duration,
    read_emit,
    read_flag,
    read_memory,
    read_source,
    read_text,
    read_timezone,
)
from elf.agent.files.listing import refused
from elf.errors import ConfigError, FormatError
from elf.sinks import spec
from elf.sinks.spec import Broker, Hook, Prometheus
from elf.srt.messages.parameters import Parameters

_KINDS = (
    'parquet = "FOLDER"',
    'console = "json"',
    'mqtt = "mqtt://HOST"',
    'webhook = "https://HOST/PATH"',
    'jsonl = "FOLDER"',
    'results = "FOLDER"',
    'exec = ["/PROGRAM"]',
    'prometheus = "scrape"',
    'alertmanager = "http://HOST:9093"',
)
_ABOUT = {
    "parquet": 'a lake: parquet = "FOLDER"',
    "mqtt": 'a broker: mqtt = "mqtt://HOST"',
    "webhook": 'an endpoint: webhook = "https://HOST/PATH"',
    "prometheus": 'a receiver: prometheus = "http://HOST/PATH"',
    "alertmanager": 'an Alertmanager: alertmanager = "http://HOST:9093"',
}
_KEYS_OF = {
    "parquet": ("keep", "compact_after", "coarsen"),
    "mqtt": ("mesh", "credentials", "ca", "cert", "key", "commands"),
    "webhook": ("mesh", "secret", "ca", "private"),
    "alertmanager": ("credentials", "ca", "private"),
    "prometheus": ("credentials", "ca", "private"),
}
"""The keys of a sink that only some kinds have."""
ONLY_IN_A_MESH = 'only an agent of a mesh has this; add {}listen = "HOST:PORT"'


class AgentSection(msgspec.Struct, frozen=True):
    """memory_max: bytes, a hard cap on the agent's memory beyond the bare process."""

    name: str
    state_dir: Path
    memory_max: int


class SourceSection(msgspec.Struct, frozen=True):
    """name: the one used in FROM. paths: files or globs. start: "end" or "beginning", for files never seen before."""

    name: str
    paths: tuple[str, ...]
    format: str
    timezone: str
    start: str


class JobSection(msgspec.Struct, frozen=True):
    """A query that runs as long as the agent. lateness_us: None for that of its log's format. sinks: names of the agent's. where:
    "file:line" of its SQL, for messages."""

    name: str
    sql: str
    lateness_us: int | None
    emit_us: int
    keep_us: int
    sinks: tuple[str, ...]
    where: str


class Config(msgspec.Struct, frozen=True):
    """With `mesh.listen`, `jobs` is empty, since commands start jobs; without it the agent is a mesh of one, which submits the
    `jobs` of its file to itself."""

    path: Path
    agent: AgentSection
    sources: tuple[SourceSection, ...]
    jobs: tuple[JobSection, ...]
    mesh: MeshSection

    @property
    def shown(self) -> list[tuple[str, str]]:
        """Each job with each stream that shows its open windows, by name."""
        return [(job.name, sink.name) for job in self.jobs for sink in self.sinks_of(job) if sink.shows_open]

    def sinks_of(self, job: JobSection) -> list[SinkSection]:
        """O(sinks)."""
        return [sink for sink in self.mesh.sinks if sink.name in job.sinks]


def check_sinks(config: Config, job: JobSection, *, has_window: bool) -> None:
    """Raises ConfigError for a live query without windows that has a sink of final windows only, which would stay empty."""
    finals = [sink for sink in config.sinks_of(job) if not sink.shows_open]
    if finals and not has_window:
        raise ConfigError(
            f"{job.where}: job {job.name}: without a window nothing is ever final, so {finals[0]} would stay empty; "
            "add GROUP BY window(time, '1 minute') to the query, or leave that sink out"
        )


def check_folders(config: Config) -> None:
    """Test the folders of the agent's lakes, leaving no files. Raises ConfigError for the first that fails."""
    from elf.sinks.lake.folder import try_folder

    for sink in config.mesh.sinks:
        if sink.parquet is not None:
            try:
                try_folder(sink.parquet)
            except OSError as error:
                place = "" if error.filename == str(sink.parquet.absolute()) else f"{error.filename}: "
                raise ConfigError(
                    f"{config.path}: {sink}: {place}{error.strerror}; name another folder, or make it writable"
                ) from error


def check_logs(config: Config) -> None:
    """Raises ConfigError for a log that is not a file, which would otherwise be skipped silently."""
    for source in config.sources:
        if (why := refused(source.paths)) is not None:
            raise ConfigError(f"{config.path}: source {source.name}: {why}")


def load(path: Path, *, environ: Mapping[str, str], flags: Mapping[str, str] | None = None) -> Config:
    """Read and check `path`. `flags` are keys of [agent] from the command line. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text, found other bytes at {error.start}") from error
    return parse(text, path, environ=environ, flags=flags)


def parse(
    text: str, path: Path, *, environ: Mapping[str, str], flags: Mapping[str, str] | None = None
) -> Config:
    """As `load`, from the file's text; `path` is for messages and relative paths."""
    return _Reader(text, path, environ, flags or {}).config()


class _Reader:
    def __init__(self, text: str, path: Path, environ: Mapping[str, str], flags: Mapping[str, str]) -> None:
        self.path, self.folder = path, path.parent
        self.environ = {name: value for name, value in environ.items() if _is_ours(name)}
        self.flags = flags
        self.variables: list[str] = []  # of all keys
        self.sinks: list[SinkSection] = []
        """Those of [[sink]], and then those that jobs name by what they are."""
        self.named: list[str] = []
        try:
            self.top = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path}{toml_problem(error)}") from error
        self.lines = key_lines(text)

    def config(self) -> Config:
        self._known("", 0, self.top, ["agent", "source", "job", "mesh", "keys", "sink", "limits", "format"])
        agent, joining = self._agent()
        mesh = self._mesh(joining)
        listens = joining["listen"] is not None
        sources = tuple(
            self._source(i, table) for i, table in enumerate(self._tables("source", required=not listens))
        )
        jobs = tuple(self._job(i, table) for i, table in enumerate(self._tables("job", required=False)))
        if jobs and listens:
            self._refuse("job", "", f"jobs of a mesh are started with: elf job start {jobs[0].name} --sql …")
        mesh = replace(mesh, sinks=tuple(self.sinks))
        self._unique("source", [source.name for source in sources])
        self._unique("job", [job.name for job in jobs])
        self._environment_used()
        return Config(self.path, agent, sources, jobs, mesh)

    def _agent(self) -> tuple[AgentSection, dict[str, Any]]:
        """The section, and its keys about the mesh."""
        keys = {
            "name": Key(read_text, os.uname().nodename or "agent"),
            "state_dir": Key(self._folder, Path("/var/lib/elf")),
            "memory_max": Key(read_memory, units.size("64MiB")),
        }
        joining = {
            "listen": Key(specs.read_endpoint),
            "advertise": Key(specs.read_reachable),
            "seeds": Key(specs.read_seeds, ()),
            "security": Key(partial(read_choice, ("curve", "none")), "curve"),
            "cpu_max": Key(specs.read_cores),
            "metrics": Key(specs.read_endpoint),
            "control_group": Key(specs.read_group),
        }
        values = self._values("agent", keys | joining)
        return AgentSection(**{key: values.pop(key) for key in keys}), values

    def _mesh(self, joining: dict[str, Any]) -> MeshSection:
        listen, advertise = joining["listen"], joining["advertise"]
        if listen is None:
            self._no_mesh(joining)
        elif advertise is None:
            if listen.host in specs.WILDCARDS:
                self._refuse(
                    "agent", "listen", 'add advertise = "HOST:PORT", where other agents reach this one'
                )
            joining["advertise"] = listen
        bundle = self._values("keys", {"bundle": Key(self._folder)})["bundle"]
        self.sinks = [self._sink(i, table) for i, table in enumerate(self._tables("sink", required=False))]
        self.named = [sink.name for sink in self.sinks]
        self._unique("sink", self.named)
        self._check_scrape(self.sinks, joining)
        limits = limits_of(self._values("limits", CAP_KEYS))
        section = MeshSection(limits=limits, bundle=bundle, parameters=self._parameters(), **joining)
        if listen is not None:
            self._check_security(section)
        for index, sink in enumerate(self.sinks):
            if (
                sink.mqtt is not None
                and sink.mqtt.commands
                and (bundle is None or section.security == "none")
            ):
                self._refuse("sink", "commands", "commands are signed, so they need a mesh with keys", index)
        return section

    def _check_security(self, mesh: MeshSection) -> None:
        """Without keys, allow only addresses that no other host can reach; with keys, every seed must have its key."""
        if mesh.security == "curve":
            if mesh.bundle is None:
                self._refuse(
                    "agent",
                    "listen",
                    'a mesh needs keys: make some with elf keys issue, and add [keys] bundle = "FILE" '
                    '(or security = "none", for loopback addresses only)',
                )
            if any(seed.key is None for seed in mesh.seeds):
                self._refuse("agent", "seeds", f"expected {specs.SEED_EXPECTED}, found one without its key")
            return
        for key, addresses in (
            ("listen", (mesh.listen,)),
            ("advertise", (mesh.advertise,)),
            ("seeds", mesh.seeds),
        ):
            for address in addresses:
                if address is not None and not address.is_loopback:
                    self._refuse(
                        "agent",
                        key,
                        f'security = "none" is for loopback addresses only, and {address.endpoint} is none; use keys',
                    )

    def _no_mesh(self, joining: dict[str, Any]) -> None:
        """Refuse keys that are about other agents, and so have no effect without `listen`."""
        if "keys" in self.top:
            self._refuse("keys", "", ONLY_IN_A_MESH.format("[agent] "))
        for key in ("advertise", "seeds", "security"):
            if joining[key] is not None and joining[key] not in ((), "curve"):
                self._refuse("agent", key, ONLY_IN_A_MESH.format(""))

    def _parameters(self) -> Parameters:
        fields = specs.parameter_keys()
        keys = {key: Key(partial(specs.read_parameter, field)) for key, field in fields.items()}
        values = self._values("mesh", keys)
        parameters = Parameters(**{fields[key]: value for key, value in values.items() if value is not None})
        try:
            parameters.check()
        except ValueError as error:
            names = {field: key for key, field in fields.items()}
            reason = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(error).partition(": ")[2])
            self._refuse("mesh", "", reason)
        return parameters

    def _sink(self, index: int, table: dict[str, Any]) -> SinkSection:
        keys = {
            "name": Key(specs.read_name, required=True),
            "parquet": Key(self._folder),
            "console": Key(partial(read_choice, tuple(specs.CONSOLES))),
            "mqtt": Key(spec.parse_broker),
            "webhook": Key(spec.parse_hook),
            "jsonl": Key(self._folder),
            "results": Key(self._folder),
            "exec": Key(specs.read_command),
            "alertmanager": Key(spec.parse_hook),
            "prometheus": Key(spec.parse_prometheus),
        }
        takes = {"jobs": Key(specs.read_patterns, ())}
        about = {"mesh": Key(specs.read_name, "main"), "private": Key(read_flag), "commands": Key(read_flag)}
        about |= {"keep": Key(specs.read_age), "compact_after": Key(specs.read_compact_after)}
        about |= {"coarsen": Key(specs.read_coarsen)}
        about |= dict.fromkeys(("credentials", "ca", "cert", "key", "secret"), Key(self._folder))
        values = self._values("sink", keys | takes | about, table, index)
        given = {key: values.pop(key) for key in about}
        kinds = [key for key in keys if key != "name" and values[key] is not None]
        if len(kinds) != 1:
            expected = f"expected one of {', '.join(_KINDS)}"
            self._refuse("sink", "name", f"{expected}, found {' and '.join(kinds) or 'none'}", index)
        (kind,) = kinds
        for key in about:
            takers = [each for each, of in _KEYS_OF.items() if key in of]
            if given[key] not in (None, "main") and kind not in takers:
                self._refuse("sink", key, f"is about {' or '.join(_ABOUT[each] for each in takers)}", index)
        values["command"] = values.pop("exec")
        values |= {key: given[key] for key in _KEYS_OF["parquet"]}
        if kind == "mqtt":
            values["mqtt"] = self._broker(index, values["mqtt"], given)
        elif kind == "webhook":
            values["webhook"] = self._endpoint(index, values["webhook"], given)
        elif kind == "alertmanager":
            hook = values["alertmanager"]
            if not hook.tls and given["ca"]:
                self._refuse("sink", "alertmanager", "certificates need https://HOST", index)
            about = {"ca": given["ca"], "credentials": given["credentials"]}
            values["alertmanager"] = replace(hook, is_private=bool(given["private"]), **about)
        elif kind == "prometheus":
            values["prometheus"] = self._prometheus(index, values["prometheus"], given)
        return SinkSection(**values)

    def _check_scrape(self, sinks: Sequence[SinkSection], joining: dict[str, Any]) -> None:
        found = [
            at
            for at, sink in enumerate(sinks)
            if sink.prometheus is not None and sink.prometheus.write is None
        ]
        if found and joining["metrics"] is None:
            wanted = 'the gauges are on the agent\'s page: add metrics = "HOST:PORT" to [agent]'
            self._refuse("sink", "prometheus", wanted, found[0])
        if len(found) > 1:
            self._refuse("sink", "prometheus", "one sink of an agent may be its page", found[1])

    def _prometheus(self, index: int, target: Prometheus, given: dict[str, Any]) -> Prometheus:
        if target.write is None:
            if any(given[key] for key in ("credentials", "ca", "private")):
                self._refuse("sink", "prometheus", "credentials, ca and private are about a receiver", index)
            return target
        if not target.write.tls and given["ca"]:
            self._refuse("sink", "prometheus", "certificates need https://HOST", index)
        write = replace(target.write, ca=given["ca"], is_private=bool(given["private"]))
        return Prometheus(write, given["credentials"])

    def _broker(self, index: int, broker: Broker, given: dict[str, Any]) -> Broker:
        if (given["cert"] is None) != (given["key"] is None):
            self._refuse("sink", "cert", "expected cert and key, or neither", index)
        if not broker.tls and (given["ca"] or given["cert"]):
            self._refuse("sink", "mqtt", "certificates need mqtts://HOST", index)
        about = {key: given[key] for key in ("mesh", "credentials", "ca", "cert", "key")}
        return replace(broker, **about, commands=bool(given["commands"]))

    def _endpoint(self, index: int, hook: Hook, given: dict[str, Any]) -> Hook:
        if given["secret"] is None:
            self._refuse("sink", "secret", "expected the file of the secret that signs, whsec_BASE64", index)
        if not hook.tls and given["ca"]:
            self._refuse("sink", "webhook", "certificates need https://HOST", index)
        about = {key: given[key] for key in ("mesh", "secret", "ca")}
        return replace(hook, is_private=bool(given["private"]), **about)

    def _source(self, index: int, table: dict[str, Any]) -> SourceSection:
        keys = {
            "name": Key(read_source, required=True),
            "path": Key(self._paths, required=True),
            "format": Key(read_text, "auto"),
            "timezone": Key(read_timezone, "UTC"),
            "start": Key(partial(read_choice, ("end", "beginning")), "end"),
        }
        values = self._values("source", keys, table, index)
        if values["format"] in self._table("format"):
            values["format"] = self._own_format(values["format"])
        return SourceSection(paths=values.pop("path"), **values)

    def _own_format(self, name: str) -> str:
        """The name of a table [format.NAME] of this file, as it is known elsewhere. A table that cannot be read is refused."""
        from elf.agent.formats.products.own import read_own

        try:
            read_own(self.path, self._table("format")[name], name)
        except FormatError as error:
            raise ConfigError(str(error)) from error
        return f"toml:{self.path.absolute()}#{name}"

    def _job(self, index: int, table: dict[str, Any]) -> JobSection:
        keys = {
            "name": Key(specs.read_name, required=True),
            "sql": Key(read_text),
            "file": Key(self._query_file),
            "lateness": Key(read_duration),
            "emit": Key(read_emit, units.duration_us("200ms")),
            "keep": Key(read_duration, units.duration_us("1h")),
            "sinks": Key(self._sinks_of_job),
        }
        values = self._values("job", keys, table, index)
        if (values["sql"] is None) == (values["file"] is None):
            found = "both" if values["sql"] is not None else "neither"
            expected = 'one of sql = "SELECT …" and file = "query.sql"'
            self._refuse("job", "sql", f"expected {expected}, found {found}", index)
        sql = values["sql"] if values["file"] is None else values["file"][0]
        key_line = self.lines.get(("job", index, "sql"), 0)
        where = f"{self.path}:{key_line}" if values["file"] is None else str(values["file"][1])
        return JobSection(
            name=values["name"],
            sql=sql,
            lateness_us=values["lateness"],
            emit_us=values["emit"],
            keep_us=values["keep"],
            sinks=values["sinks"] if values["sinks"] is not None else self._sinks_of_job("console"),
            where=where,
        )

    # Tables and keys in general.

    def _table(self, name: str) -> dict[str, Any]:
        table = self.top.get(name, {})
        if not isinstance(table, dict):
            self._refuse(name, "", f"expected a table [{name}], found {found_text(table)}")
        return table

    def _tables(self, name: str, *, required: bool) -> list[dict[str, Any]]:
        tables = self.top.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._refuse(
                name, "", f"expected a list of tables, each headed [[{name}]], found {found_text(tables)}"
            )
        if not tables and required:
            raise ConfigError(f"{self.path}: expected at least one [[{name}]], found none")
        return tables

    def _values(
        self, section: str, keys: Mapping[str, Key], table: dict[str, Any] | None = None, index: int = 0
    ) -> dict[str, Any]:
        """The values of [section], or of one of several [[section]]: each from a flag, else the environment, else the file."""
        prefix = f"ELF_{section.upper()}_" if table is None else _variable(section, table.get("name"))
        table = self._table(section) if table is None else table
        self._known(section, index, table, list(keys))
        values = {}
        for name, key in keys.items():
            variable = prefix + name.upper()
            self.variables.append(variable)
            raw: Any
            if section == "agent" and name in self.flags:
                raw, place = self.flags[name], f"--{name.replace('_', '-')}"
            elif variable in self.environ:
                raw, place = _environment_value(self.environ[variable]), f"{variable} in the environment"
            else:
                raw, place = table.get(name), self._place(section, name, index)
            if raw is None:
                if key.required:
                    self._refuse(section, name, "expected a value, found nothing", index)
                values[name] = key.default
                continue
            try:
                values[name] = key.read(raw)
            except ValueError as error:
                raise ConfigError(f"{place}: expected {error}, found {found_text(raw)}") from error
        return values

    def _known(self, section: str, index: int, table: dict[str, Any], known: list[str]) -> None:
        for key in table:
            if key not in known:
                self._refuse(section, key, f"unknown key; {meant_key(key, known)}", index)

    def _place(self, section: str, key: str, index: int) -> str:
        line = self.lines.get((section, index, key)) or self.lines.get((section, index, ""))
        if line is None and not section:
            line = self.lines.get((key, 0, ""))
        label = f"[{section}] {key}".rstrip() if section else key
        return f"{self.path}:{line}: {label}" if line else f"{self.path}: {label}"

    def _refuse(self, section: str, key: str, reason: str, index: int = 0) -> NoReturn:
        raise ConfigError(f"{self._place(section, key, index)}: {reason}")

    def _unique(self, section: str, names: Sequence[str]) -> None:
        seen: dict[str, str] = {}
        for index, name in enumerate(names):
            variable = _variable(section, name)
            if variable in seen:
                expected = f"a name unlike that of another {section} ({seen[variable]!r})"
                self._refuse(section, "name", f"expected {expected}, found {found_text(name)}", index)
            seen[variable] = name

    def _environment_used(self) -> None:
        """Refuse an ELF_ variable that matches no key: a misspelt one must not be ignored silently."""
        if unknown := sorted(self.environ.keys() - self.variables):
            meant = meant_key(unknown[0], self.variables)
            raise ConfigError(f"{unknown[0]} in the environment: unknown key; {meant}")

    # Readers that need the file's folder.

    def _folder(self, value: Any) -> Path:
        return self.folder / read_text(value)

    def _paths(self, value: Any) -> tuple[str, ...]:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not values or not all(isinstance(v, str) and v for v in values):
            raise ValueError('a path like "/var/log/nginx/access.log*", or a list of them')
        return tuple(str(self.folder / path) for path in values)

    def _query_file(self, value: Any) -> tuple[str, Path]:
        path = self.folder / read_text(value)
        try:
            return path.read_text(encoding="utf-8"), path
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ValueError(f"a readable file ({reason})") from error

    def _sinks_of_job(self, value: Any) -> tuple[str, ...]:
        """The names of a job's sinks. One that is no [[sink]] is added to the agent's."""
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            raise ValueError(self._sinks_expected())
        names = tuple(self._sink_of_job(text) for text in values)
        if len(set(names)) < len(names):
            raise ValueError("each sink once")
        return names

    def _sink_of_job(self, text: str) -> str:
        if any(sink.name == text for sink in self.sinks):
            return text
        try:
            asked = spec.parse(text, self.folder)
        except ValueError:
            raise ValueError(self._sinks_expected()) from None
        sink = specs.own_sink(asked)
        folders = {each.parquet: each.name for each in self.sinks if each.parquet is not None}
        if sink.parquet in folders:
            return folders[sink.parquet]
        if any(each.name == sink.name and each != sink for each in self.sinks):
            raise ValueError(
                f"no [[sink]] with the name {sink.name}, which {text} has, or that name instead of {text}"
            )
        if sink not in self.sinks:
            self.sinks.append(sink)
        return sink.name

    def _sinks_expected(self) -> str:
        names = ", ".join(self.named)
        return spec.EXPECTED + (f", or names of [[sink]] tables ({names})" if names else "")


def _is_ours(variable: str) -> bool:
    return variable.startswith(
        ("ELF_AGENT_", "ELF_SOURCE_", "ELF_JOB_", "ELF_MESH_", "ELF_KEYS_", "ELF_SINK_", "ELF_LIMITS_")
    )


def _variable(section: str, name: Any) -> str:
    """`ELF_JOB_ERRORS_` for the job `errors`."""
    return f"ELF_{section.upper()}_{re.sub('[^A-Z0-9]', '_', str(name).upper())}_"


def _environment_value(text: str) -> Any:
    """A list as in TOML; everything else is text."""
    if not text.startswith("["):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
