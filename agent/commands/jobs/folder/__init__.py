"""`elf job apply`: a folder of job files.

Enters: job files, and the jobs of the mesh. Leaves: starts, updates and stops that make these equal.
May import: the commands of single jobs, agent.config, agent.control, jobmaster.
"""
