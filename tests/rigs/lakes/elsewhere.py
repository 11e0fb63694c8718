"""Spark that does not run in the process of its user.

`python -m tests.rigs.lakes.elsewhere MASTER LAKE LOGS` prints as JSON what it makes of a lake and of logs. MASTER may be the
address of a Spark Connect server (`sc://…`); `serve PORT` runs one, until its input ends.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

HEAD = ["_pane_start", "path", "status", "_acc0", "_acc2"]


def asked(spark: Any, lake: str, logs: str) -> dict[str, Any]:
    """{question: rows}."""
    from pyspark.sql.functions import expr

    from elf.spark import count_lines, merge_sql, outputs_sql, read_logs, rollup

    lines = read_logs(spark, logs, columns=["time", "path", "status"])
    lines.createOrReplaceTempView("access")
    panes = spark.read.format("elf").load(lake)
    days = rollup(panes, every="1 day")
    landed = spark.readStream.format("elf").load(lake).select(HEAD).where("NOT _empty")
    query = landed.writeStream.format("memory").queryName("landed").trigger(availableNow=True).start()
    query.awaitTermination()
    states = [expr(sql).alias(name) for name, sql in merge_sql(panes).items()]
    merged = panes.where("NOT _empty").groupBy("path").agg(*states)
    answers = {
        "statuses": spark.sql("SELECT status, count(*) AS hits FROM access GROUP BY status"),
        "counts": count_lines(spark, logs).select("lines", "parsed", "rejected"),
        "panes": panes.select(HEAD),
        "hours": spark.read.format("elf").option("every", "1 hour").load(lake).select(HEAD),
        "days": days.select("path", "status", "hits"),
        "paths": merged.selectExpr("path", *outputs_sql(panes).values()),
        "landed": spark.table("landed"),
    }
    return {name: [list(row) for row in frame.collect()] for name, frame in answers.items()}


def _serve(port: str) -> None:
    from elf.spark import session

    settings = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
    }
    given = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{given} pyspark-shell"
    spark = session("local[2]")
    print("ready", flush=True)
    sys.stdin.read()
    spark.stop()


def main(where: str, *about: str) -> None:
    if where == "serve":
        _serve(*about)
        return
    from pyspark.sql import SparkSession

    from elf.spark import session

    is_server = where.startswith("sc://")
    spark = SparkSession.builder.remote(where).getOrCreate() if is_server else session(where)
    print(json.dumps(asked(spark, *about), default=str))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
