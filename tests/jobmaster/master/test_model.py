"""The master compared with one pass over the lines: bundles that come in order, repeated, too early, merged, split, or not at
all; masters that die with half of their proposals; and changes of the job in all modes, inside panes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rigs.master_model import Mesh, some_workers
from tests.rigs.master_rig import T0
from tests.rigs.mesh_lines import SECOND

seeds = st.integers(0, 1 << 32)


def run(mesh: Mesh, steps: int) -> None:
    for _ in range(steps):
        mesh.step()
    mesh.rig.master.check()


@pytest.mark.slow
@given(seed=seeds)
@settings(max_examples=40, derandomize=True, deadline=None)
def test_every_window_equals_one_pass_over_all_lines(seed: int) -> None:
    rng = Random(seed)
    mesh = Mesh(rng, some_workers(rng, 3), ["10 seconds"])
    run(mesh, 60)
    mesh.finish()


@pytest.mark.slow
@given(seed=seeds)
@settings(max_examples=30, derandomize=True, deadline=None)
def test_every_window_equals_one_pass_when_masters_die(seed: int) -> None:
    rng = Random(seed)
    mesh = Mesh(rng, some_workers(rng, 3), ["10 seconds/5 seconds"])
    for _ in range(3):
        run(mesh, 25)
        mesh.take_over()
    run(mesh, 25)
    mesh.finish()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["split", "restate", "next"])
@given(seed=seeds, at=st.integers(0, 60 * SECOND))
@settings(max_examples=30, derandomize=True, deadline=None)
def test_no_result_mixes_two_versions(mode: str, seed: int, at: int) -> None:
    rng = Random(seed)
    mesh = Mesh(rng, some_workers(rng, 2), ["10 seconds", "7 seconds"])
    run(mesh, 40)
    mesh.change(mode, T0 + at)
    run(mesh, 40)
    mesh.finish()
    assert len(mesh.rig.state.schedule) <= 2


@pytest.mark.slow
@given(seed=seeds, places=st.lists(st.integers(1, 60 * SECOND), min_size=2, max_size=3))
@settings(max_examples=30, derandomize=True, deadline=None)
def test_changes_while_lanes_are_open_and_masters_die(seed: int, places: list[int]) -> None:
    rng = Random(seed)
    mesh = Mesh(rng, some_workers(rng, 2), ["10 seconds", "4 seconds", "15 seconds/5 seconds"])
    for at in places:
        run(mesh, 20)
        mesh.change(rng.choice(("split", "restate", "next")), T0 + at)
        run(mesh, 8)
        if rng.random() < 0.5:
            mesh.take_over()
    run(mesh, 20)
    mesh.finish()
