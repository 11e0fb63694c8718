"""Sinks that deliver each window as one message, and know when it is acknowledged.

Enters: windows as messages (`contract`). Leaves: messages to brokers and webhooks, lines in files, input of commands.
May import: errors, jobmaster.windows.
"""
