"""Where results go: console, JSON lines, CSV, the Parquet lake. Enters: windows and pane states. Leaves: text and files.

Imports `elf.jobmaster.windows.result` and the errors, `ledger` also messages of `elf.srt`; knows nothing of agents or jobs.
"""
