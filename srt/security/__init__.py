"""Keys: who may speak in a mesh, and who may say what.

Enters: keys, certificates, signed items. Leaves: who is believed, and why not.
May import: messages.
"""
