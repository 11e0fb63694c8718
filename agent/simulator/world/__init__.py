"""The virtual world: hosts, their clocks, disks and logs, one network between them, one calendar over all.

Enters: a seed, weather, faults of hosts. Leaves: events for observers.
May import: agent.node, agent.disk and the rooms that these may import; none of its siblings.
"""
