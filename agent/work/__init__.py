"""From lines to the rows of jobs: parsing, filtering, grouping, and each job's place in each file.

Enters: blocks. Leaves: deltas.
May import: formats, files, node, jobmaster, cbt.
"""
