"""One-shot: files in, final windows out.

Enters: a query and files. Leaves: windows to sinks, a summary.
May import: formats, files, work, jobmaster.
"""
