"""Keys: authentication of members, and authorisation of items.

Enters: keys, certificates, signed items. Leaves: what is accepted, and why the rest is not.
May import: messages.
"""
