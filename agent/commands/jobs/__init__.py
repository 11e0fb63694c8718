"""The commands of `elf job`, and what they share.

Enters: arguments, job files, and the jobs of the mesh. Leaves: signed requests to an agent, text on the terminal, an exit code.
May import: the other commands, agent.config, agent.control, jobmaster and sinks.console.
"""
