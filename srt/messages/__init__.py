"""The messages between nodes, as values.

Enters: nothing. Leaves: ids, parameters, messages, effects and events, rows in transit.
May import: errors, cbt.
"""
