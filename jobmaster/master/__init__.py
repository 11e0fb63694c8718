"""The master of a job: which bundles it accepts, when windows are final, what is published.

Enters: bundles, commits of the log, the time. Leaves: proposals, windows.
May import: delivery, directory, log, windows.
"""
