"""Windows as text: tables, CSV, JSON lines.

Enters: windows. Leaves: text on a stream.
May import: jobmaster.windows, jobmaster.values.
"""
