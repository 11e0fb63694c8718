"""The group-by. Enters: typed columns. Leaves: PAO rows in hash order, within a memory cap.

Imports nothing else of elf but its errors.
"""
