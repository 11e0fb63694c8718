"""What a window must show of a job with a limit on groups: those groups that stay by their hashes, and the sum of all others.

It shares no code with `elf.cbt.other`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

Values = tuple[int, int]
OTHER = ""
"""The key of the rest, as no path is."""


def folded(groups: Mapping[str, Values], shown: Set[str]) -> dict[str, Values]:
    """The groups that are shown, and the sum of all others, if there are any."""
    found: dict[str, Values] = {}
    for key, (hits, total) in groups.items():
        known = found.get(key if key in shown else OTHER, (0, 0))
        found[key if key in shown else OTHER] = known[0] + hits, known[1] + total
    return found


def staying(keys: Iterable[str], hashes: Mapping[str, int], most: int) -> set[str]:
    """The groups below the highest threshold 2^64 / 2^k that at most `most` of them are below."""
    found = set(keys)
    threshold = 1 << 64
    while len(found) > most:
        threshold //= 2
        found = {key for key in found if hashes[key] < threshold}
    return found
