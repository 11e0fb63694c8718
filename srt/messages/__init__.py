"""What nodes say to each other, as values.

Enters: nothing. Leaves: ids, parameters, messages, effects and events, rows on their way.
May import: errors, cbt.
"""
