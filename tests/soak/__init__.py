"""New seeds of the simulator for a given time; what fails is kept and shrunk.

Enters: seeds. Leaves: scenarios that fail, and counts of the faults and paths that occurred. May import all of the product.
"""
