"""The tables [[alert]] of job files: read, compiled against the job's query, written again."""

from __future__ import annotations

from pathlib import Path

import pytest

from elf.agent.config.alert_table import alert_text, compiled_alerts, fitting
from elf.agent.config.job_file import job_text, parse_job_file
from elf.errors import UsageError
from elf.jobmaster.alerts.alert import ALERTS_BYTES_MAX, NO_DATA
from elf.jobmaster.compile.query import compile
from elf.jobmaster.directory.job_spec import JobSpec, decode_job
from elf.jobmaster.directory.settings import Settings, decode
from elf.jobmaster.directory.versions import changed, started, version_of
from elf.jobmaster.plan.features import ALERTS
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.values.sql_types import BIGINT, STRING, TIMESTAMP
from elf.srt.messages.ids import job_id

PATH = Path("errors.toml")
FILE = """\
name = "errors"
sinks = ["pager"]
sql = '''
SELECT window, path, count(*) AS hits FROM access
WHERE status >= 500 GROUP BY window(time, '10 seconds'), path
'''

[[alert]]
name = "many"
when = '''
hits > 100
  AND path LIKE '/api/%'
'''
for = "1m"
text = "{path} had {hits} errors"
labels = { severity = "page", team = "web" }
sinks = "pager"

[[alert]]
name = "quiet"
when = "No data"
for = "5m"
"""


def plan_of(sql: str) -> Plan:
    return compile(sql, {"access": {"path": STRING, "status": BIGINT, "bytes": BIGINT, "time": TIMESTAMP}})


def spec_of(text: str = FILE) -> JobSpec:
    file = parse_job_file(text, PATH)
    plan = plan_of(file.sql)
    alerts = compiled_alerts(file.alerts, plan)
    about = {"keep_us": 3_600_000_000, "sinks": file.sinks, "emit_us": file.emit_us, "alerts": alerts}
    return started(JobSpec("errors", 1, "access", (version_of(plan, file.sql),), **about))  # type: ignore[arg-type]


def test_a_file_with_alerts_is_read_and_written() -> None:
    file = parse_job_file(FILE, PATH)
    many, quiet = file.alerts
    assert (many.name, many.for_us, many.sinks) == ("many", 60_000_000, ("pager",))
    assert many.labels == (("severity", "page"), ("team", "web"))
    assert (quiet.when, quiet.for_us) == (NO_DATA, 300_000_000)
    spec = spec_of()
    assert spec_of(job_text(spec)).alerts == spec.alerts
    assert [alert_text(each) for each in spec.alerts] == [
        "many: hits > 100 AND path LIKE '/api/%' for 1m labels severity=page, team=web text '{path} had {hits} errors' to pager",
        "quiet: no data for 5m",
    ]


def test_no_data_by_columns_that_the_query_groups_by() -> None:
    text = FILE.replace('when = "No data"', 'when = "No  data by  path"\ntext = "{path} is silent"')
    spec = spec_of(text)
    alert = spec.alerts[1]
    assert (alert.when, alert.by, alert.condition, alert.is_no_data) == (
        "no data by path",
        ("path",),
        b"",
        False,
    )
    assert alert_text(alert) == "quiet: no data by path for 5m text '{path} is silent'"
    assert spec_of(job_text(spec)).alerts == spec.alerts
    for change, said in (
        (
            ("by  path", "by hits"),
            'when: "no data by" needs columns that the query groups by; hits is none of them',
        ),
        (
            ("by  path", "by "),
            'when: expected columns that the query groups by behind it, like "no data by agent"',
        ),
        (("{path} is", "{hits} is"), "text: the text names {hits}, and without a row only path is known"),
        (('for = "5m"', ""), 'for: "no data" needs one'),
    ):
        with pytest.raises(UsageError) as caught:
            spec_of(text.replace(*change))
        assert said in str(caught.value)


