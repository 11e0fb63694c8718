"""Asking many agents: so many at a time, each a bounded number of times, and each ends as answered or as silent."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.control.survey import ASKS_MAX, AT_ONCE_MAX, WAIT_US, Survey
from elf.srt.messages.effects import Send
from elf.srt.messages.messages import TreeReport, TreeRequest

JOB = b"J" * 16
ROOT = (0).to_bytes(16)


def below(node: bytes) -> tuple[bytes, ...]:
    """A tree of three children each, 121 nodes."""
    number = int.from_bytes(node)
    return tuple(child.to_bytes(16) for child in range(3 * number + 1, 3 * number + 4) if child < 121)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 30), st.sampled_from([0.0, 0.2, 0.6]), st.integers(0, 20))
def test_a_whole_tree_is_asked(seed: int, loss: float, deaf: int) -> None:
    rng = Random(seed)
    dead = {rng.randrange(1, 121).to_bytes(16) for _ in range(deaf)}
    survey: Survey[TreeReport] = Survey(TreeRequest(JOB, 1), [ROOT], 1_000, lambda told: told.children)
    now, asked = 0, dict[bytes, int]()
    while not survey.is_done:
        for effect in survey.tick(now):
            assert isinstance(effect, Send)
            asked[effect.to] = asked.get(effect.to, 0) + 1
            for _ in range(2 if rng.random() < 0.1 else 1):  # an answer may come twice
                if effect.to not in dead and rng.random() >= loss:
                    survey.step(effect.to, TreeReport(JOB, 1, False, b"", below(effect.to)), now)
        survey.check()
        now += WAIT_US // 4
        assert now < 121 * (ASKS_MAX + 1) * WAIT_US
    assert max(asked.values()) <= ASKS_MAX
    assert not dead & survey.answers.keys()
    if not loss:
        lost = {child for node in dead for child in _all_below(node)}
        assert set(survey.answers) == {number.to_bytes(16) for number in range(121)} - dead - lost


def _all_below(node: bytes) -> set[bytes]:
    children = below(node)
    return set(children).union(*map(_all_below, children))


def test_no_more_than_so_many_are_asked_at_once_nor_in_all() -> None:
    nodes = [number.to_bytes(16) for number in range(100)]
    survey: Survey[TreeReport] = Survey(TreeRequest(JOB, 1), nodes, 40)
    assert len(survey.tick(0)) == AT_ONCE_MAX
    assert survey.left_out == 60
    assert not survey.tick(1)
    survey.step(nodes[0], TreeReport(JOB, 1, False, b"", ()), 2)
    survey.step(nodes[99], TreeReport(JOB, 1, False, b"", ()), 2)  # nobody asked it
    assert len(survey.tick(2)) == 1
    assert set(survey.answers) == {nodes[0]}


def test_a_clock_that_steps_back_makes_no_request_wait_longer() -> None:
    survey: Survey[TreeReport] = Survey(TreeRequest(JOB, 1), [ROOT], 40)
    survey.tick(10 * WAIT_US)
    survey.tick(0)
    assert len(survey.tick(WAIT_US)) == 1
