"""The group-by. Enters: typed columns. Leaves: PAO rows in hash order, within a memory cap.

May import: errors.
"""
