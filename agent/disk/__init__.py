"""An agent's durable state: its journal and its state folder.

Enters: records. Leaves: records, in the order in which they became durable.
May import: errors, srt.messages, jobmaster.log.
"""
