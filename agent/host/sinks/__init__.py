"""The sinks that an agent serves to the jobs of its mesh.

Enters: windows of masters. Leaves: windows in lakes, on standard output, and at receivers of messages; answers to masters.
May import: config, control, node.
"""
