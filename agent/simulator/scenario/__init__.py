"""The events of a simulation, as a value.

Enters: a seed. Leaves: hosts, jobs, traffic and faults at their times.
May import: world.
"""
