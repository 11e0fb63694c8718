"""The sections that make an agent part of a mesh: what is understood, and what each mistake is answered with."""

from __future__ import annotations

from grp import getgrgid
from pathlib import Path

import pytest

from elf.agent.commands.validate import described
from elf.agent.config.config import Config, parse
from elf.agent.config.specs import MeshSection, SinkSection, parameter_keys
from elf.agent.config.units import Age, Coarser
from elf.errors import ConfigError
from elf.jobmaster.directory.limits import Limits
from elf.sinks.spec import EXPECTED, HOOK_EXPECTED, Broker, Hook, Prometheus
from elf.srt.messages.addresses import Address
from elf.srt.messages.parameters import Parameters

KEY = "a" * 51 + "q"
TEXT = f"""\
[agent]
name = "web1"
state_dir = "state"
listen = "0.0.0.0:7070"
advertise = "10.0.0.5:7070"
seeds = ["10.0.0.6:7070/{KEY}", "web3.example.com:7071/{KEY}"]
cpu_max = 0.5
metrics = "127.0.0.1:9464"

[mesh]
flush = "100ms"
link_max = "8MiB"
leaves = 8

[keys]
bundle = "web1.keys"

[[sink]]
name = "lake"
parquet = "/srv/lake"

[[source]]
name = "access"
path = "access.log"
"""
KINDS = (
    ':19: [sink] name: expected one of parquet = "FOLDER", console = "json", mqtt = "mqtt://HOST", '
    'webhook = "https://HOST/PATH", jsonl = "FOLDER", results = "FOLDER", exec = ["/PROGRAM"], prometheus = "scrape", '
    'alertmanager = "http://HOST:9093", found '
)
BROKER = "mqtt://HOST:PORT or mqtts://HOST:PORT (with TLS), without a user: credentials names a file for it"
LOOPBACK = """\
[agent]
listen = "127.0.0.1:7070"
security = "none"
"""


def read(text: str = TEXT, environ: dict[str, str] | None = None) -> Config:
    return parse(text, Path("/etc/elf/elf.toml"), environ=environ or {})


