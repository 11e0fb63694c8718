"""Java patterns on Python's engine: what is refused and why, and differences that Spark's golden answers do not show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.formats.products.notation import from_regex
from elf.errors import FormatError
from elf.jobmaster.plan import backtracking, patterns


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[a&&b]", "'&&'"),
        ("a{", "'{' without a count"),
        ("(", "not closed"),
        (")", "'\\)' without '\\('"),
        ("[a", "ends too early"),
        ("\\", "ends too early"),
        ("\\Gx", "escape \\\\G"),
        ("\\N{DIGIT ONE}", "escape \\\\N"),
        ("(?<=a*)b", "look-behind"),
        ("\\p{Klingon}", "character class"),
        ("(?x)a b", "flag 'x'"),
        ("(?<1a>b)", "unknown kind"),
        ("*a", "nothing to repeat"),
        ("a(?i)*", "nothing to repeat"),
        ("\\xzz", "character's number"),
        ("\\k<gone>", "unknown group"),
        ("a" * 5000, "longer than"),
    ],
)
def test_refused_with_a_reason(pattern: str, reason: str) -> None:
    found = patterns.check(pattern)
    assert found is not None
    assert re.search(reason, found), found


@pytest.mark.parametrize(
    "pattern", ["", "a|b", "(?i)x", "\\p{L}+", "a{2,3}+", "[^\\]]", "\\Q(\\E", "(?m)^a$"]
)
def test_usable(pattern: str) -> None:
    assert patterns.check(pattern) is None


def test_flags_in_the_middle_hold_to_the_end_of_their_group() -> None:
    find = patterns.rlike("^(?:x(?i)y|z)W$")
    assert [find(text) for text in ("xyW", "xYW", "ZW", "XyW", "xYw")] == [True, True, True, False, False]


def test_groups_and_replacements() -> None:
    assert patterns.groups("(a)(?<n>b)(?:c)") == 2
    assert patterns.check_replacement("(a)", "$1") is None
    assert "group 2" in (patterns.check_replacement("(a)", "$2") or "")
    assert "'\\$'" in (patterns.check_replacement("a", "$") or "").replace("$", "\\$")
    assert "backslash" in (patterns.check_replacement("a", "x\\") or "")
    assert "'n'" in (patterns.check_replacement("a", "${n}") or "")


def test_like_escapes() -> None:
    assert patterns.check_like("a\\%") is None
    assert "ends with the escape" in (patterns.check_like("a\\") or "")
    assert "must precede _, % or itself, not 'a'" in (patterns.check_like("\\a") or "")


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.text(alphabet="ab%_\\.", max_size=6), st.text(alphabet="ab%_\\.\n", max_size=6))
def test_like_against_a_plain_matcher(pattern: str, text: str) -> None:
    if patterns.check_like(pattern) is not None:
        return

    def matches(p: int, t: int) -> bool:
        if p == len(pattern):
            return t == len(text)
        if pattern[p] == "%":
            return any(matches(p + 1, rest) for rest in range(t, len(text) + 1))
        if t == len(text):
            return False
        if pattern[p] == "\\":
            return text[t] == pattern[p + 1] and matches(p + 2, t + 1)
        return pattern[p] in ("_", text[t]) and matches(p + 1, t + 1)

    assert patterns.like(pattern)(text) is matches(0, 0)


EXPONENTIAL = [
    "(a+)+",
    "(a*)*b",
    r"(\w+\s*)+$",
    "(a|aa)+$",
    "(a|b|ab)*c",
    "(aa?a?b?)*c",
    "(a?b?)*c",
    "(x+x+)+y",
    r"^(.*?,){11}P",
    r"(1?\d?\d\.)+X",
    r"(?:\d+|\w)+x",
    "(?s)(.*\n)*x",
    "(?i)(?:aB|Ab)+x",
    "(?=(a+)+$)b",
    "((a{1,30}){1,30}){1,30}",
    r"^([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@)",
]
HARMLESS = [
    "(a|b)+",
    r"(?:\w+\.)+com",
    r"^/api/(v\d+)/.*",
    r'"([^"\\]*(?:\\.[^"\\]*)*)"',
    r'(?:[^"\\]|\\.)*',
    "(?:[0-9a-f]{4}:?)+",
    "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    r"(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}\d{1,3}",
    "(?:/[^/]+)*/?$",
    "(?:[^&=]+=[^&]*(?:&|$))*",
    r"([a-z0-9]{1,63}\.)+[a-z]{2,}",
    r"(\w{1,200}\.)+",
    r"\d+(?:,\d+)*",
    "(?:(?!ab).)*",
    "(?>a+)+",
    "(?:a++)+b",
    "(?i)(?:bot|crawl|spider)+",
    ".*.*.*x",
    "^$",
]


@pytest.mark.parametrize("pattern", EXPONENTIAL)
def test_what_could_take_for_ever_is_refused(pattern: str) -> None:
    reason = backtracking.refusal(pattern, re.ASCII)
    assert reason in (backtracking.EXPONENTIAL, backtracking.TOO_LARGE)
    assert patterns.check(pattern) == f"it has {reason}"
    with pytest.raises(FormatError) as error:
        from_regex(f"{pattern}(?P<time>x)")
    assert str(error.value) == f"format regex: the regular expression has {reason}"


@pytest.mark.parametrize("pattern", HARMLESS)
def test_usual_patterns_are_not(pattern: str) -> None:
    assert backtracking.refusal(pattern, re.ASCII) is None
    assert backtracking.refusal(pattern.encode()) is None
    assert patterns.check(pattern) is None


def ways(tree: tuple[Any, ...], text: str) -> int:
    """In how many ways an engine that tries them all takes the whole text."""

    @cache
    def take(node: tuple[Any, ...], at: int) -> Counter[int]:
        """Where it can end, and in how many ways each."""
        match node:
            case ("char", wanted):
                return Counter([at + 1] if text[at : at + 1] == wanted else [])
            case ("both", one, other):
                return total((count, take(other, middle)) for middle, count in take(one, at).items())
            case ("either", one, other):
                return take(one, at) + take(other, at)
            case ("maybe", one):
                return Counter([at]) + take(one, at)
        rounds = take(node[1], at).items()  # a round of nothing is the last one
        return Counter([at]) + total((n, take(node, to) if to > at else Counter([at])) for to, n in rounds)

    return take(tree, 0)[len(text)]


def total(parts: Iterable[tuple[int, Counter[int]]]) -> Counter[int]:
    whole: Counter[int] = Counter()
    for times, part in parts:
        for end, count in part.items():
            whole[end] += times * count
    return whole


def parse_tree(pattern: str) -> tuple[Any, ...]:
    """Of Polish notation: `*x` many, `?x` maybe, `.xy` both, `|xy` either."""
    rest = iter(pattern)

    def node() -> tuple[Any, ...]:
        mark = next(rest)
        if mark in ".|":
            return ("both" if mark == "." else "either", node(), node())
        if mark in "*?":
            return ("many" if mark == "*" else "maybe", node())
        return ("char", mark)

    return node()


def as_regex(tree: tuple[Any, ...]) -> str:
    match tree:
        case ("char", character):
            return f"({character})"  # a group, which the parser does not unite with its neighbours
        case ("both", one, other):
            return as_regex(one) + as_regex(other)
        case ("either", one, other):
            return f"(?:{as_regex(one)}|{as_regex(other)})"
        case ("maybe", one):
            return f"(?:{as_regex(one)})?"
        case (_, one):
            return f"(?:{as_regex(one)})*"
    raise AssertionError(tree)


def polish(depth: int) -> st.SearchStrategy[str]:
    if not depth:
        return st.sampled_from("ab")
    inner = polish(depth - 1)
    return st.one_of(
        st.sampled_from("ab"),
        st.tuples(st.sampled_from(".|"), inner, inner).map("".join),
        st.tuples(st.sampled_from("*?"), inner).map("".join),
    )


@pytest.mark.slow
@settings(derandomize=True, max_examples=100, deadline=None)
@given(polish(3))
def test_it_is_refused_exactly_where_the_ways_explode(pattern: str) -> None:
    """Against counting all ways to take every text of two letters: within a repeat they grow, or there is but a handful."""
    tree = parse_tree(f"*{pattern}")
    words = ["".join(text) for n in range(6) for text in product("ab", repeat=n)]
    most = [max(ways(tree, word * rounds) for word in words) for rounds in (1, 5)]
    refused = backtracking.refusal(as_regex(tree)) is not None
    if refused:
        assert most[1] > most[0], (as_regex(tree), most)
    else:
        assert most[1] <= 8, (as_regex(tree), most)


def test_a_like_of_many_parts_is_quick() -> None:
    """Trying all places of all parts would take 5,000 to the power of 8 steps."""
    like = patterns.like("%a%a%a%a%a%a%a%b_")
    assert not like("a" * 5_000)
    assert like("a" * 5_000 + "bc")


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.text(max_size=30))
def test_a_quoted_text_finds_itself(text: str) -> None:
    if "\\E" in text or text.endswith("\\"):
        return
    assert patterns.rlike(f"^\\Q{text}\\E\\z")(text)
