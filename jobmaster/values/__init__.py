"""Values of SQL types: columns of them, conversions, text.

Enters: values or columns. Leaves: columns or values.
May import: errors, cbt.
"""
