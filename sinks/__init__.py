"""Where results go: console, JSON lines, CSV, the Parquet lake. Enters: windows and pane states. Leaves: text and files.

May import: jobmaster.windows, jobmaster.values, errors.
"""
