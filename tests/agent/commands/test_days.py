"""Windows of days by the calendar of a time zone, of 23, 24 and 25 hours, against Python's calendar."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from elf.__main__ import main
from elf.agent.run.engine import RunOptions, compile_plan
from elf.agent.work.worker import Worker
from elf.errors import PeerError
from elf.jobmaster.plan import codec
from elf.jobmaster.plan.plan import Plan
from elf.sinks.console.cells import show_in

DAILY = "SELECT window, window.end AS until, count(*) AS n FROM access GROUP BY window(time, '1 day')"
SLIDING = (
    "SELECT window, window.end AS until, count(*) AS n FROM access GROUP BY window(time, '2 days', '1 day')"
)
CHANGES = {
    "Europe/Berlin": ((2015, 3, 29), (2015, 10, 25)),
    "America/Sao_Paulo": ((2015, 10, 18), (2015, 2, 22)),
}


@pytest.fixture(autouse=True)
def utc_again() -> object:
    yield
    show_in("UTC")


def log_of(path: Path, zone: str) -> list[datetime]:
    """Lines around the zone's changes, in any order; their times."""
    chance = random.Random(zone)
    around = [datetime(*day, 12, tzinfo=UTC) for day in CHANGES[zone]]
    times = [
        chance.choice(around) + timedelta(seconds=chance.randrange(-200_000, 200_000)) for _ in range(800)
    ]
    line = '192.0.2.1 - - [{:%d/%b/%Y:%H:%M:%S} +0000] "GET / HTTP/1.1" 200 1 "-" "-"\n'
    path.write_text("".join(line.format(at) for at in times))
    return times


def midnight(day: date, zone: str) -> str:
    """The first moment of a day: 01:00 where the clock skips midnight."""
    at = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    while (at - timedelta(minutes=30)).astimezone(ZoneInfo(zone)).date() >= day:
        at -= timedelta(minutes=30)
    return at.astimezone(ZoneInfo(zone)).isoformat()


@pytest.mark.parametrize("zone", CHANGES)
def test_each_line_is_in_the_day_of_its_calendar(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, zone: str
) -> None:
    times = log_of(tmp_path / "a.log", zone)
    days = Counter(at.astimezone(ZoneInfo(zone)).date() for at in times)

    def rows(query: str) -> dict[str, tuple[str, str, int]]:
        assert main(["run", "-q", "--display-timezone", zone, query, str(tmp_path / "a.log")]) == 0
        made = [json.loads(row) for row in capfd.readouterr().out.splitlines()]
        return {row["window"]["start"]: (row["window"]["end"], row["until"], row["n"]) for row in made}

    one = timedelta(days=1)
    assert rows(DAILY) == {
        midnight(day, zone): (midnight(day + one, zone), midnight(day + one, zone), n)
        for day, n in days.items()
    }
    starts = {day - each for day in days for each in (one, timedelta())}
    assert rows(SLIDING) == {
        midnight(day, zone): (midnight(day + 2 * one, zone),) * 2 + (days[day] + days[day + one],)
        for day in starts
    }


def plan_of(query: str, zone: str) -> Plan:
    from elf.agent.formats.choice import FormatChoice

    schema = FormatChoice("combined", print).schema({})
    plan = compile_plan(RunOptions(query, ("-",), days_of=zone), schema)
    assert isinstance(plan, Plan)
    return plan


def test_the_day_of_a_line_has_as_many_hours_as_its_calendar() -> None:
    """The day of 25 hours ends at 23:00 UTC; the one before it at 22:00 UTC."""
    worker = Worker(plan_of(DAILY, "Europe/Berlin"))
    day = int(datetime(2015, 10, 25, tzinfo=UTC).timestamp()) * 1_000_000
    hour = 3_600_000_000
    assert [worker.pane_of(day + n * hour) // (24 * hour) for n in (-3, -2, 22, 23)] == [
        16732,
        16733,
        16733,
        16734,
    ]


def test_live_days_are_days_of_utc(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log_of(tmp_path / "a.log", "Europe/Berlin")
    arguments = ["run", DAILY, str(tmp_path / "a.log"), "--follow", "--display-timezone", "Europe/Berlin"]
    assert main(arguments) == 2
    assert "--display-timezone: with --follow, windows of days are days of UTC" in capfd.readouterr().err


def test_only_windows_of_whole_days_follow_the_calendar_and_such_a_plan_does_not_travel() -> None:
    assert plan_of(DAILY.replace("1 day", "12 hours"), "Europe/Berlin") == plan_of(
        DAILY.replace("1 day", "12 hours"), ""
    )
    with pytest.raises(PeerError, match="of elf run only"):
        codec.decode(codec.encode(plan_of(DAILY, "Europe/Berlin")))


def test_a_lake_refuses_days_of_a_zone_and_says_how_to_get_them(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log_of(tmp_path / "a.log", "Europe/Berlin")
    lake = ["--sink", f"parquet:{tmp_path / 'lake'}", "--display-timezone", "Asia/Kolkata"]
    assert main(["run", DAILY, str(tmp_path / "a.log"), *lake]) == 2
    assert (
        "elf: --display-timezone: a lake keeps windows of UTC; run the query with window(time, '30 minutes'), then "
        "elf report LAKE --every 1d --display-timezone Asia/Kolkata has days of Asia/Kolkata\n"
    ) in capfd.readouterr().err
