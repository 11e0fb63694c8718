"""`elf doctor`: tries what an agent on this host needs, and reports each thing as good, doubtful or broken.

Enters: a configuration. Leaves: findings. May import everything but other commands, save what they share.
"""
