"""Messages as bytes.

Enters: messages, or bytes from any peer. Leaves: bytes, or messages within bounds.
May import: messages.
"""
