"""Whole meshes on one seeded virtual network, disks and clocks: the production classes, with simulated IO.

A seed and a scenario enter; a trace, measurements and the oracle's verdict leave. May import everything else.
"""
