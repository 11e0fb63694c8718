"""How many examples property tests draw: in the tests a third of those that they state, all in the soak.

The examples of most are the same in each run, so that the rest found nothing since the code that they test has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any
from unittest import TestCase

import pytest
from hypothesis import is_hypothesis_test, settings

ALL = os.environ.get("ELF_EXAMPLES") == "all"
SHARE, LEAST = 3, 20
"""One example of so many, but no fewer than these, if the test states as many."""
OWN = "_hypothesis_internal_use_settings"
"""Where Hypothesis, whose public interface only reads a profile's number where a test states none, keeps those of a test."""


def fewer(stated: settings) -> settings:
    """The settings with which `make test` runs a test that states these."""
    drawn = max(stated.max_examples // SHARE, min(stated.max_examples, LEAST))
    return settings(stated, max_examples=drawn)


def draw_fewer(items: Iterable[pytest.Item]) -> None:
    """Lower the number in each property test and state machine."""
    machines: set[Any] = set()
    tests: set[Any] = set()
    for item in items:
        if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj):
            if item.cls is not None and issubclass(item.cls, TestCase):
                machines.add(item.cls)
            else:
                tests.add(getattr(item.obj, "__func__", item.obj))
    for machine in machines:
        machine.settings = fewer(machine.settings)
    for test in tests:
        setattr(test, OWN, fewer(getattr(test, OWN)))
