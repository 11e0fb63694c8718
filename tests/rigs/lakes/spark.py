"""Settings of the tests' Spark session.

Compiling hundreds of small queries once each takes far longer than running them. So the session interprets them, in one task, but
for tests that take the fixture `generated_code`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

SMALL = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}


def for_small_queries(spark: Any) -> dict[str, str]:
    """Set the session up for queries over a few rows. Returns the settings as they were."""
    before = {key: spark.conf.get(key) for key in SMALL}
    _set(spark, SMALL)
    return before


@contextmanager
def as_users_have_it(spark: Any, before: Mapping[str, str]) -> Iterator[None]:
    """The session with the settings of `before`."""
    _set(spark, before)
    yield
    _set(spark, SMALL)


def _set(spark: Any, settings: Mapping[str, str]) -> None:
    for key, value in settings.items():
        spark.conf.set(key, value)
