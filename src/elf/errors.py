"""The one family of errors, split by blame. Each prints as one line: what, where, and what to do.

`exit_code` is what the `elf` command ends with: 1 runtime, 2 arguments, query or a named file, 78 configuration.
"""

from __future__ import annotations


class ElfError(Exception):
    """Base of all errors that a user may see. `str(error)` is one line."""

    exit_code = 1


class UsageError(ElfError):
    """An argument, or a file that an argument names, is wrong (a size, an interval, a format, an unreadable file)."""

    exit_code = 2


class QueryError(ElfError):
    """A query that cannot run. Raised before anything runs.

    `line` and `column` are 1-based places in the query's text (0 where the place is unknown); `hint` is the nearest
    thing that works.
    """

    exit_code = 2

    def __init__(self, reason: str, *, line: int = 0, column: int = 0, hint: str = "") -> None:
        self.reason, self.line, self.column, self.hint = reason, line, column, hint
        place = f"line {line}, column {column}: " if line else ""
        super().__init__(f"query: {place}{reason}" + (f"; {hint}" if hint else ""))


class FormatError(UsageError):
    """A log format that cannot be read: unknown name, adjacent variables, a broken pattern."""


class ConfigError(ElfError):
    """The configuration file is wrong. The message names file, line, key, what was expected and what was found."""

    exit_code = 78


class SourceError(ElfError):
    """A log stream failed for good, or none of its lines can be parsed."""


class StateError(ElfError):
    """`state_dir` cannot be used: locked by another agent, unreadable, from a newer version."""


class PeerError(ElfError):
    """Another node or a child process broke the protocol, or died. `evidence`: bytes that prove it to the peer, if any."""

    evidence = b""


class InternalError(ElfError):
    """Our own bug. Please report it."""
