"""What a succession reports to its caller."""

from __future__ import annotations

import pytest

from elf.jobmaster.log.phases import News, Serve, StepDown
from tests.rigs.succession_world import ListState

A = bytes(15) + b"\1"


def test_news_are_taken_once() -> None:
    news = News()
    assert not news
    begins, ends = Serve((1, A), ListState(None), 0, True), StepDown((1, A))
    news.committed.append((1, "x"))
    assert news
    assert [news.take_committed(), news.take_committed()] == [[(1, "x")], []]
    news.changes += [begins, ends]
    news.check()
    assert news
    assert [news.take_changes(), news.take_changes()] == [[begins, ends], []]
    assert not news


def test_a_node_does_not_step_down_twice() -> None:
    news = News()
    news.changes += [StepDown((1, A)), StepDown((2, A))]
    with pytest.raises(AssertionError):
        news.check()
