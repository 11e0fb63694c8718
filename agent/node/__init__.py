"""One node of the mesh, without IO: overlay, directory, links, and a seat for each job.

Enters: messages, events, the time. Leaves: effects for the host.
May import: jobmaster, srt.
"""
