"""What an agent says of a change that a master has taken: when it is in force, or that it never will be."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from msgspec.structs import replace

from elf.agent.control.changing import in_force
from elf.errors import ElfError
from elf.jobmaster.directory.changes import rank_of
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.directory.known_schedule import schedule_item
from elf.jobmaster.directory.versions import changed, started
from elf.srt.messages.messages import Line
from elf.srt.messages.parameters import Parameters
from tests.rigs.mesh_lines import SECOND, plan_of, version_of

VERSIONS = [version_of(plan_of("10 seconds", f"WHERE status > {least}")) for least in range(4)]
SPEC = started(JobSpec("hits", 1, "access", (VERSIONS[0],)))
BALLOT = (1, b"M" * 16)
LOOKS_S = 0.02


def directory_of(*specs: JobSpec) -> Directory:
    directory = Directory(Parameters(), lambda item: True, Random(0))
    for spec in specs:
        directory.put(spec.item(), 0)
    return directory


def change(spec: JobSpec, at: int, **settings: int) -> JobSpec:
    return changed(
        spec, VERSIONS[at], "split", at * SECOND, None, settings=replace(spec.settings, **settings)
    )


def announce(directory: Directory, spec: JobSpec, *lines: tuple[int, int]) -> None:
    """The log of the job is under that spec, with these versions from these times on."""
    schedule = tuple(
        Line(number, VERSIONS[at].digest, from_us, VERSIONS[at].plan)
        for number, (at, from_us) in enumerate(lines, start=1)
    )
    directory.put(schedule_item(SPEC.id, BALLOT, rank_of(spec), schedule), 0)


def looked(directory: Directory, spec: JobSpec) -> int | None:
    return asyncio.run(in_force(directory, spec, LOOKS_S))


def test_a_change_is_in_force_when_a_master_announces_its_line() -> None:
    one = change(SPEC, 1)
    directory = directory_of(one)
    assert looked(directory, one) is None
    announce(directory, one, (0, 0), (1, 77))
    assert looked(directory, one) == 77


def test_a_change_before_the_newest_has_the_line_that_it_had() -> None:
    one = change(SPEC, 1)
    two = change(one, 2)
    directory = directory_of(two)
    announce(directory, two, (0, 0), (1, 77), (2, 99))
    assert looked(directory, one) == 77


@pytest.mark.parametrize("is_announced", [False, True])
def test_a_change_that_waited_and_was_changed_never_comes_into_force(is_announced: bool) -> None:
    one = change(SPEC, 1)
    two = change(one, 2)
    directory = directory_of(two)
    if is_announced:
        announce(directory, two, (0, 0), (2, 99))
    else:
        announce(directory, SPEC, (0, 0))
    with pytest.raises(ElfError) as caught:
        looked(directory, one)
    assert str(caught.value) == (
        f"job hits: version {one.versions[-1].digest} never comes into force: it waited until lines had been read again for the "
        f"change before, and a newer change, to version {two.versions[-1].digest}, took its place; see elf job history hits"
    )


def test_new_settings_of_a_version_that_waited_bring_it_into_force() -> None:
    one = change(SPEC, 1)
    two = change(one, 1, lateness_us=7 * SECOND)
    directory = directory_of(two)
    announce(directory, two, (0, 0), (1, 99))
    assert looked(directory, one) == 99
