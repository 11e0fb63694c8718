"""Log files: found, identified, followed and read, each line once.

Enters: paths and patterns. Leaves: blocks of whole lines with their place.
May import: errors.
"""