def test_a_spec_with_alerts_travels_and_asks_for_agents_that_know_them() -> None:
    spec = spec_of()
    assert decode_job(spec.item()) == spec
    assert ALERTS in spec.needs
    settings = decode(spec.settings.encode())
    assert settings == spec.settings
    without = changed(spec, spec.versions[-1], "next", 5, None, settings=Settings(1, 2))
    assert without.alerts == ()
    assert ALERTS in without.needs, "the log may still have entries about them"


def test_a_spec_without_alerts_has_the_bytes_of_before() -> None:
    spec = JobSpec("errors", 1, "access", spec_of().versions)
    assert spec.encode()[:1] == bytes([0xDC]), "an array of 18 fields, as before"
    assert spec.encode()[1:3] == (18).to_bytes(2)
    assert ALERTS not in spec.needs
    assert Settings(1, 2).encode()[:1] == bytes([0x95])
    assert spec.id == job_id("errors")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("hits > 100", "hitz > 100"), "errors.toml:11: alert many: when: character 1 of its line: there is no column hitz"),
        (("path LIKE", "paht LIKE"), "errors.toml:12: alert many: when: character 7 of its line: there is no column paht"),
        (("{hits} errors", "{hitz} errors"), "errors.toml:15: alert many: text: the text names {hitz}, which is no column"),
        (("{hits} errors", "{hits errors"), "errors.toml:15: alert: text: expected {column} for a value"),
        (('for = "5m"\n', ""), 'errors.toml:19: alert quiet: for: "no data" needs one'),
        (('for = "5m"', "for = 5"), "errors.toml:22: alert: for: expected"),
        (('for = "5m"', 'fro = "5m"'), "errors.toml:22: alert: fro: unknown key; did you mean for?"),
        (('name = "quiet"', 'name = "many"'), "errors.toml:20: alert many: name: another alert of the job has this name"),
        (('name = "quiet"', 'name = "qu iet"'), "errors.toml:20: alert: name: expected a name of letters"),
        (('name = "quiet"\n', ""), "errors.toml:19: alert: name: expected name ="),
        (("severity =", "job ="), "errors.toml:16: alert: labels: expected names of labels"),
        (('"5m"', '"5m"\ntext = "{hits}"'), "errors.toml:23: alert quiet: text: the text names {hits}, and without data"),
        (('sinks = "pager"', "sinks = 5"), "errors.toml:17: alert: sinks: expected the name of a [[sink]]"),
        (("window(time, '10 seconds'), path", "path"), "errors.toml:10: alert many: when: the query has no window"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(change: tuple[str, str], said: str) -> None:
    text = FILE.replace(*change)
    if "no window" in said:
        text = text.replace("window, path", "path")
    assert text != FILE
    with pytest.raises(UsageError) as caught:
        spec_of(text)
    assert str(caught.value).startswith(said)


def test_alerts_have_a_bound_in_all() -> None:
    more = "".join(
        f'\n[[alert]]\nname = "a{n}"\nwhen = "hits > {n}"\ntext = "{"x" * 490}"\n' for n in range(12)
    )
    with pytest.raises(UsageError, match=f"{ALERTS_BYTES_MAX:,} is the limit"):
        spec_of(FILE + more)
    with pytest.raises(UsageError, match="at most 16 alerts, found 20"):
        spec_of(FILE + 18 * more[:40])


def test_a_change_of_the_query_keeps_alerts_that_still_fit_it() -> None:
    alerts = spec_of().alerts
    same = plan_of(
        "SELECT path, count(*) AS hits, max(bytes) AS m FROM access GROUP BY window(time, '1 minute'), path"
    )
    assert fitting(alerts, same, "errors") == alerts
    wider = plan_of("SELECT path, avg(bytes) AS hits FROM access GROUP BY window(time, '1 minute'), path")
    again = fitting(alerts, wider, "errors")
    assert again[0].condition != alerts[0].condition
    assert again[0].when == alerts[0].when
    other = plan_of("SELECT count(*) AS n FROM access GROUP BY window(time, '1 minute')")
    with pytest.raises(UsageError, match="there is no column hits in rows"):
        fitting(alerts, other, "errors")
