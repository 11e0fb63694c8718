"""Property tests draw a share of their examples, unless the soak runs them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.soak.examples import ALL, OWN, fewer


@settings(max_examples=90, derandomize=True, deadline=None)
@given(st.integers())
def test_this_property_draws_a_third(number: int) -> None:
    assert getattr(test_this_property_draws_a_third, OWN).max_examples == (90 if ALL else 30)


@pytest.mark.parametrize(("stated", "drawn"), [(400, 133), (60, 20), (59, 20), (20, 20), (12, 12)])
def test_the_share_has_a_least_number(stated: int, drawn: int) -> None:
    lowered = fewer(settings(max_examples=stated, stateful_step_count=7, derandomize=True))
    assert (lowered.max_examples, lowered.stateful_step_count, lowered.derandomize) == (drawn, 7, True)
