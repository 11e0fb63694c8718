"""The virtual world: hosts, their clocks, disks and logs, one network between them, one calendar over all.

Enters: a seed, weather, and what is done to hosts. Leaves: events for observers.
May import: agent.node, agent.disk and whatever these may, none of its siblings.
"""
