"""A job's replicated log: entries, what they mean, and who serves with which log.

Enters: messages of other replicas, records from disk. Leaves: messages, records, the state of a job.
May import: windows, plan, srt.messages.
"""
