"""Which nodes there are: membership, leaf set, routing table.

Enters: messages of other overlays, the time. Leaves: messages, routes to a key, who lives.
May import: messages.
"""
