"""Java patterns on Python's engine: what is refused and why, and differences that Spark's golden answers do not show."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.jobmaster import patterns


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
    import re

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
    assert "may not stand before 'a'" in (patterns.check_like("\\a") or "")


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


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.text(max_size=30))
def test_a_quoted_text_finds_itself(text: str) -> None:
    if "\\E" in text or text.endswith("\\"):
        return
    assert patterns.rlike(f"^\\Q{text}\\E\\z")(text)
