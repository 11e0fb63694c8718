"""The process of a mesh agent: sockets, clock, disk, sinks and metrics around a node.

Enters: configuration, effects of the node. Leaves: events for the node, what operators read.
May import: everything in agent but run, single and commands.
"""
