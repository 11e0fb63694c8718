"""The tree of one job: its parents and children, and bundles merged on their way up.

Enters: bundles of children and of this node's worker. Leaves: merged bundles to the parent.
May import: messages.
"""
