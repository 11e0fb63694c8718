"""The overlay and its trees: bundles of partial aggregates enter from below, merged bundles leave towards the master.

May import cbt and errors only. Pure state machines, without clock, randomness, sockets or files, but for two edges that no core
imports: the transport (transport, listener, dialer, hub, sockets) and keys (security, its files, items and pairs).
"""
