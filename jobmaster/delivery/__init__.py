"""Windows on their way to sinks and watchers, and what a sink remembers of them.

Enters: windows of a master. Leaves: messages to sinks and watchers, until these are known to hold them.
May import: directory, log, windows.
"""
