"""What the directory holds about one job."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from elf.errors import PeerError
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import (
    AgentAdvert,
    JobSpec,
    Trial,
    Version,
    ballot_item,
    decode_job,
)
from elf.jobmaster.directory.known_schedule import schedule_item
from elf.srt.messages.messages import NO_BALLOT, Line
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.patterns import PATTERNS_MAX

A, B = (bytes(15) + bytes([number]) for number in (1, 2))


def spec(number: int, name: str = "visits") -> JobSpec:
    return JobSpec(name, number, "access", (Version("d1", b"plan", "SELECT 1"),))


def test_a_job_reads_its_own_items() -> None:
    known, ballot = spec(1), (3, A)
    directory = Directory(Parameters(), lambda item: True, Random(0))
    items = JobItems(directory, known.id)
    assert (items.spec(known), items.ballot(), items.schedule()) == (None, NO_BALLOT, None)
    other = spec(2, "hits")
    for item in (known.item(), other.item(), ballot_item(other.id, (9, B))):
        directory.put(item, 0)
    assert items.spec(known) is known
    assert items.ballot() == NO_BALLOT
    directory.put(spec(2).item(), 0)
    directory.put(ballot_item(known.id, ballot), 0)
    directory.put(schedule_item(known.id, ballot, (2, b"digest"), (Line(1, "d1", 5, b"plan"),)), 0)
    assert items.spec(known) == spec(2)
    assert items.ballot() == ballot
    schedule = items.schedule()
    assert schedule is not None
    assert schedule.rank == (2, b"digest")


def test_agents_are_those_that_follow_the_source() -> None:
    directory = Directory(Parameters(), lambda item: True, Random(0))
    adverts = {A: AgentAdvert("web1", ("access", "errors"), 1), B: AgentAdvert("web2", ("errors",), 1)}
    for node, advert in adverts.items():
        directory.put(advert.item(node), 0)
    items = JobItems(directory, spec(1).id)
    assert items.agents(spec(1)) == [(A, adverts[A])]
    errors = replace(spec(1), source="errors")
    assert sorted(items.agents(errors)) == [(A, adverts[A]), (B, adverts[B])]


def test_agents_of_a_trial_are_those_with_such_a_name() -> None:
    directory = Directory(Parameters(), lambda item: True, Random(0))
    adverts = {A: AgentAdvert("web1", ("access",), 1), B: AgentAdvert("web22", ("access",), 1)}
    for node, advert in adverts.items():
        directory.put(advert.item(node), 0)
    items = JobItems(directory, spec(1).id)
    for patterns, nodes in {(): [A, B], ("web?",): [A], ("db*", "*2"): [B], ("WEB*", "web"): []}.items():
        trial = replace(spec(1), trial=Trial("visits", "d0", patterns, 9))
        assert sorted(node for node, _ in items.agents(trial)) == nodes
        assert [node for node in (A, B) if trial.takes(adverts[node].name, ("access",))] == nodes
        assert not trial.takes("web1", ("errors",))


def test_a_trial_ends_at_its_time_and_other_jobs_do_not() -> None:
    trial = replace(spec(1), trial=Trial("visits", "d0", (), 9))
    assert [each.has_ended(8) for each in (spec(1), trial, replace(trial, stopped=True))] == [
        False,
        False,
        True,
    ]
    assert [each.has_ended(9) for each in (spec(1), trial)] == [False, True]
    assert decode_job(trial.item()) == trial


def test_a_spec_of_an_agent_that_knows_no_trials_is_no_trial() -> None:
    fields = [*msgspec.structs.astuple(spec(1))]
    fields[JobSpec.__struct_fields__.index("versions")] = [["d1", b"plan", "SELECT 1"]]
    body = msgspec.msgpack.encode(fields[: JobSpec.__struct_fields__.index("trial")])
    assert decode_job(replace(spec(1).item(), body=body)) == spec(1)
    fields[JobSpec.__struct_fields__.index("trial")] = ["visits", "d0", ["x"] * (PATTERNS_MAX + 1), 9]
    with pytest.raises(PeerError):
        decode_job(replace(spec(1).item(), body=msgspec.msgpack.encode(fields)))
