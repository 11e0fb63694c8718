"""Messages to one neighbour, each once and in order.

Enters: messages; frames that the network may lose or repeat. Leaves: frames; messages.
May import: messages, codec.
"""
