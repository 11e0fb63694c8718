"""Delivery of windows to sinks and watchers, and the ledger that a sink keeps of them.

Enters: windows of a master. Leaves: messages to sinks and watchers, until these acknowledge them.
May import: directory, log, windows.
"""
