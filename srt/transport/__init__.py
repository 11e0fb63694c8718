"""Messages over TCP: sockets, handshakes, who is let in.

Enters: messages and addresses. Leaves: messages of proven peers.
May import: messages, codec, link, security.
"""
