"""A lake's states in the trees that merge windows in agents and masters: for reports, and for days that become coarser.

Enters: Parquet files. Leaves: rows of the engine; Parquet files.
May import: lake, jobmaster.windows, cbt.
"""
