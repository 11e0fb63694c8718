"""`elf job apply` against a mesh of one dictionary: what it does, in which order, and what it leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from elf.agent.commands.jobs.folder.apply import Apply, apply_command
from elf.agent.control import protocol as w
from elf.errors import ElfError, UsageError
from elf.jobmaster.directory.ending import ended
from elf.jobmaster.directory.job_spec import JobSpec, decode_job
from elf.srt.messages.ids import job_id
from elf.srt.messages.messages import Item

QUERIES = tuple(
    f"SELECT window, count(*) AS n FROM access WHERE status >= {status} GROUP BY window(time, '10 seconds')"
    for status in (400, 500)
)
NOW_US = 1_700_000_000_000_000


class OneAgent:
    """Its control socket, and all jobs of its mesh, which end at once when they are asked to finish. failing: jobs whose changes
    and starts fail. told: requests that changed something."""

    def __init__(self, *, signed: bool = False) -> None:
        self.items: dict[bytes, Item] = {}
        self.failing: set[str] = set()
        self.told: list[str] = []
        self._signed = signed

    def __enter__(self) -> OneAgent:
        return self

    def __exit__(self, *about: object) -> None:
        pass

    def one(self, request: w.AnyRequest) -> w.AnyAnswer:
        if isinstance(request, w.JobGet):
            sources = {"access": w.HeldSource(3)}
            item = self.items.get(job_id(request.name))
            number = decode_job(item).number + 1 if item else 1
            return w.JobHeld(item, (), ("access",), (), NOW_US, self._signed, sources, next=number)
        if isinstance(request, w.JobList):
            return w.Jobs(tuple(map(line_of, self.specs.values())))
        if isinstance(request, w.JobEstimate):
            return w.Estimates((), 3)
        assert isinstance(request, w.JobPut | w.JobChange)
        spec = decode_job(request.item)
        if spec.name in self.failing:
            raise ElfError("it fails")
        held = self.items.get(spec.id)
        before = decode_job(held).number if held else 0
        assert spec.number == before + 1
        self.items[spec.id] = ended(spec) if spec.is_finishing else request.item
        self.told.append(f"{'stop' if spec.is_finishing else 'put'} {spec.name}")
        return w.Changed(NOW_US, 1) if isinstance(request, w.JobChange) else w.Done()

    @property
    def specs(self) -> dict[str, JobSpec]:
        return {spec.name: spec for spec in map(decode_job, self.items.values())}

    @property
    def running(self) -> dict[str, tuple[str, str]]:
        """Job -> its query and label."""
        return {
            name: (spec.versions[-1].text, spec.label)
            for name, spec in self.specs.items()
            if not spec.stopped
        }


def line_of(spec: JobSpec) -> w.JobLine:
    state = "stopped" if spec.stopped else "running"
    return w.JobLine(
        spec.name, state, spec.number, "access", "v", "", (), 1, 1, 1, 1, "", 3, label=spec.label
    )


@pytest.fixture
def agent() -> Iterator[OneAgent]:
    with connected(OneAgent()) as agent:
        yield agent


class connected:  # noqa: N801 - used as a function
    """All commands talk to that agent meanwhile."""

    def __init__(self, agent: OneAgent) -> None:
        self.agent = agent
        self._patches = [
            patch(f"elf.agent.commands.jobs.{module}.connect", lambda _: agent)
            for module in ("job", "change", "folder.apply")
        ]

    def __enter__(self) -> OneAgent:
        for each in self._patches:
            each.start()
        return self.agent

    def __exit__(self, *about: object) -> None:
        for each in self._patches:
            each.stop()


def write(folder: Path, queries: Mapping[str, str]) -> Path:
    """Exactly these files."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, sql in queries.items():
        (folder / f"{name}.sql").write_text(sql)
    return folder


def apply(folder: Path, **options: Any) -> list[str]:
    return list(apply_command(Apply(folder, **options), None))


def until_error(folder: Path, **options: Any) -> tuple[list[str], str]:
    """What was printed, and the error after it; "" if there was none."""
    said: list[str] = []
    try:
        for line in apply_command(Apply(folder, **options), None):
            said.append(line)
    except ElfError as error:
        return said, str(error)
    return said, ""


def actions(folder: Path, **options: Any) -> dict[str, str]:
    (text,) = apply(folder, json=True, **options)
    return {job["name"]: job["action"] for job in json.loads(text)["jobs"]}


def test_what_was_done_is_said_in_order(agent: OneAgent, tmp_path: Path) -> None:
    folder = write(tmp_path / "web", {"a": QUERIES[0], "gone": QUERIES[0]})
    assert [line.split()[:2] for line in apply(folder)] == [
        ["started", "a"],
        ["started", "gone"],
        ["2", "started"],
    ]
    write(folder, {"a": QUERIES[1], "b": QUERIES[0]})
    first, second = (agent.specs["a"].versions[-1].digest, agent.specs["gone"].versions[-1].digest)
    assert first == second
    said = apply(folder, prune=True, yes=True)
    changed = agent.specs["a"].versions[-1].digest
    assert said == [
        f"started    b     version {first}",
        f"updated    a     version {changed}  in force from 2023-11-14 22:13:20 UTC on",
        "           where: (status >= 400)  ->  (status >= 500)",
        "stopping   gone  lines from 2023-11-14 22:13:20 UTC on do not count; it ends when its windows are final",
        "1 started, 1 updated, 1 stopping",
    ]
    assert agent.told[2:] == ["put b", "put a", "stop gone"]
    assert apply(folder, prune=True, dry_run=True) == [
        f"unchanged  a  version {changed}",
        f"unchanged  b  version {first}",
        "2 unchanged; nothing was changed",
    ]


