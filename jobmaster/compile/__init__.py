"""The compiler, on the submitting side.

Enters: Spark SQL and the columns of its sources. Leaves: a plan, or an error with its place.
May import: plan, values, errors.
"""
