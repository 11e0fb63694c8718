"""The tree of one job: who is whose parent, and bundles merged on their way up.

Enters: bundles of children and of the own worker. Leaves: merged bundles to the parent.
May import: messages.
"""
