"""What every node knows of jobs, agents and ballots, spread by gossip.

Enters: items of others. Leaves: items, and what the newest say.
May import: log, plan, srt.messages.
"""
