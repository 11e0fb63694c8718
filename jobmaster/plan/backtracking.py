"""Finds patterns whose matching time could double with every character of a text, before anything is matched.

Python's `re` tries all ways in which a pattern can match a text. Their number grows exponentially where, within a repeat
without bound, the same text leads back to the same place in two ways: `(a+)+`, `(\\w+\\s*)*`, `(a|aa)+`, but not `(\\w+\\.)+` or
`(a|b)+`. The decision is exact, except that look-around, word boundaries and back references may cause refusals that are not
necessary. The pattern becomes its position automaton (Glushkov 1961), and a repeat is refused where two different paths read one
text and meet again, or where one step can be taken in two ways (Weber and Seidl 1991, criterion EDA).

Matching a pattern that is not refused takes polynomial time: on a text of n characters without a match, a pattern with r repeats
in a row, such as `.*a.*b.*c`, takes up to about n^r steps.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

POSITIONS_MAX = 4_000
"""Characters of a pattern with its counted repeats written out."""
STEPS_MAX = 200_000
"""Steps of the search for two paths: some 0.1 s."""
COPIES_MAX = 64
"""Counts up to this are written out; a higher one counts as a repeat without bound."""
LOOPS_MAX = 4
"""The same limit for a count over a part that itself contains a repeat without bound."""

EXPONENTIAL = (
    "a repeat within a repeat, like (a+)+, that can match the same text in many ways, so that matching could take exponential "
    "time; repeat it once, or begin each repetition with something that the inner repeat does not match"
)
TOO_LARGE = "counted repeats that are too large; use * or +"
CATEGORIES = {
    "DIGIT": "0123456789",
    "SPACE": " \t\n\r\f\v",
    "WORD": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_",
}


class _TooLarge(Exception):  # noqa: N818  (a reason, not an error of ours)
    pass


class _Exponential(Exception):  # noqa: N818
    pass


class _Part(NamedTuple):
    """A piece of a pattern. nullable: it can match the empty text; twice: in two ways, as `(a*)?` and `(|b*)`. first, last: the
    positions that a match can begin and end with."""

    nullable: bool
    first: list[int]
    last: list[int]
    twice: bool = False


NOTHING = _Part(True, [], [])
THE_END = _Part(False, [], [])
"""Anchors of the text's end: nothing can follow, so `(?:[^;]*(?:;|$))*` is harmless."""


def refusal(pattern: str | bytes, flags: int = 0) -> str | None:
    """Why a pattern in Python's syntax should not be matched, or None. O(positions²), bounded. Raises re.error."""
    parsed = import_module("re._parser").parse(pattern, flags)
    automaton = _Automaton(parsed)
    try:
        automaton.sequence(parsed, parsed.state.flags)
    except _Exponential:
        return EXPONENTIAL
    except (_TooLarge, RecursionError):
        return TOO_LARGE
    return None


