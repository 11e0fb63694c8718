"""A planned fleet: N agents, their traffic and their losses, as figures.

Enters: a plan. Leaves: measurements, as JSON, as a table and as a page.
May import: all siblings.
"""