def test_a_dry_run_says_what_needs_a_yes_and_does_nothing(agent: OneAgent, tmp_path: Path) -> None:
    folder = write(tmp_path / "web", {"a": QUERIES[0], "b": QUERIES[0]})
    apply(folder)
    write(folder, {"b": QUERIES[1], "c": QUERIES[0]})
    before = dict(agent.items)
    *_, last = apply(folder, prune=True, dry_run=True)
    assert last == (
        "1 to start, 1 to update, 1 to stop; nothing was changed; --prune would stop 1 of the 2 jobs that run (a), more than a "
        "fifth; if that is meant, add --yes"
    )
    with pytest.raises(UsageError, match="add --yes; nothing was done"):
        apply(folder, prune=True)
    assert agent.items == before
    assert actions(folder, prune=True, dry_run=True) == {"a": "stop", "b": "update", "c": "start"}
    assert agent.items == before


def test_a_failure_keeps_jobs_from_being_stopped_and_others_from_nothing(
    agent: OneAgent, tmp_path: Path
) -> None:
    folder = write(tmp_path / "web", {"a": QUERIES[0], "gone": QUERIES[0]})
    apply(folder)
    write(folder, {"a": QUERIES[1], "b": QUERIES[0], "c": QUERIES[0]})
    agent.failing = {"b"}
    said, error = until_error(folder, prune=True, yes=True)
    digests = {name: spec.versions[-1].digest for name, spec in agent.specs.items()}
    assert said == [
        "failed     b: it fails",
        f"started    c     version {digests['c']}",
        f"updated    a     version {digests['a']}  in force from 2023-11-14 22:13:20 UTC on",
        "           where: (status >= 400)  ->  (status >= 500)",
        "failed     gone: it runs on, since not all else was done",
        "1 started, 1 updated",
    ]
    assert error == "2 of 4 jobs are not as the folder says; apply it again"
    assert set(agent.running) == {"a", "c", "gone"}
    (text,), error = until_error(folder, json=True, prune=True, yes=True)
    assert [(job["name"], job["error"]) for job in json.loads(text)["jobs"]] == [
        ("b", "it fails"),
        ("gone", "it runs on, since not all else was done"),
        ("a", None),
        ("c", None),
    ]
    assert error.startswith("2 of 4 jobs")
    agent.failing = set()
    assert actions(folder, prune=True, yes=True) == {
        "a": "unchanged",
        "b": "start",
        "c": "unchanged",
        "gone": "stop",
    }
    assert set(agent.running) == {"a", "b", "c"}


def test_a_job_that_was_changed_meanwhile_is_not_touched(agent: OneAgent, tmp_path: Path) -> None:
    folder = write(tmp_path / "web", {"a": QUERIES[0], "b": QUERIES[0]})
    steps = apply_command(Apply(folder, json=False), None)
    assert next(steps).startswith("started    a")
    other = replace(agent.specs["a"], name="b", label="")
    agent.items[other.id] = other.item()
    assert next(steps) == "failed     b: another command changed the job meanwhile"
    assert agent.specs["b"] == other


def test_a_mesh_with_keys_is_not_changed_in_part(tmp_path: Path) -> None:
    folder = write(tmp_path / "web", {"a": QUERIES[0]})
    with connected(OneAgent(signed=True)) as agent:
        with pytest.raises(UsageError, match="must be signed"):
            apply(folder)
        assert agent.told == []
        assert actions(folder, dry_run=True) == {"a": "start"}


FOLDERS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(QUERIES), min_size=1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["web", "other"]), FOLDERS, st.booleans()), max_size=6))
def test_any_folders_become_the_meshs_jobs(rounds: Sequence[tuple[str, dict[str, str], bool]]) -> None:
    """Against a dictionary: each folder owns the jobs that it started; the job `own` is nobody's."""
    model: dict[str, tuple[str, str]] = {}
    with TemporaryDirectory() as path, connected(OneAgent()) as agent:
        apply(write(Path(path) / "first", {"own": QUERIES[0]}))
        own = replace(agent.specs["own"], label="")
        agent.items[own.id] = own.item()
        for label, files, prune in rounds:
            folder = write(Path(path) / label, files)
            if any(model.get(name, ("", label))[1] != label for name in files):
                before = dict(agent.items)
                with pytest.raises(UsageError, match="nothing was done"):
                    apply(folder, prune=prune, yes=True)
                assert agent.items == before
                continue
            if prune:
                model = {name: job for name, job in model.items() if job[1] != label}
            model |= {name: (sql, label) for name, sql in files.items()}
            apply(folder, prune=prune, yes=True)
            assert agent.running == {"own": (QUERIES[0], "")} | model
            before = dict(agent.items)
            assert set(actions(folder, prune=prune).values()) == {"unchanged"}
            assert agent.items == before