class _Automaton:
    """Positions are numbered in the order of the pattern, so those of a repeat form a range. alphabet: representative characters,
    at least one on each side of every boundary in the pattern. masks: the characters that each position reads, as bits over
    `alphabet`. follow: the positions that can come after each position."""

    def __init__(self, parsed: Any) -> None:
        ends = {code + step for code in _codes(parsed) for step in (-1, 0, 1)}
        self.alphabet = sorted({*range(256), *ends})
        self.all = (1 << len(self.alphabet)) - 1
        self.masks: list[int] = []
        self.follow: list[set[int]] = []
        self.loops = 0  # how many repeats without bound are being built
        self.doubled = False  # whether a step can be taken in two ways within the outermost of these

    # Building.

    def sequence(self, items: Iterable[tuple[Any, Any]], flags: int) -> _Part:
        whole = NOTHING
        for item in items:
            part = self.item(str(item[0]), item[1], flags)
            self.link(whole.last, part.first)
            if (part.twice and whole.first) or (whole.twice and part.first):
                self.doubled = True  # in each repetition of the enclosing repeat
            whole = _Part(
                whole.nullable and part.nullable,
                whole.first + part.first if whole.nullable else whole.first,
                part.last + whole.last if part.nullable else part.last,
                part.twice or whole.twice,
            )
        return whole if whole.nullable else whole._replace(twice=False)

    def item(self, kind: str, value: Any, flags: int) -> _Part:
        match kind:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return self.position(self.mask(kind, value, flags))
            case "BRANCH":
                return self.branch(value[1], flags)
            case "SUBPATTERN":
                _, add, remove, inner = value
                return self.sequence(inner, (flags | add) & ~remove)
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = value
                return self.repeat(least, most, inner, flags)
            case "POSSESSIVE_REPEAT":
                return self.atomic(value[2], flags, nullable=value[0] == 0)
            case "ATOMIC_GROUP":
                return self.atomic(value, flags)
            case "GROUPREF_EXISTS":
                return self.branch([value[1], value[2] or ()], flags)
            case "GROUPREF":
                return self.position(self.all)
            case "ASSERT" | "ASSERT_NOT":
                ahead = self.apart(value[1], flags)[0]
                ends = kind == "ASSERT" and value[0] > 0 and not ahead.nullable and not ahead.last
                return THE_END if ends else NOTHING
            case "AT" if str(value) == "AT_END_STRING" or (
                str(value) == "AT_END" and not flags & re.MULTILINE
            ):
                return THE_END
        return NOTHING  # the item reads no character

    def position(self, mask: int) -> _Part:
        if len(self.masks) >= POSITIONS_MAX:
            raise _TooLarge
        self.masks.append(mask)
        self.follow.append(set())
        return _Part(False, [len(self.masks) - 1], [len(self.masks) - 1])

    def branch(self, ways: Sequence[Any], flags: int) -> _Part:
        parts = [self.sequence(way, flags) for way in ways]
        return _Part(
            any(part.nullable for part in parts),
            [at for part in parts for at in part.first],
            [at for part in parts for at in part.last],
            sum(part.nullable + part.twice for part in parts) > 1,
        )

    def apart(self, items: Any, flags: int) -> tuple[_Part, int]:
        """A part that is matched independently of its surroundings (look-around), and all characters in it."""
        loops, doubled, start = self.loops, self.doubled, len(self.masks)
        self.loops, self.doubled = 0, False
        part = self.sequence(items, flags)
        self.loops, self.doubled = loops, doubled
        mask = 0
        for one in self.masks[start:]:
            mask |= one
        return part, mask

    def atomic(self, items: Any, flags: int, *, nullable: bool = False) -> _Part:
        """An atomic or possessive part as one position that reads any of its characters, since it never backtracks."""
        part, mask = self.apart(items, flags)
        one = self.position(mask)
        return one._replace(nullable=nullable or part.nullable)

    def repeat(self, least: int, most: Any, items: Any, flags: int) -> _Part:
        endless = most > COPIES_MAX or (most > LOOPS_MAX and any(_endless(items)))
        if not endless:
            return self.copies(least, int(most), items, flags)
        before = self.copies(least - 1, least - 1, items, flags) if 1 < least <= COPIES_MAX else None
        body = self.loop(items, flags)
        if least == 0:
            body = body._replace(nullable=True, twice=body.nullable)
        if before is None:
            return body
        self.link(before.last, body.first)
        return _Part(body.nullable and before.nullable, before.first, body.last)

    def copies(self, least: int, most: int, items: Any, flags: int) -> _Part:
        """A count written out as nested options: `a{1,2}` is a(a)?, which matches a text in one way only."""
        first: list[int] = []
        last: list[int] = []
        exits: list[int] = []
        nullable, twice = True, False  # of what was written so far
        for number in range(1, most + 1):
            part = self.sequence(items, flags)
            self.link(last, part.first)
            first += part.first if nullable else []
            last = part.last + last if part.nullable else part.last
            nullable, twice = nullable and part.nullable, part.twice
            if twice and most > 1:
                self.doubled = True
            exits = last if number <= least else exits + part.last
        return _Part(least == 0 or nullable, first, exits, twice or (least == 0 and nullable and most > 0))

    def loop(self, items: Any, flags: int) -> _Part:
        start = len(self.masks)
        if not self.loops:
            self.doubled = False
        self.loops += 1
        body = self.sequence(items, flags)
        self.link(body.last, body.first)
        self.loops -= 1
        if not self.loops and (self.doubled or self.meets_again(start)):
            raise _Exponential
        return body

    def link(self, last: Sequence[int], first: Sequence[int]) -> None:
        for at in last:
            follow = self.follow[at]
            if not follow.isdisjoint(first):
                self.doubled = True
            follow.update(first)

    # Deciding.

    def meets_again(self, start: int) -> bool:
        """Whether two different paths begin at one position from `start` on, read the same text, and meet."""
        waiting: list[tuple[int, int]] = []
        known: set[tuple[int, int]] = set()
        for at in range(start, len(self.masks)):
            waiting += [pair for pair in self.steps(at, at) if pair[0] != pair[1]]
        steps = 0
        while waiting:
            pair = waiting.pop()
            if pair in known:
                continue
            known.add(pair)
            for after in self.steps(*pair):
                if after[0] == after[1]:
                    return True
                waiting.append(after)
                steps += 1
                if steps > STEPS_MAX:
                    raise _TooLarge
        return False

    def steps(self, one: int, other: int) -> Iterator[tuple[int, int]]:
        for a in self.follow[one]:
            for b in self.follow[other]:
                if self.masks[a] & self.masks[b]:
                    yield (a, b) if a < b else (b, a)

    # Characters.

    def mask(self, kind: str, value: Any, flags: int) -> int:
        if kind == "ANY":
            return self.all if flags & re.DOTALL else self.all & ~self.span(10, 10)
        if kind == "LITERAL":
            return self.either_case(self.span(value, value), flags)
        if kind == "NOT_LITERAL":
            return self.all & ~self.either_case(self.span(value, value), flags)
        found, negated = 0, False
        for what, which in value:
            match str(what):
                case "NEGATE":
                    negated = True
                case "LITERAL":
                    found |= self.span(which, which)
                case "RANGE":
                    found |= self.span(*which)
                case "CATEGORY":
                    found |= self.category(str(which).removeprefix("CATEGORY_"))
        found = self.either_case(found, flags)
        return self.all & ~found if negated else found

    def span(self, low: int, high: int) -> int:
        return (1 << bisect_right(self.alphabet, high)) - (1 << bisect_left(self.alphabet, low))

    def category(self, name: str) -> int:
        found = sum(1 << ord(character) for character in CATEGORIES[name.removeprefix("NOT_")])
        return self.all & ~found if name.startswith("NOT_") else found

    def either_case(self, mask: int, flags: int) -> int:
        if flags & re.IGNORECASE:
            letters = ((1 << 26) - 1) << ord("A")  # the alphabet begins with all of ASCII
            both = (mask & letters) | ((mask >> 32) & letters)
            mask |= both | (both << 32)
        return mask


def _codes(node: Any) -> Iterator[int]:
    """Every character number beyond 255 in a parsed pattern."""
    if isinstance(node, int):
        if 255 < node < 0x10FFFF:
            yield node
    elif not isinstance(node, str) and hasattr(node, "__iter__"):
        for inner in node:
            yield from _codes(inner)
    elif hasattr(node, "data"):
        yield from _codes(node.data)


def _endless(node: Any) -> Iterator[bool]:
    """True for each repeat in a parsed pattern that has no bound, or one above `COPIES_MAX`."""
    for kind, value in node:
        match str(kind):
            case "MAX_REPEAT" | "MIN_REPEAT":
                if value[1] > COPIES_MAX:
                    yield True
                yield from _endless(value[2])
            case "BRANCH":
                for way in value[1]:
                    yield from _endless(way)
            case "SUBPATTERN":
                yield from _endless(value[3])
            case "GROUPREF_EXISTS":
                yield from _endless(value[1])
                yield from _endless(value[2] or ())
