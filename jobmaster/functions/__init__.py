"""Scalar functions over whole columns.

Enters: expressions of a plan, columns of a block. Leaves: columns.
May import: plan, values, cbt, errors.
"""
