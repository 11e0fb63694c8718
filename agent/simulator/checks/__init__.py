"""What must hold of a simulated mesh, at every event and at its end.

Enters: events, lines, logs, what sinks and readers were given. Leaves: violations.
May import: world, scenario.
"""
