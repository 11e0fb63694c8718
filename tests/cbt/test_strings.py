"""The string dictionary against a dict."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.cbt._strings import Strings


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=40), max_size=600))
def test_codes_are_a_dicts(values: list[bytes]) -> None:
    strings, model = Strings(), dict[bytes, int]()
    for value in values:
        assert strings.intern(value) == model.setdefault(value, len(model))
    assert len(strings) == len(model)
    assert [strings[code] for code in range(len(strings))] == list(model)
    strings.check()


def test_growing_keeps_every_code() -> None:
    rng = random.Random(4)
    values = [rng.randbytes(rng.randrange(30)) for _ in range(20_000)]
    strings, model = Strings(), dict[bytes, int]()
    codes = strings.intern_all(values)
    for value in values:
        model.setdefault(value, len(model))
    assert codes.tolist() == [model[value] for value in values]
    assert strings.lengths().tolist() == [len(value) for value in model]
    assert strings.nbytes >= sum(map(len, model))


def test_null_text_and_clear() -> None:
    strings = Strings()
    codes = strings.intern_all(["über", None, b"\xff", ""])
    assert codes.dtype == np.int32
    assert codes.tolist() == [0, -1, 1, 2]
    assert strings.values() == ["über", "\ufffd", ""]
    assert strings.values(1, 2) == ["\ufffd"]
    before = strings.generation
    strings.clear()
    assert (len(strings), strings.generation) == (0, before + 1)
    assert strings.intern(b"x") == 0
    with pytest.raises(IndexError):
        strings[1]
