"""The mesh on a real host: sockets, disk, clock, logs and commands around a `MeshNode`, which knows none of them.

Enters: a configuration, datagrams, lines, commands. Leaves: datagrams, records on disk, windows. May import everything but
`typer_cli`.
"""
