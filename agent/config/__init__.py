"""The configuration: one TOML file, and the values in it. Job files.

Enters: text. Leaves: checked sections.
May import: errors, srt.security, jobmaster.compile.
"""
