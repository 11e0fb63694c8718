"""The control socket: what commands on a host ask its agent, and the answers.

Enters: requests. Leaves: answers, windows of a job.
May import: node, config, jobmaster, srt.
"""
