"""The demo: a web site, a server for it (nginx, or our own), visitors, and the play that puts an agent beside them.

Enters: how long. Leaves: an access log, windows on the console, a lake and a report. May import what the commands may.
"""
