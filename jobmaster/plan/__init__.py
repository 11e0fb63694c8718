"""The plan: a query as a typed, bounded, loop-free program, and what it may be.

Enters: plans, or bytes from anybody. Leaves: checked plans, recipes for readers of the lake.
May import: values.
"""
