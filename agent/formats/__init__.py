"""Log formats: what a line means, and the tokenizer.

Enters: blocks of lines. Leaves: batches of columns, and why lines were rejected.
May import: files, jobmaster.values.
"""
