"""Whole meshes on one seeded virtual network, disks and clocks: the classes of production, with IO that is made up.

A seed and a scenario enter; a trace, measurements and the oracle's verdict leave. May import everything else.
"""
