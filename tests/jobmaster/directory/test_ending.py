"""The spec in which a job ends, and the one that ends it, which follows from the first."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from elf.errors import PeerError
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.ending import STOP_AHEAD, ended, finishing, stopped
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import END, JobSpec, decode_job
from elf.jobmaster.directory.versions import started, version_of
from elf.jobmaster.log.schedule import Shape, plan_of
from elf.jobmaster.values.sql_types import BIGINT, TIMESTAMP
from elf.srt.messages.messages import Item
from elf.srt.messages.parameters import Parameters

SQL = "SELECT window, count(*) AS n FROM access WHERE status >= :least GROUP BY window(time, '10 seconds')"
NOW_US = 1_700_000_000_000_000


def job() -> JobSpec:
    columns = {"access": {"time": TIMESTAMP, "status": BIGINT}}
    version = version_of(compile_query(SQL, columns, {"least": "400"}), SQL)
    return started(JobSpec("hits", 3, "access", (version,), since_us=NOW_US, line_us=NOW_US))


def last_of(spec: JobSpec) -> JobSpec:
    return finishing(spec, NOW_US + 7, None, 40)


def test_the_end_is_a_change_to_a_version_with_the_same_windows_that_takes_no_line() -> None:
    spec = job()
    last = last_of(spec)
    assert (last.number, last.mode, last.line_us) == (40, "split", NOW_US + 7)
    assert [each.digest for each in last.whole] == [spec.versions[0].digest, END]
    change = last.changes[-1]
    assert (change.version, change.former, change.number) == (END, spec.versions[0].digest, 40)
    before, end = (plan_of(each.plan) for each in last.whole)
    assert Shape.of(end) == Shape.of(before)
    assert end.where is not None
    assert end.where.value is False  # type: ignore[union-attr]
    assert last.is_finishing
    assert last.query == spec.versions[0]
    assert not spec.is_finishing
    assert spec.query == spec.versions[0]


def test_the_stopped_spec_follows_from_the_finishing_one_whatever_its_signature() -> None:
    spec, last = job(), last_of(job())
    item = ended(replace(last, end=b"signed"))
    assert item == stopped(last, last.number).item(b"signed")
    end = decode_job(item)
    assert end == replace(
        spec, number=40 + STOP_AHEAD, stopped=True, mode="split", line_us=NOW_US + 7, changes=last.changes
    )
    assert not end.is_finishing
    assert decode_job(replace(last, end=b"signed").item()).end == b"signed"


def test_a_change_that_ends_a_job_needs_the_signature_of_the_end_too() -> None:
    def verify(item: Item) -> bool:
        return item.signature == b"op"

    last = last_of(job())
    held = JobItems(Directory(Parameters(), verify, random.Random(1)), last.id)
    assert held.accepts(replace(last, end=b"op").item(b"op"))
    assert not held.accepts(last.item(b"op"))
    assert not held.accepts(replace(last, end=b"op").item(b""))


@pytest.mark.parametrize("order", [(END,), (END, "a"), ("a", END, "b")])
def test_an_end_that_is_not_the_last_of_several_versions_is_refused(order: tuple[str, ...]) -> None:
    (version,) = job().versions
    spec = replace(job(), versions=tuple(replace(version, digest=each) for each in order))
    with pytest.raises(PeerError, match="an end that is not its last version"):
        decode_job(spec.item())
