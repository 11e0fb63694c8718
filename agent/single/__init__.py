"""A lone agent: it follows files and publishes windows without a mesh.

Enters: configuration, files. Leaves: windows to sinks.
May import: run, work, formats, files, disk, jobmaster.
"""
