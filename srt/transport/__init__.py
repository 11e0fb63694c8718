"""Messages over TCP: sockets, handshakes, admission of peers.

Enters: messages and addresses. Leaves: messages of proven peers.
May import: messages, codec, link, security.
"""
