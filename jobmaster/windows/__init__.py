"""Windows: merges rows into panes, and finishes, orders and reads windows.

Enters: rows of partial aggregates. Leaves: windows and pane states.
May import: functions, plan, values, srt.messages, cbt.
"""
