"""Envelopes: what syslog, container runtimes and log shippers put around a web server's line.

Enters: blocks of wrapped lines. Leaves: the lines inside, for the inner format's parser, and columns for the envelope's parts.
May import: files, and of formats all but detect, choice and formats.
"""
