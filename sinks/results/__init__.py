"""Results as Parquet files with the query's own columns, for whoever has only a reader of Parquet; and as Arrow tables.

Enters: windows as messages (`delivery.contract`). Leaves: FOLDER/JOB/HOUR.parquet, through a short-lived process.
May import: errors, delivery.contract, lake.types, jobmaster.
"""
