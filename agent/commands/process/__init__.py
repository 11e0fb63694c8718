"""The surroundings of a command's process: its signals, its standard streams.

Enters: signals, bytes. Leaves: a reason to stop, lines of text.
May import: sinks.console.
"""
