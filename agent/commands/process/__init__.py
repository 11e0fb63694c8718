"""What a command's process is connected to: its signals, its standard streams.

Enters: signals, bytes. Leaves: a reason to stop, lines of text.
May import: sinks.console.
"""
