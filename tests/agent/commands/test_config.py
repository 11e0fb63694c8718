"""The configuration: what is understood, and what each mistake is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.config import units
from elf.agent.config.config import Config, load, parse
from elf.agent.config.specs import SinkSection
from elf.agent.config.toml_lines import key_lines
from elf.errors import ConfigError

TEXT = '''\
# An agent.
[agent]
name = "web1"
state_dir = "state"
memory_max = "128MiB"

[[source]]
name = "access"
path = ["logs/access.log*",
        "other.log"]  # two
timezone = "Europe/Berlin"

[[source]]
name = "api"
path = "/var/log/api.log"

[[job]]
name = "errors"
sql = """
SELECT count(*) FROM access
lateness = 3
"""
lateness = "5s"
sinks = ["console", "parquet:lake"]
'''


def read(
    text: str = TEXT, environ: dict[str, str] | None = None, flags: dict[str, str] | None = None
) -> Config:
    return parse(text, Path("/etc/elf/elf.toml"), environ=environ or {}, flags=flags)


def refusal(text: str, environ: dict[str, str] | None = None, flags: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, environ, flags)
    assert caught.value.exit_code == 78
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_everything_is_read() -> None:
    config = read()
    assert (config.agent.name, config.agent.memory_max) == ("web1", 128 << 20)
    assert config.agent.state_dir == Path("/etc/elf/state")
    access, api = config.sources
    assert access.paths == ("/etc/elf/logs/access.log*", "/etc/elf/other.log")
    assert (access.format, access.timezone, access.start) == ("auto", "Europe/Berlin", "end")
    assert (api.name, api.paths) == ("api", ("/var/log/api.log",))
    [job] = config.jobs
    assert job.sql == "SELECT count(*) FROM access\nlateness = 3\n"
    assert (job.lateness_us, job.emit_us, job.keep_us) == (5_000_000, 200_000, 3_600_000_000)
    shown, lake = config.sinks_of(job)
    assert shown == SinkSection("console", console="auto", shows_open=True)
    assert (lake.name[:5], lake.parquet) == ("lake-", Path("/etc/elf/lake"))
    assert job.sinks == ("console", lake.name)
    assert job.where == "/etc/elf/elf.toml:19"


def test_defaults() -> None:
    config = read('[[source]]\nname="a"\npath="x"\n[[job]]\nname="j"\nsql="SELECT 1"\n')
    assert config.agent.state_dir == Path("/var/lib/elf")
    assert config.agent.memory_max == 64 << 20
    assert config.agent.name
    [job] = config.jobs
    assert (job.lateness_us, job.sinks) == (None, ("console",))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("memory_max =", "memory_mix =", ":5: [agent] memory_mix: unknown key; did you mean memory_max?"),
        ("timezone =", "zone =", ":11: [source] zone: unknown key; did you mean timezone?"),
        ("[agent]", "[agnet]", ":2: agnet: unknown key; did you mean agent?"),
        ('"128MiB"', '"128 MeB"', ':5: [agent] memory_max: expected a size like "64MiB", found "128 MeB"'),
        (
            '"128MiB"',
            '"1KiB"',
            ':5: [agent] memory_max: expected a size like "64MiB", at least 8MiB, found "1KiB"',
        ),
        ('"128MiB"', "true", ':5: [agent] memory_max: expected a size like "64MiB", found true'),
        ('"5s"', "5", ':23: [job] lateness: expected a duration like "60s", "250ms" or "1h", found 5'),
        ('"5s"', '"5"', ':23: [job] lateness: expected a duration like "60s", "250ms" or "1h", found "5"'),
        (
            '"Europe/Berlin"',
            '"Mars/Base"',
            ':11: [source] timezone: expected a time zone like "UTC" or "Europe/Berlin", found "Mars/Base"',
        ),
        (
            '"api"\n',
            '"a b"\n',
            ':14: [source] name: expected a name that FROM can hold: letters, digits and _, found "a b"',
        ),
        ('name = "api"\n', "", ":13: [source] name: expected a value, found nothing"),
        (
            '"api"',
            '"access"',
            ":14: [source] name: expected a name unlike that of another source ('access'), found \"access\"",
        ),
        (
            "parquet:lake",
            "s3:x",
            ':24: [job] sinks: expected "console", "console:table" (or json, csv), or "parquet:DIR", found ["console","s3:x"]',
        ),
        ("[[job]]", "[job]", ":17: [job]: expected a list of tables, each headed [[job]], found {"),
        (
            'lateness = "5s"',
            'file = "q.sql"',
            ":23: [job] file: expected a readable file (No such file or directory), found ",
        ),
        ('lateness = "5s"', 'emit = "1ms"', ":23: [job] emit: expected a duration"),
        ("[agent]", "[agent", ":2: not valid TOML: "),
        ('path = "/var/log/api.log"', "path = []", ":15: [source] path: expected a path like"),
        (
            'timezone = "Europe/Berlin"',
            'start = "middle"',
            ':11: [source] start: expected "end" or "beginning", found "middle"',
        ),
    ],
)
def test_a_mistake_is_named_with_file_line_key_expected_and_found(old: str, new: str, message: str) -> None:
    assert old in TEXT
    assert refusal(TEXT.replace(old, new, 1)).startswith(f"/etc/elf/elf.toml{message}")


def test_a_file_without_jobs_or_sources_is_refused() -> None:
    assert refusal("[agent]\n") == "/etc/elf/elf.toml: expected at least one [[source]], found none"


def test_a_job_has_one_query() -> None:
    head = '[[source]]\nname="a"\npath="x"\n'
    assert refusal(head + '[[job]]\nname="j"\n').startswith(
        '/etc/elf/elf.toml:4: [job] sql: expected one of sql = "SELECT …" and file = "query.sql", found neither'
    )


def test_a_query_in_a_file_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "errors.sql").write_text("SELECT 1")
    path = tmp_path / "elf.toml"
    path.write_text('[[source]]\nname="a"\npath="x"\n[[job]]\nname="j"\nfile="errors.sql"\n')
    [job] = load(path, environ={}).jobs
    assert (job.sql, job.where) == ("SELECT 1", str(tmp_path / "errors.sql"))


def test_the_environment_overrides_the_file_and_flags_override_both() -> None:
    environ = {
        "ELF_AGENT_NAME": "web2",
        "ELF_AGENT_MEMORY_MAX": "32MiB",
        "ELF_SOURCE_ACCESS_PATH": '["a", "b"]',
        "ELF_SOURCE_API_FORMAT": "combined",
        "ELF_JOB_ERRORS_SINKS": "console",
        "PATH": "/bin",
        "ELF_HOME": "of another program",
    }
    config = read(environ=environ, flags={"memory_max": "16MiB"})
    assert (config.agent.name, config.agent.memory_max) == ("web2", 16 << 20)
    assert config.sources[0].paths == ("/etc/elf/a", "/etc/elf/b")
    assert config.sources[1].format == "combined"
    assert config.jobs[0].sinks == ("console",)


def test_mistakes_in_environment_and_flags() -> None:
    assert refusal(TEXT, {"ELF_AGENT_NMAE": "x"}) == (
        "ELF_AGENT_NMAE in the environment: unknown key; did you mean ELF_AGENT_NAME?"
    )
    assert refusal(TEXT, {"ELF_JOB_ERRORS_KEEP": "x"}) == (
        'ELF_JOB_ERRORS_KEEP in the environment: expected a duration like "60s", "250ms" or "1h", found "x"'
    )
    assert refusal(TEXT, flags={"memory_max": "x"}).startswith("--memory-max: expected a size")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration: No such file"):
        load(tmp_path / "elf.toml", environ={})


def test_lines_of_keys_survive_strings_lists_and_inline_tables() -> None:
    text = "agent.name = 'x'\nsource = [\n {name = 'a'},\n]\n[[job]]\nsql = '''\n[x]\ny = 1\n'''\nname = 'j' # [\nkeep = '1h'\n"
    lines = key_lines(text)
    assert lines[("agent", 0, "name")] == 1
    assert lines[("source", 0, "")] == 2
    assert lines[("job", 0, "")] == 5
    assert lines[("job", 0, "sql")] == 6
    assert lines[("job", 0, "name")] == 10
    assert lines[("job", 0, "keep")] == 11
    assert ("x", 0, "y") not in lines


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.text(alphabet="ab=[]{}'\"#.\n 1", max_size=60))
def test_any_text_gives_lines_or_nothing(text: str) -> None:
    assert all(1 <= line <= text.count("\n") + 1 for line in key_lines(text).values())


class TestUnits:
    @pytest.mark.parametrize(
        ("text", "n"),
        [("64MiB", 64 << 20), ("1.5GiB", 3 << 29), ("1GB", 10**9), ("4096", 4096), ("2K", 2048), ("7B", 7)],
    )
    def test_size(self, text: str, n: int) -> None:
        assert units.size(text) == n

    @pytest.mark.parametrize("text", ["", "MiB", "-1MiB", "1 M iB", "1e3", "9999999999999TiB", "1h"])
    def test_bad_size(self, text: str) -> None:
        with pytest.raises(ValueError, match="a size like"):
            units.size(text)

    @pytest.mark.parametrize(
        ("text", "us"),
        [
            ("250ms", 250_000),
            ("60s", 60_000_000),
            ("1h30m", 5_400_000_000),
            ("0.1s", 100_000),
            ("0s", 0),
            ("1d", 86_400_000_000),
        ],
    )
    def test_duration(self, text: str, us: int) -> None:
        assert units.duration_us(text) == us
        assert units.duration_us(units.duration_text(us)) == us

    @pytest.mark.parametrize("text", ["", "60", "1x", "1h-30m", "s", "-1s"])
    def test_bad_duration(self, text: str) -> None:
        with pytest.raises(ValueError, match="a duration like"):
            units.duration_us(text)

    @pytest.mark.parametrize(
        ("text", "us"),
        [
            ("1h", 6_400_000_000),
            ("1970-01-01T00:00:01Z", 1_000_000),
            ("1970-01-01T01:00:00.5+01:00", 500_000),
            ("1970-01-02", 86_400_000_000),
        ],
    )
    def test_moment(self, text: str, us: int) -> None:
        assert units.moment_us(text, now_us=10_000_000_000) == us

    def test_moment_in_a_zone(self) -> None:
        assert (
            units.moment_us("2026-07-01T02:00", now_us=0, timezone="Europe/Berlin") == 1_782_864_000_000_000
        )

    def test_bad_moment(self) -> None:
        with pytest.raises(ValueError, match="a time like"):
            units.moment_us("yesterday", now_us=0)

    @pytest.mark.parametrize(
        ("n", "text"), [(812, "812 B"), (64 << 20, "64 MiB"), (1536, "1.5 KiB"), (0, "0 B")]
    )
    def test_size_text(self, n: int, text: str) -> None:
        assert units.size_text(n) == text
