"""The rules that a simulated mesh must keep, at every event and at its end.

Enters: events, lines, logs, the windows that sinks and readers received. Leaves: violations.
May import: world, scenario.
"""
