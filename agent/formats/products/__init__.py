"""Formats written as tables: those of products, which come with ELF, and users' own.

Enters: a table (`[format.NAME]`), or the name of one. Leaves: a field plan. May import what defines formats, not what detects.
"""
