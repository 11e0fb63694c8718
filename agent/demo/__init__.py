"""The demo: a web site, a server for it (nginx, or our own), visitors, and a play that runs agents beside the servers.

Enters: how long. Leaves: an access log, windows on the console, a lake and a report. May import what the commands may.
"""
