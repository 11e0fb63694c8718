"""The jobs, agents and ballots that every node knows, spread by gossip.

Enters: items of other nodes. Leaves: items, and the newest specs, adverts, ballots and schedules.
May import: log, plan, srt.messages.
"""
