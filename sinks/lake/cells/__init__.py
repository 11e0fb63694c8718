"""Panes as Arrow tables: what a pane repeats in each of its rows, and the values of its groups.

Enters: frames with MessagePack. Leaves: Arrow tables.
May import: lake.
"""
