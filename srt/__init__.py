"""The overlay and its trees: bundles of partial aggregates enter from below, merged bundles leave towards the master.

May import cbt and errors only. All of it is pure state machines, without clock, randomness, sockets or files, except two rooms
that no core imports: transport/ and security/.
"""
