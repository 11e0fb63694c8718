"""Patterns of names, as a shell has them: `*`, `?` and `[…]`. `elf job try --on` and the rights of operators use the same."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

PATTERNS_MAX = 16


def is_named(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name matches one of the patterns; without patterns, always. O(patterns)."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
