"""The plan: a query as a typed, bounded, loop-free program, and its validation.

Enters: plans, or bytes from any peer. Leaves: checked plans, recipes for readers of the lake.
May import: values, errors.
"""
