"""The Parquet lake: its layout, its writer process, and Spark's view of it.

Enters: pane states. Leaves: Parquet files, data frames.
May import: jobmaster.windows, jobmaster.plan, jobmaster.values.
"""
