"""Messages as bytes.

Enters: messages, or bytes from anybody. Leaves: bytes, or messages within bounds.
May import: messages.
"""