def refusal(text: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_everything_is_read() -> None:
    config = read()
    mesh = config.mesh
    assert (str(mesh.listen), str(mesh.advertise)) == ("0.0.0.0:7070", "10.0.0.5:7070")
    assert [str(seed) for seed in mesh.seeds] == [f"10.0.0.6:7070/{KEY}", f"web3.example.com:7071/{KEY}"]
    assert (mesh.security, mesh.bundle) == ("curve", Path("/etc/elf/web1.keys"))
    assert (mesh.cpu_max, str(mesh.metrics)) == (0.5, "127.0.0.1:9464")
    assert mesh.parameters == Parameters(flush_us=100_000, link_bytes_max=8 << 20, leaves=8)
    assert [(sink.name, sink.parquet) for sink in mesh.sinks] == [("lake", Path("/srv/lake"))]
    assert config.jobs == ()


def test_little_is_needed_on_loopback() -> None:
    mesh = read(LOOPBACK).mesh
    assert mesh.advertise == mesh.listen == Address("127.0.0.1:7070")
    assert (mesh.seeds, mesh.bundle, mesh.parameters, mesh.sinks) == ((), None, Parameters(), ())


def test_a_group_that_may_read_is_known_by_its_name() -> None:
    name, number = getgrgid(0).gr_name, 0
    mesh = read(TEXT.replace("cpu_max = 0.5", f'control_group = "{name}"')).mesh
    assert mesh.control_group == number
    again = read().mesh
    assert again.control_group is None


def test_without_listen_it_is_a_mesh_of_one() -> None:
    text = (
        '[agent]\nmetrics = "127.0.0.1:9464"\n[[source]]\nname = "access"\npath = "a"\n[mesh]\nflush = "1s"\n'
        '[[sink]]\nname = "lake"\nparquet = "/srv/lake"\n[[sink]]\nname = "out"\nconsole = "json"\n[limits]\ngroups = 500\n'
    )
    config = read(text)
    assert config.mesh == MeshSection(
        listen=None,
        advertise=None,
        seeds=(),
        security="curve",
        bundle=None,
        parameters=Parameters(flush_us=1_000_000),
        metrics=Address("127.0.0.1:9464"),
        sinks=(SinkSection("lake", Path("/srv/lake")), SinkSection("out", console="json")),
        limits=Limits(500),
    )
    assert described(config, {})[-4:] == [
        "in no mesh, since it has no listen: elf job start at this host starts jobs",
        "sink lake: /srv/lake",
        "sink out: standard output, JSON lines",
        "limits of every job here: 500 groups",
    ]
    assert "expected at least one [[source]], found none" in refusal("[agent]\n")
    assert ":2: [agent] advertise: only an agent of a mesh has this; add listen" in refusal(
        '[agent]\nadvertise = "127.0.0.1:1"\n'
    )
    assert ":1: [keys]: only an agent of a mesh has this; add [agent] listen" in refusal(
        '[keys]\nbundle = "k"\n'
    )


def test_a_lake_is_kept_as_long_as_its_sink_says() -> None:
    text = (
        '[agent]\n[[source]]\nname = "access"\npath = "a"\n[[sink]]\nname = "lake"\nparquet = "/srv/lake"\n'
    )
    config = read(text + 'keep = "13 months"\ncompact_after = "12h"\n')
    assert config.mesh is not None
    (sink,) = config.mesh.sinks
    assert (sink.keep, sink.compact_after) == (Age(months=13), 12 * 3_600_000_000)
    assert str(sink) == "sink lake: /srv/lake, days are kept for 13 months"
    assert 'keep: expected a time like "13 months", "90 days" or "36h", found 0' in refusal(
        text + "keep = 0\n"
    )
    assert 'compact_after: expected a duration like "1 day" or "36h"' in refusal(
        text + 'compact_after = "1 month"\n'
    )
    levels = 'coarsen = ["1 minute after 7 days", "errors: 1h after 3 months"]\n'
    config = read(text + levels)
    assert config.mesh is not None
    (sink,) = config.mesh.sinks
    assert sink.coarsen == (
        Coarser(60_000_000, Age(us=7 * 86_400_000_000)),
        Coarser(3_600_000_000, Age(months=3), "errors"),
    )
    assert str(sink) == "sink lake: /srv/lake, windows of 1m after 7 days, errors: 1h after 3 months"
    expected = 'coarsen: expected a length and an age, like "1 minute after 7 days", or of one job, like "errors: 1 hour after'
    for wrong in ('["1 minute"]', '["1 month after 7 days"]', '["1 minute after noon"]'):
        assert expected in refusal(text + f"coarsen = {wrong}\n")
    assert "coarsen: expected a list, each item a length and an age" in refusal(
        text + 'coarsen = "1m after 1d"\n'
    )
    assert "coarsen: expected windows of which a whole number makes a day" in refusal(
        text + 'coarsen = ["7 minutes after 7 days"]\n'
    )
    stream = text.replace('parquet = "/srv/lake"', 'console = "json"') + 'keep = "1 day"\n'
    assert 'keep: is about a lake: parquet = "FOLDER"' in refusal(stream)


def test_the_environment_comes_before_the_file() -> None:
    mesh = read(
        environ={
            "ELF_AGENT_SEEDS": "[]",
            "ELF_MESH_FLUSH": "80ms",
            "ELF_MESH_LEAVES": "16",
            "ELF_KEYS_BUNDLE": "/k",
            "ELF_SINK_LAKE_PARQUET": "/l",
        }
    ).mesh
    assert (mesh.seeds, mesh.parameters.flush_us, mesh.parameters.leaves) == ((), 80_000, 16)
    assert (mesh.bundle, mesh.sinks[0].parquet) == (Path("/k"), Path("/l"))


def test_every_field_of_parameters_has_a_key_of_its_own() -> None:
    keys = parameter_keys()
    assert sorted(keys.values()) == sorted(Parameters.__struct_fields__)
    assert not any("_us" in key or "_bytes" in key for key in keys)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('"0.0.0.0:7070"', '"0.0.0.0"', ':4: [agent] listen: expected an address like "10.0.0.5:7070"'),
        ('"0.0.0.0:7070"', "7070", ":4: [agent] listen: expected an address"),
        ('"0.0.0.0:7070"', '"web1:70700"', ":4: [agent] listen: expected an address"),
        ('advertise = "10.0.0.5:7070"', "", ':4: [agent] listen: add advertise = "HOST:PORT"'),
        ('"10.0.0.5:7070"', '"0.0.0.0:7070"', ":5: [agent] advertise: expected an address like"),
        (f"/{KEY}", "", ':6: [agent] seeds: expected seeds like "10.0.0.5:7070/KEY"'),
        (KEY, KEY[:-1], ':6: [agent] seeds: expected seeds like "10.0.0.5:7070/KEY"'),
        ("cpu_max = 0.5", 'cpu_max = "much"', ":7: [agent] cpu_max: expected a number of cores"),
        ("cpu_max = 0.5", "cpu_max = 0", ":7: [agent] cpu_max: expected a number of cores"),
        (
            "cpu_max = 0.5",
            'control_group = "no such"',
            ':7: [agent] control_group: expected the name of a group of this host, like "adm" (getent group lists them), found '
            '"no such"',
        ),
        ("cpu_max = 0.5", "control_group = 4", ":7: [agent] control_group: expected the name of a group"),
        ('flush = "100ms"', "flush = 100", ":11: [mesh] flush: expected a duration"),
        ('flush = "100ms"', 'flash = "100ms"', ":11: [mesh] flash: unknown key; did you mean flush?"),
        ('flush = "100ms"', 'flush = "40ms"', ":10: [mesh]: combine_max must stay below flush"),
        ('"8MiB"', '"0"', ":12: [mesh] link_max: expected a size"),
        ("leaves = 8", "leaves = 7", ":10: [mesh]: leaves must be even and hold the replicas"),
        ('bundle = "web1.keys"', "", ":4: [agent] listen: a mesh needs keys"),
        ('bundle = "web1.keys"', 'bundel = "x"', ":16: [keys] bundel: unknown key; did you mean bundle?"),
        ('name = "lake"', 'name = "a lake"', ":19: [sink] name: expected a name"),
        ('parquet = "/srv/lake"', "", KINDS + "none"),
        ('parquet = "/srv/lake"', 'parquet = "l"\nconsole = "json"', KINDS + "parquet and console"),
        (
            'parquet = "/srv/lake"',
            'mqtt = "http://b"',
            ":20: [sink] mqtt: expected mqtt://HOST:PORT or mqtts",
        ),
        (
            'parquet = "/srv/lake"',
            'mqtt = "mqtt://u:pw@b"',
            f':20: [sink] mqtt: expected {BROKER}, found "mqtt://…@b"',
        ),
        (
            'parquet = "/srv/lake"',
            'mqtt = "mqtt://b"\nca = "x"',
            ":20: [sink] mqtt: certificates need mqtts://HOST",
        ),
        (
            'parquet = "/srv/lake"',
            'mqtt = "mqtts://b"\ncert = "x"',
            ":21: [sink] cert: expected cert and key",
        ),
        (
            'parquet = "/srv/lake"',
            'webhook = "https://h/"\ncommands = true',
            ':21: [sink] commands: is about a broker: mqtt = "mqtt://HOST"',
        ),
        (
            'parquet = "/srv/lake"',
            'mqtt = "mqtts://b"\ncommands = "yes"',
            ":21: [sink] commands: expected true or false",
        ),
        *(
            (
                'parquet = "/srv/lake"',
                f"exec = {command}",
                ":20: [sink] exec: expected a list of a program's absolute path and its arguments",
            )
            for command in ('"/bin/true"', "[]", '["true"]', '["/bin/true", 1]')
        ),
        *(
            (
                "[[sink]]",
                f"[[sink]]\njobs = {jobs}",
                ":19: [sink] jobs: expected a list of at most 16 names of jobs",
            )
            for jobs in ('"errors"', "[]", "[1]", '[""]', str(["a"] * 17))
        ),
        (
            'parquet = "/srv/lake"',
            'prometheus = "push"',
            ':20: [sink] prometheus: expected "scrape", or the address of a receiver',
        ),
        (
            'parquet = "/srv/lake"',
            'prometheus = "scrape"\nprivate = true',
            ":20: [sink] prometheus: credentials, ca and private are about a receiver",
        ),
        ("[[sink]]", '[[sink]]\ncredentials = "x"', ":19: [sink] credentials: is about a broker"),
        (
            "[[sink]]",
            '[[sink]]\nca = "x"',
            ':19: [sink] ca: is about a broker: mqtt = "mqtt://HOST" or an endpoint',
        ),
        (
            'parquet = "/srv/lake"',
            'mqtt = "mqtts://b"\nprivate = true',
            ':21: [sink] private: is about an endpoint: webhook = "https://HOST/PATH"',
        ),
        (
            'parquet = "/srv/lake"',
            'webhook = "https://u:pw@h/"',
            f':20: [sink] webhook: expected {HOOK_EXPECTED}, found "https://…@h/"',
        ),
        (
            'parquet = "/srv/lake"',
            'webhook = "https://h/"',
            ":18: [sink] secret: expected the file of the secret that signs, whsec_BASE64",
        ),
        (
            'parquet = "/srv/lake"',
            'webhook = "http://h/"\nsecret = "s"\nca = "x"',
            ":20: [sink] webhook: certificates need https://HOST",
        ),
        (
            'parquet = "/srv/lake"',
            'webhook = "https://h/"\nsecret = "s"\nprivate = "yes"',
            ':22: [sink] private: expected true or false, found "yes"',
        ),
        ('parquet = "/srv/lake"', 'console = "xml"', ':20: [sink] console: expected "auto" or "table" or'),
        ("cpu_max = 0.5", 'security = "no"', ':7: [agent] security: expected "curve" or "none"'),
        (
            "cpu_max = 0.5",
            'security = "none"',
            ':4: [agent] listen: security = "none" is for loopback addresses only',
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(before: str, after: str, expected: str) -> None:
    assert before in TEXT
    assert refusal(TEXT.replace(before, after)).startswith(f"/etc/elf/elf.toml{expected}")


def test_without_keys_only_loopback_is_spoken_to() -> None:
    seeds = LOOPBACK + 'seeds = ["127.0.0.1:1", "10.0.0.6:7070"]\n'
    assert (
        ':4: [agent] seeds: security = "none" is for loopback addresses only, and 10.0.0.6:7070 is none'
        in refusal(seeds)
    )


def test_what_only_a_mesh_has_is_refused_elsewhere() -> None:
    own = (
        '[[source]]\nname = "access"\npath = "a"\n[[job]]\nname = "j"\nsql = "SELECT count(*) FROM access"\n'
    )
    seeds = '[agent]\nseeds = ["127.0.0.1:1"]\n' + own
    assert ":2: [agent] seeds: only an agent of a mesh has this; add listen" in refusal(seeds)


@pytest.mark.parametrize(
    ("given", "sinks"),
    [
        ("[limits]\ngroups = 5\n", ()),
        ('[agent]\nmetrics = "127.0.0.1:9464"\n', ()),
        ('[mesh]\nflush = "1s"\n[[sink]]\nname = "out"\nconsole = "json"\n', ("out",)),
    ],
)
def test_jobs_beside_what_only_a_node_has_are_those_of_a_mesh_of_one(
    given: str, sinks: tuple[str, ...]
) -> None:
    config = read(given + LONE + (f"sinks = {list(sinks)}\n" if sinks else ""))
    assert config.mesh.listen is None
    (job,) = config.jobs
    assert job.sinks == (sinks or ("console",))
    assert read(LONE).mesh == MeshSection(
        listen=None,
        advertise=None,
        seeds=(),
        security="curve",
        bundle=None,
        parameters=Parameters(),
        sinks=(SinkSection("console", console="auto", shows_open=True),),
    )
    names = ", or names of [[sink]] tables (out)" if sinks else ""
    assert f"[job] sinks: expected {EXPECTED}{names}, found" in refusal(given + LONE + 'sinks = ["lake"]\n')


def test_sinks_that_jobs_name_by_what_they_are_are_the_agents() -> None:
    """Each once, also one that a table names too; a lake's name is its folder's, whatever else is in the file."""
    other = LONE.partition("[[job]]")[2]
    text = LONE + 'sinks = ["parquet:lake", "console:json"]\n' + f"[[job]]{other.replace('hits', 'few')}"
    more = text + 'sinks = ["console:json", "parquet:/srv/lake", "parquet:/etc/elf/lake"]\n'
    with pytest.raises(ConfigError, match="each sink once"):
        read(more.replace('"parquet:/srv/lake"', '"console:json"'))
    config = read(more)
    first, second = (job.sinks for job in config.jobs)
    assert [(sink.name, sink.console, sink.parquet) for sink in config.mesh.sinks] == [
        (first[0], None, Path("/etc/elf/lake")),
        ("console-json", "json", None),
        (second[1], None, Path("/srv/lake")),
    ]
    assert second == ("console-json", second[1], first[0])
    table = '[[sink]]\nname = "kept"\nparquet = "lake"\n'
    assert [job.sinks for job in read(table + more).jobs] == [
        ("kept", "console-json"),
        ("console-json", second[1], "kept"),
    ]
    taken = '[[sink]]\nname = "console-json"\nconsole = "csv"\n'
    assert "no [[sink]] with the name console-json, which console:json has" in refusal(taken + text)


def test_a_job_of_a_mesh_is_started_with_a_command() -> None:
    text = TEXT + '[[job]]\nname = "hits"\nsql = "SELECT count(*) FROM access"\n'
    assert ":25: [job]: jobs of a mesh are started with: elf job start hits --sql …" in refusal(text)


def test_it_is_described() -> None:
    lines = described(read(), {})
    assert "mesh: listens at 0.0.0.0:7070, reached at 10.0.0.5:7070, keys /etc/elf/web1.keys" in lines
    assert "  seeds 10.0.0.6:7070, web3.example.com:7071" in lines
    assert "sink lake: /srv/lake" in lines


def test_limits_for_every_job() -> None:
    text = TEXT + '[limits]\ngroups = 500\nbytes = "1MiB"\n'
    mesh = read(text, {"ELF_LIMITS_PROCESSOR": "0.5"}).mesh
    assert mesh.limits == Limits(500, False, 1 << 20, 500_000)
    assert "[limits] groups: expected a whole number above 0" in refusal(text.replace("500", "-1"))
    assert "[limits] over: unknown key" in refusal(text + 'over = "other"\n')


LONE = """
[[source]]
name = "access"
path = "access.log"
[[job]]
name = "hits"
sql = "SELECT count(*) FROM access"
"""


def test_a_broker_and_its_files() -> None:
    text = TEXT.replace(
        'parquet = "/srv/lake"', 'mqtt = "mqtts://[::1]"\nmesh = "shop"\ncredentials = "secrets/mqtt"'
    )
    mesh = read(text).mesh
    (sink,) = mesh.sinks
    assert sink.mqtt == Broker("::1", 8883, True, "shop", Path("/etc/elf/secrets/mqtt"))
    assert (str(sink), sink.takes_rows) == (
        "sink lake: mqtts://[::1]:8883, topics elf/v1/shop/JOB/window",
        True,
    )


def test_commands_from_a_broker_need_keys() -> None:
    text = '[[sink]]\nname = "broker"\nmqtt = "mqtts://b"\ncommands = true\n'
    (sink,) = read(TEXT.replace('parquet = "/srv/lake"', 'mqtt = "mqtts://b"\ncommands = true')).mesh.sinks
    assert sink.mqtt == Broker("b", 8883, True, commands=True)
    for without in (LOOPBACK, '[agent]\n[[source]]\nname = "access"\npath = "a"\n'):
        assert "[sink] commands: commands are signed, so they need a mesh with keys" in refusal(
            without + text
        )


def test_an_endpoint_and_its_files() -> None:
    text = TEXT.replace(
        'parquet = "/srv/lake"', 'webhook = "https://h:444/T0/KEY"\nsecret = "secrets/hook"\nprivate = true'
    )
    mesh = read(text).mesh
    (sink,) = mesh.sinks
    secret = Path("/etc/elf/secrets/hook")
    assert sink.webhook == Hook("h", 444, True, "/T0/KEY", secret=secret, is_private=True)
    assert (str(sink), sink.takes_rows) == ("sink lake: webhook at https://h:444", True)


def test_a_sink_takes_jobs_by_patterns_of_their_names() -> None:
    mesh = read(TEXT.replace("[[sink]]", '[[sink]]\njobs = ["errors", "api-*"]')).mesh
    assert mesh is not None
    assert mesh.sinks[0].jobs == ("errors", "api-*")


def test_prometheus_scrapes_or_is_written_to() -> None:
    text = 'prometheus = "https://tsdb:9090/api/v1/write"\ncredentials = "p"\nca = "ca.pem"'
    mesh = read(TEXT.replace('parquet = "/srv/lake"', text)).mesh
    assert mesh is not None
    (sink,) = mesh.sinks
    folder = Path("/etc/elf")
    write = Hook("tsdb", 9090, True, "/api/v1/write", ca=folder / "ca.pem")
    assert sink.prometheus == Prometheus(write, folder / "p")
    assert str(sink) == "sink lake: Prometheus, remote-write to https://tsdb:9090"
    scrape = TEXT.replace('parquet = "/srv/lake"', 'prometheus = "scrape"')
    mesh = read(scrape).mesh
    assert mesh is not None
    assert (mesh.sinks[0].prometheus, mesh.sinks[0].takes_rows) == (Prometheus(), True)
    with pytest.raises(ConfigError, match="one sink of an agent may be its page"):
        read(scrape + '\n[[sink]]\nname = "other"\nprometheus = "scrape"\n')
    with pytest.raises(ConfigError, match="the gauges are on the agent's page: add metrics"):
        read(scrape.replace('metrics = "127.0.0.1:9464"\n', ""))


def test_files_of_lines_and_a_command() -> None:
    text = TEXT.replace(
        'parquet = "/srv/lake"', 'jsonl = "windows"\n\n[[sink]]\nname = "c"\nexec = ["/bin/c", "$x"]'
    )
    text += '\n[[sink]]\nname = "r"\nresults = "rows"\n'
    mesh = read(text).mesh
    files, command, results = mesh.sinks
    assert (files.jsonl, command.command) == (Path("/etc/elf/windows"), ("/bin/c", "$x"))
    assert [str(each) for each in mesh.sinks] == [
        "sink lake: /etc/elf/windows/JOB.DAY.jsonl",
        "sink c: runs /bin/c",
        "sink r: /etc/elf/rows/JOB/HOUR.parquet",
    ]
    assert (results.results, results.takes_rows) == (Path("/etc/elf/rows"), True)
    assert files.takes_rows
    assert command.takes_rows
