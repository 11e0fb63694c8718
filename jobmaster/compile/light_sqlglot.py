"""sqlglot's dialect of Spark, without what importing it takes along."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

METADATA = "importlib.metadata"


def spark_dialect() -> Any:
    """The dialect, imported at the first call.

    sqlglot asks importlib.metadata for the dialects of other packages, and that module takes email, zipfile and csv along, 15 ms
    of the 80. Only Spark's is needed here, so something that knows no packages stands in its place meanwhile.
    """
    if METADATA in sys.modules:
        from sqlglot.dialects.spark import Spark

        return Spark()
    stand_in = ModuleType(METADATA)
    stand_in.entry_points = lambda **about: ()  # type: ignore[attr-defined]
    sys.modules[METADATA] = stand_in
    try:
        from sqlglot.dialects.spark import Spark
    finally:
        del sys.modules[METADATA]
    return Spark()
