"""The clocks of a zone against Python's own."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.jobmaster.values.zones import EPOCH, LAST_US, Zone

NAMES = ["Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(derandomize=True, max_examples=60, deadline=None)
@given(times=st.lists(st.integers(0, LAST_US // 2), min_size=1, max_size=20))
def test_local_time_is_pythons(name: str, times: list[int]) -> None:
    want = [
        (EPOCH + timedelta(microseconds=each)).astimezone(ZoneInfo(name)).replace(tzinfo=None)
        - datetime(1970, 1, 1)
        for each in times
    ]
    found = Zone(name).local(np.array(times)).tolist()
    assert found == [each // timedelta(microseconds=1) for each in want]


@pytest.mark.parametrize(
    ("name", "local", "utc"),
    [
        ("Europe/Berlin", "2015-07-01T00:00:00", "2015-06-30T22:00:00"),
        ("Europe/Berlin", "2015-10-25T02:30:00", "2015-10-25T00:30:00"),  # twice: the first
        ("Europe/Berlin", "2015-03-29T02:30:00", "2015-03-29T01:00:00"),  # never: when it is passed
        ("America/Sao_Paulo", "2015-10-18T00:00:00", "2015-10-18T03:00:00"),  # the day begins at 01:00
        ("Asia/Kathmandu", "2015-07-01T00:00:00", "2015-06-30T18:15:00"),
    ],
)
def test_utc_of(name: str, local: str, utc: str) -> None:
    us = [int(np.datetime64(text, "us").astype(np.int64)) for text in (local, utc)]
    assert Zone(name).utc_of(us[0]) == us[1]
