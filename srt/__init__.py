"""The overlay and its trees: bundles of partial aggregates enter from below, merged bundles leave towards the master.

Pure state machines; may import cbt and errors only, and no clock, no randomness, no sockets.
"""
