"""The worker of one job at one node: what was cut from its source, and is kept until it is committed.

Enters: cuts of the source, answers of the master. Leaves: bundles, records.
May import: jobmaster, srt.
"""
