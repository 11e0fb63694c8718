"""What a change would do to windows, as `--dry-run` says it."""

from __future__ import annotations

import pytest

from elf.agent.commands.jobs.outlook import line_lines, line_values
from elf.agent.control.protocol import AgentEstimate, Estimates
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.directory.job_spec import JobSpec, Mode, Version
from elf.jobmaster.directory.versions import changed, version_of
from tests.rigs.mesh_lines import SOURCES

SECOND = 1_000_000
NOW_US = 1_700_000_000 * SECOND + 3_500_000
SQL = "SELECT window, count(*) AS n FROM access {} GROUP BY window(time, {}) {}"
FOUND = Estimates(
    (AgentEstimate("web1", 1_000, 100, 10 * SECOND, 1, 1), AgentEstimate("web2", problem="?")), 2
)


def version(where: str = "", window: str = "'10 seconds'", having: str = "") -> Version:
    text = SQL.format(where, window, having)
    return version_of(compile_query(text, SOURCES), text)


def job() -> JobSpec:
    about = {"lateness_us": 2 * SECOND, "keep_us": 3_600 * SECOND, "sinks": ()}
    return JobSpec("hits", 1, "access", (version(),), line_us=0, since_us=SECOND, **about)  # type: ignore[arg-type]


def outlook(new: Version, mode: Mode) -> tuple[dict[str, object], list[str]]:
    spec = changed(job(), new, mode, NOW_US, None)
    return line_values(job(), spec, FOUND), list(line_lines(job(), spec, FOUND))


def test_a_change_now_names_the_windows_of_each_version_that_it_cuts() -> None:
    new = version(window="'1 minute', '20 seconds'")
    values, lines = outlook(new, "split")
    start_us = 1_700_000_000 * SECOND
    assert (values["from_us"], values["cuts"], values["rereads"], values["read_again"]) == (
        NOW_US,
        True,
        False,
        [],
    )
    assert values["windows"] == [
        {
            "version": version().digest,
            "start_us": start_us,
            "end_us": start_us + 10 * SECOND,
            "count": 1,
        },
        {
            "version": new.digest,
            "start_us": start_us - 40 * SECOND,
            "end_us": start_us + 60 * SECOND,
            "count": 3,
        },
    ]
    assert lines[1:] == [
        f"cut: the window of version {version().digest} from 2023-11-14 22:13:20 to 2023-11-14 22:13:30 UTC",
        f"cut: 3 windows of version {new.digest} from 2023-11-14 22:12:40 to 2023-11-14 22:14:20 UTC",
    ]


def test_a_restate_says_from_when_on_and_what_each_agent_reads_again() -> None:
    values, lines = outlook(version("WHERE status >= 400"), "restate")
    # The window before is final 2 s after its end: not yet, at 3.5 s past 22:13:20 it is.
    assert values == {
        "from_us": 1_700_000_000 * SECOND,
        "cuts": False,
        "windows": [],
        "rereads": True,
        "read_again": [{"agent": "web1", "lines": 35, "bytes": 350}],
    }
    assert lines == [
        "from the start of the oldest window that is not final on, about 2023-11-14 22:13:20 UTC; agents read the lines of these "
        "windows again",
        "estimate: web1 would read 35 lines (350 B) again, at the rate of its last lines",
    ]


@pytest.mark.parametrize("mode", ["split", "restate"])
def test_another_having_says_from_when_on_and_reads_nothing(mode: Mode) -> None:
    values, lines = outlook(version(having="HAVING count(*) > 3"), mode)
    assert (values["from_us"], values["rereads"], values["windows"]) == (1_700_000_000 * SECOND, False, [])
    assert lines == [
        "from the start of the oldest window that is not final on, about 2023-11-14 22:13:20 UTC; no line is read again, and no "
        "window is cut"
    ]


def test_the_next_window_is_not_cut() -> None:
    values, _ = outlook(version("WHERE status >= 400"), "next")
    assert (values["from_us"], values["cuts"]) == (1_700_000_010 * SECOND, False)
