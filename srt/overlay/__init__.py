"""The nodes of the mesh: membership, leaf set, routing table.

Enters: messages of other overlays, the time. Leaves: messages, routes to a key, which nodes live.
May import: messages.
"""
