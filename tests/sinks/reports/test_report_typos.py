"""Names that no job of a lake has are told before Spark starts; whatever else may be wrong is left to Spark."""

from __future__ import annotations

import json

import pytest

from elf.errors import UsageError
from elf.jobmaster.plan.recipe import recipe
from elf.sinks.lake.stored import Stored
from elf.sinks.report.typos import refuse_typos
from tests.sinks.lake_states import columns_of, traffic_plan


def stored(job: str) -> Stored:
    plan = traffic_plan()
    columns = [{"name": c.name, "type": c.type, "role": c.role, "stored": c.name} for c in columns_of(plan)]
    return Stored(job, "0123456789ab", "", "", columns, json.loads(recipe(plan)))


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT hits FROM trafic", "--sql: no job `trafic` in the lake; its jobs are other job, traffic"),
        ("SELECT hist FROM traffic", "--sql: no column `hist`; there are hits"),
        ("SELECT t.hits FROM traffic t WHERE t.statu = 200", "--sql: no column `statu`; there are status"),
        ("SELECT sum(zzz) FROM `other job`", "--sql: no column `zzz`; there are window_start, window_end, "),
    ],
)
def test_a_name_that_is_not_there(sql: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_typos(sql, [stored("traffic"), stored("other job")])
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT window_start, path, hits, _acc2, _version, `_date` FROM traffic",
        "SELECT Path AS p, sum(HITS) AS n FROM Traffic GROUP BY p HAVING n > 2 ORDER BY n",
        "WITH x AS (SELECT hits AS a FROM traffic) SELECT a, b FROM x",
        "SELECT window.start FROM traffic",
        "SELECT transform(array(hits), each -> each + 1) FROM traffic",
        "SELECT explode(array(1, 2)) AS one, hits FROM traffic",
        "SELECT a.col1 FROM (VALUES (1)) AS a",
        "SELECT date_trunc('day', window_start), extract(HOUR FROM window_start), current_date FROM traffic",
        "SELECT hits FROM traffic WHERE status = :status",
        "SELEC hits FRM",
        "SELECT * FROM parquet.`/a/b`",
        "SELECT count(*) FROM range(5)",
    ],
)
def test_what_spark_may_understand_is_left_to_it(sql: str) -> None:
    refuse_typos(sql, [stored("traffic")])
