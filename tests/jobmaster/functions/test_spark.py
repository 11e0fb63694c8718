"""Spark itself over the table of expressions: the golden file is what it answers.

After a change of the table, `ELF_GOLDEN=write pytest tests/jobmaster/functions/test_spark.py` writes the file again.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from elf.jobmaster.plan.plan import Expression
from elf.jobmaster.values.sql_types import TIMESTAMP
from tests.jobmaster.functions.cases import EDGES, plain, rows, shown, sql
from tests.jobmaster.functions.expressions import expressions
from tests.jobmaster.functions.test_golden import GOLDEN

CHUNK = 60
"""Expressions per SELECT."""


def edges_view(spark: Any) -> None:
    """The edge values as a view `edges`, one row per number `r`."""
    columns = rows()
    typed = [[shown(value, EDGES[name][0]) for value in columns[name]] for name in EDGES]
    body = ",\n".join(f"({row}, {', '.join(cells)})" for row, cells in enumerate(zip(*typed, strict=True)))
    spark.sql(f"SELECT * FROM VALUES {body} AS t(r, {', '.join(EDGES)})").cache().createOrReplaceTempView(
        "edges"
    )


def ask(spark: Any, chunk: list[Expression]) -> dict[str, list[Any]]:
    """Spark's answers by SQL text; each result's type must be the call's."""
    items = [f"unix_micros({sql(e)})" if e.type == TIMESTAMP else sql(e) for e in chunk]
    selected = ", ".join(f"{item} AS c{at}" for at, item in enumerate(items))
    frame = spark.sql(f"SELECT r, {selected} FROM edges ORDER BY r")
    for at, expression in enumerate(chunk):
        expected = "bigint" if expression.type == TIMESTAMP else str(expression.type)
        assert frame.schema[f"c{at}"].dataType.simpleString() == expected, sql(expression)
    out = frame.collect()
    return {sql(e): [plain(row[f"c{at}"]) for row in out] for at, e in enumerate(chunk)}


@pytest.mark.spark
def test_the_golden_file_is_what_spark_answers(spark: Any) -> None:
    assert spark.conf.get("spark.sql.ansi.enabled") == "false"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    edges_view(spark)
    table = expressions()
    answers: dict[str, list[Any]] = {}
    for start in range(0, len(table), CHUNK):
        answers |= ask(spark, table[start : start + CHUNK])
    if os.environ.get("ELF_GOLDEN") == "write":
        lines = [
            f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(answers[key])}" for key in sorted(answers)
        ]
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert answers.keys() == recorded.keys()
    wrong = [key for key, values in answers.items() if values != recorded[key]]
    assert not wrong, wrong[:10]
