"""A job's replicated log: entries, the state they produce, and which node serves with which log.

Enters: messages of other replicas, records from disk. Leaves: messages, records, the state of a job.
May import: windows, plan, srt.messages.
"""
