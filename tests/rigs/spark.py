"""Settings of the tests' Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


@contextmanager
def without_codegen(spark: Any) -> Iterator[None]:
    """The session without code generation, and with one partition: compiling hundreds of small queries once each takes far longer
    than running them."""
    before = {key: spark.conf.get(key) for key in INTERPRETED}
    for key, value in INTERPRETED.items():
        spark.conf.set(key, value)
    yield
    for key, value in before.items():
        spark.conf.set(key, value)
