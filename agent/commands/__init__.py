"""The bodies of the `elf` commands, one file each, imported when their command runs.

Enters: arguments. Leaves: text on the terminal and an exit code. May import everything but `typer_cli`.
"""
