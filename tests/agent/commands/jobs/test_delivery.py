"""What `elf job show` says of a job's sinks, from a status."""

from __future__ import annotations

from msgspec.structs import replace

from elf.agent.commands.jobs.delivery import deliveries
from elf.agent.control.protocol import LagLine, Member, SinkLine, Status
from elf.jobmaster.alerts.alert import Alert
from elf.jobmaster.directory.job_spec import JobSpec, Version

SPEC = JobSpec("hits", 1, "access", (Version("v1", b"", ""),), sinks=("lake", "pager", "none"))


def member(name: str, *sinks: str, lags: tuple[LagLine, ...] = (), problem: str = "") -> Member:
    lines = tuple(SinkLine(sink, 0, 0, 7, 0, 0, problem) for sink in sinks)
    return Member(name, name * 2, "", "alive", sinks=sinks, delivering=lines, lags=lags)


def status(*members: Member) -> Status:
    return Status(members[0].id, members, ())


def texts(*members: Member) -> list[str]:
    return [each.text for each in deliveries(SPEC, status(*members))]


def test_each_sink_of_the_job_is_shown_with_its_agents_and_what_waits() -> None:
    lags = (LagLine("hits", "pager", 1, 65_000_000, 9, 0), LagLine("other", "lake", 5, 9, 9, 3))
    assert texts(member("web1", "lake", lags=lags), member("web2", "lake", "pager", problem="timed out")) == [
        "lake at web1, web2: nothing waits; timed out",
        "pager at web2: 1 window waits, the oldest for 1m 5s; 9 windows delivered; timed out",
        "none: no agent that answers has this sink; nothing waits",
    ]


def test_lost_windows_and_sinks_that_the_job_does_not_name_are_shown_if_windows_wait() -> None:
    lags = (LagLine("hits", "lake", 0, 0, 9, 2), LagLine("hits", "mine", 1_200, 3_000_000, 0, 0))
    assert texts(member("web1", "lake", "mine", lags=lags)) == [
        "lake at web1: nothing waits; 9 windows delivered; 2 windows lost",
        "pager: no agent that answers has this sink; nothing waits",
        "none: no agent that answers has this sink; nothing waits",
        "mine at web1: 1,200 windows wait, the oldest for 3s",
    ]


def test_sinks_that_take_the_job_and_those_of_its_alerts_are_shown() -> None:
    takes = (("all", ("*",)), ("api", ("api-*",)))
    taking = replace(member("web1", "all", "api", "am"), takes=takes)
    spec = replace(SPEC, sinks=(), alerts=(Alert("many", "hits > 1", b"", sinks=("am", "all")),))
    assert [each.text for each in deliveries(spec, status(taking))] == [
        "am at web1: nothing waits",
        "all at web1: nothing waits",
    ]
    assert [each.sink for each in deliveries(replace(SPEC, name="api-x"), status(taking))] == [
        *("lake", "pager", "none", "all", "api")
    ]
