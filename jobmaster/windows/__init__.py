"""Windows: merged rows as panes, finished, ordered and read.

Enters: rows of partial aggregates. Leaves: windows and pane states.
May import: functions, plan, values, srt.messages.
"""
