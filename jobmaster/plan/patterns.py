"""LIKE and Java regular expressions, on Python's `re`.

Spark's patterns are Java's. `compiled` rewrites one so that `re` finds the same matches, or refuses it with a reason; the
compiler calls `check` before anything runs. Rewritten: `.` `^` `$` `\\Z` (Java has five line terminators), `\\z` `\\h` `\\v`
`\\R` `\\Q…\\E` `\\x{…}` `\\0…` `\\cX` `\\e`, `\\p{…}`, named groups, flags in mid-pattern, nested character classes.
`\\w` `\\d` `\\s` and ignoring case are ASCII, as in Java without flags.

Refused: `&&` in a class, `\\G`, `\\X`, `\\N{…}`, `\\b{g}`, flags other than i, m, s, look-behind of varying length, and patterns
whose matching could take exponential time (`backtracking`).
Different: `\\b` looks at ASCII word characters only (Java 17: at all letters and digits); `\\p{L}` and its like follow Python's
version of Unicode; an empty match never falls inside a character beyond U+FFFF (Java may match between its two surrogates).
"""

from __future__ import annotations

import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from itertools import groupby

from elf.jobmaster.plan import backtracking

PATTERN_MAX = 4096
"""Characters of a pattern."""

TERMINATOR = r"\n\r\x85\u2028\u2029"
DOT = f"[^{TERMINATOR}]"
NOT_WITHIN_CRLF = r"(?!(?<=\r)\n)"
FINAL = rf"(?:{NOT_WITHIN_CRLF}(?=(?:\r\n|[{TERMINATOR}])?\Z))"
LINE_END = rf"(?:{NOT_WITHIN_CRLF}(?=[{TERMINATOR}]|\Z))"
LINE_START = r"(?:(?!\Z)(?:\A|(?<=[\n\x85\u2028\u2029])|(?<=\r)(?!\n)))"

ASCII_CLASSES = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": r" \t\n\x0b\f\r",
}
CATEGORIES = frozenset(
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Cs Co Cn".split()  # noqa: SIM905
)
BY_METHOD: dict[str, Callable[[str], bool]] = {
    "IsAlphabetic": str.isalpha,
    "IsLetter": str.isalpha,
    "IsDigit": str.isdecimal,
    "IsLowercase": str.islower,
    "IsUppercase": str.isupper,
}
Ranges = tuple[tuple[int, int], ...]
"""A set of characters: first and last code of each run, ascending."""
HORIZONTAL: Ranges = (
    *((0x9, 0x9), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x180E, 0x180E), (0x2000, 0x200A)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
VERTICAL: Ranges = ((0xA, 0xD), (0x85, 0x85), (0x2028, 0x2029))
SIMPLE_ESCAPES = {"t": r"\t", "n": r"\n", "r": r"\r", "f": r"\f", "a": r"\x07", "e": r"\x1b"}


class Refused(Exception):  # noqa: N818  (a reason, not an error of ours)
    """Why a pattern cannot be used."""


def _ranges(belongs: Callable[[str], object], last: int = sys.maxunicode) -> Ranges:
    """All characters up to `last` for which `belongs` is true. All of Unicode takes 0.2 s."""
    runs: list[tuple[int, int]] = []
    for inside, run in groupby(range(last + 1), lambda code: bool(belongs(chr(code)))):
        if inside:
            first = final = next(run)
            for final in run:  # noqa: B007
                pass
            runs.append((first, final))
    return tuple(runs)


def _others(ranges: Ranges) -> Ranges:
    """The characters that are not in the set."""
    edges = [-1, *(code for run in ranges for code in run), sys.maxunicode + 1]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return tuple((before + 1, after - 1) for before, after in gaps if before + 1 < after)


def _body(ranges: Ranges) -> str:
    """The set as the inside of a character class in Python's syntax."""
    return "".join(
        f"\\U{first:08x}-\\U{last:08x}" if last > first else f"\\U{first:08x}" for first, last in ranges
    )


@lru_cache(maxsize=64)
def _members(character_class: str) -> Ranges:
    """The characters that a class in Python's syntax, brackets included, matches."""
    return _ranges(re.compile(character_class, re.ASCII).match)


@lru_cache(maxsize=64)
def _property(name: str) -> Ranges:
    """The characters of a Java property name."""
    if name in ASCII_CLASSES:
        return _ranges(re.compile(f"[{ASCII_CLASSES[name]}]").match, last=127)
    if name in BY_METHOD:
        return _ranges(BY_METHOD[name])
    category = name.removeprefix("Is")
    for prefix in ("general_category=", "gc="):
        category = category.removeprefix(prefix)
    if category not in CATEGORIES:
        raise Refused(f"the character class \\p{{{name}}} is not supported; write out its characters")
    return _ranges(lambda character: unicodedata.category(character).startswith(category))


def _literal(character: str) -> str:
    return re.escape(character) if ord(character) < 128 else f"\\U{ord(character):08x}"


class _Translation:
    """One pass over a Java pattern.

    flags: those in force. wrappers: the groups `(?i:` and `(?-i:` that flags in mid-pattern have opened within the current group.
    scopes: the flags and wrappers around each open group.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0
        self.out: list[str] = []
        self.flags: frozenset[str] = frozenset()
        self.scopes: list[tuple[frozenset[str], list[str]]] = []
        self.wrappers: list[str] = []

    def run(self) -> str:
        while self.at < len(self.pattern):
            self._step()
        if self.scopes:
            raise Refused("a group is not closed")
        return "".join(self.out) + ")" * len(self.wrappers)

    def _take(self, length: int = 1) -> str:
        piece = self.pattern[self.at : self.at + length]
        if len(piece) < length:
            raise Refused("the pattern ends too early")
        self.at += length
        return piece

    def _ahead(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def _step(self) -> None:
        character = self._take()
        if character == "\\":
            self.out.append(self._escape())
        elif character == "[":
            self.out.append(self._class())
        elif character == ".":
            self.out.append("[\\s\\S]" if "s" in self.flags else DOT)
        elif character == "^":
            self.out.append(LINE_START if "m" in self.flags else r"\A")
        elif character == "$":
            self.out.append(LINE_END if "m" in self.flags else FINAL)
        elif character == "(":
            self._open()
        elif character == ")":
            self._close()
        elif character == "|":
            self.out.append(")" * len(self.wrappers) + "|" + "".join(self.wrappers))
        elif character == "{":
            self._repeat()
        else:
            self.out.append(character if character in "*+?" else _literal(character))

    def _repeat(self) -> None:
        found = re.compile(r"([0-9]+)(,([0-9]*))?\}").match(self.pattern, self.at)
        if found is None:
            raise Refused("'{' without a count after it; write \\{ for the character")
        self.at = found.end()
        self.out.append("{" + found[0])

    def _open(self) -> None:
        if not self._ahead("?"):
            self._enter("(")
            return
        self._take()
        for mark in (":", "=", "!", ">", "<=", "<!"):
            if self._ahead(mark):
                self._enter("(?" + self._take(len(mark)))
                return
        name = re.compile(r"<([a-zA-Z][a-zA-Z0-9]*)>").match(self.pattern, self.at)
        if name:
            self.at = name.end()
            self._enter(f"(?P<{name[1]}>")
            return
        flags = re.compile(r"([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)])").match(self.pattern, self.at)
        if flags is None:
            raise Refused("a group '(?…' of an unknown kind")
        self.at = flags.end()
        self._flags(flags[1], flags[2] or "", scoped=flags[3] == ":")

    def _flags(self, on: str, off: str, *, scoped: bool) -> None:
        unknown = set(on + off) - set("ims")
        if unknown:
            raise Refused(f"the flag {min(unknown)!r} is not supported; i, m and s are")
        if scoped:
            self._enter("(?:")
        before = self.flags
        self.flags = (self.flags | set(on)) - set(off)
        if ("i" in before) != ("i" in self.flags):
            wrapper = "(?i:" if "i" in self.flags else "(?-i:"
            self.wrappers.append(wrapper)
            self.out.append(wrapper)
        if not scoped and self.pattern[self.at : self.at + 1] in tuple("*+?{"):
            raise Refused("nothing to repeat after a flag")

    def _enter(self, opening: str) -> None:
        self.out.append(opening)
        self.scopes.append((self.flags, self.wrappers))
        self.wrappers = []

    def _close(self) -> None:
        if not self.scopes:
            raise Refused("')' without '('; write \\) for the character")
        self.out.append(")" * len(self.wrappers) + ")")
        self.flags, self.wrappers = self.scopes.pop()

    def _escape(self) -> str:
        """An escape outside a class, behind its backslash."""
        character = self._take()
        if character == "Q":
            return "".join(map(_literal, self._quoted()))
        fixed = {"A": r"\A", "z": r"\Z", "Z": FINAL, "R": rf"(?:\r\n|[{_body(VERTICAL)}])"}
        if character in fixed:
            return fixed[character]
        if character == "b" and self._ahead("{"):
            raise Refused("\\b{g} is not supported")
        if character in "bB":
            return "\\" + character
        if character == "k":
            name = re.compile(r"<([a-zA-Z][a-zA-Z0-9]*)>").match(self.pattern, self.at)
            if name is None:
                raise Refused("\\k must be followed by a group's <name>")
            self.at = name.end()
            return f"(?P={name[1]})"
        if character in "123456789":
            # Parentheses keep a following digit from becoming part of the number.
            return f"(?:\\{character})"
        body = self._set(character)
        return body if body.startswith("\\") and len(body) == 2 else f"[{body}]"

    def _set(self, character: str) -> str:
        """An escape of one character or of a set of them, as the body of a class."""
        if character in "wdsWDS":
            return "\\" + character
        if character in "hvHVpP":
            ranges = self._named(character)
            return _body(_others(ranges) if character.isupper() else ranges)
        if character in SIMPLE_ESCAPES:
            return SIMPLE_ESCAPES[character]
        if character in "x0uc":
            return f"\\U{self._code(character):08x}"
        if character.isascii() and character.isalpha():
            raise Refused(f"the escape \\{character} is not supported")
        return _literal(character)

    def _named(self, kind: str) -> Ranges:
        """The set of \\h, \\v or \\p{…}, behind its letter."""
        if kind in "hH":
            return HORIZONTAL
        if kind in "vV":
            return VERTICAL
        return _property(self._braced() if self._ahead("{") else self._take())

    def _braced(self) -> str:
        end = self.pattern.find("}", self.at)
        if end < 0:
            raise Refused("'{' is not closed")
        return self._take(end + 1 - self.at)[1:-1]

    def _code(self, kind: str) -> int:
        """The character code of \\xhh, \\x{h…}, \\uhhhh, \\0n, \\cX."""
        if kind == "c":
            return ord(self._take()) ^ 64
        if kind == "0":
            found = re.compile(r"[0-3]?[0-7]{1,2}").match(self.pattern, self.at)
            text, base = (found[0] if found else ""), 8
            self.at += len(text)
        elif kind == "x" and self._ahead("{"):
            text, base = self._braced(), 16
        else:
            text, base = self._take(2 if kind == "x" else 4), 16
        try:
            code = int(text, base)
        except ValueError:
            raise Refused(f"\\{kind} must be followed by a character's number") from None
        if code > sys.maxunicode:
            raise Refused(f"there is no character {code:x}")
        return code

    def _quoted(self) -> str:
        end = self.pattern.find("\\E", self.at)
        end = len(self.pattern) if end < 0 else end
        text = self.pattern[self.at : end]
        self.at = min(end + 2, len(self.pattern))
        return text

    def _class(self) -> str:
        """A character class, behind its '['. A class within a class is united with it."""
        negated = self._ahead("^")
        if negated:
            self._take()
        parts: list[str] = []
        while not (self._ahead("]") and parts):
            if self._ahead("&&"):
                raise Refused("'&&' in a character class is not supported; write out the characters")
            character = self._take()
            if character == "[":
                inner = self._class()
                parts.append(_body(_members(inner)) if inner.startswith("[^") else inner[1:-1])
            elif character == "\\":
                escaped = self._take()
                parts.append("".join(map(_literal, self._quoted())) if escaped == "Q" else self._set(escaped))
            else:
                parts.append(character if character == "-" else _literal(character))
        self._take()
        return f"[{'^' if negated else ''}{''.join(parts)}]"


@lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str]:
    """A Java pattern as Python's. Raises Refused with the reason."""
    if len(pattern) > PATTERN_MAX:
        raise Refused(f"the pattern is longer than {PATTERN_MAX} characters")
    text = _Translation(pattern).run()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = re.compile(text, re.ASCII)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise Refused(f"not a regular expression: {str(error).split(' at position')[0]}") from error
    reason = backtracking.refusal(text, re.ASCII)
    if reason is not None:
        raise Refused(f"it has {reason}")
    return found


def _refusal(read: Callable[..., object], *texts: str) -> str | None:
    """Why these texts are refused; None if they are not."""
    try:
        read(*texts)
    except Refused as reason:
        return str(reason)
    return None


def check(pattern: str) -> str | None:
    """None if the Java regular expression can be used, else the reason."""
    return _refusal(compiled, pattern)


def groups(pattern: str) -> int:
    """How many groups a usable pattern has: the highest group number for regexp_extract."""
    return compiled(pattern).groups


def rlike(pattern: str) -> Callable[[str], bool]:
    search = compiled(pattern).search
    return lambda text: search(text) is not None


def regexp_extract(pattern: str, group: int) -> Callable[[str], str]:
    search = compiled(pattern).search

    def run(text: str) -> str:
        found = search(text)
        return (found[group] or "") if found else ""

    return run


# ---- replacements ---------------------------------------------------------------------------------------------------


def replacement_parts(pattern: str, replacement: str) -> list[str | int]:
    """Java's replacement text: `$1`, `${name}`, `\\$`. Texts and group numbers. Raises Refused."""
    known = compiled(pattern)
    parts: list[str | int] = []
    at = 0
    while at < len(replacement):
        character = replacement[at]
        at += 1
        if character == "\\":
            if at == len(replacement):
                raise Refused("the replacement ends with a single backslash")
            parts.append(replacement[at])
            at += 1
        elif character == "$":
            number, at = _reference(known, replacement, at)
            parts.append(number)
        else:
            parts.append(character)
    return parts


def _reference(known: re.Pattern[str], replacement: str, at: int) -> tuple[int, int]:
    """The group that follows a `$`, and the place after it. Further digits belong to the number while such a group exists."""
    name = re.compile(r"\{([a-zA-Z][a-zA-Z0-9]*)\}").match(replacement, at)
    if name:
        if name[1] not in known.groupindex:
            raise Refused(f"the replacement names a group {name[1]!r} that the pattern does not have")
        return known.groupindex[name[1]], name.end()
    if at == len(replacement) or replacement[at] not in "0123456789":
        raise Refused("'$' in a replacement must be followed by a group; write \\$ for the character")
    number = int(replacement[at])
    at += 1
    if number > known.groups:
        raise Refused(f"the replacement refers to group {number}, the pattern has {known.groups}")
    while at < len(replacement) and replacement[at] in "0123456789":
        longer = number * 10 + int(replacement[at])
        if longer > known.groups:
            break
        number, at = longer, at + 1
    return number, at


def check_replacement(pattern: str, replacement: str) -> str | None:
    """None if the replacement can be used with the (usable) pattern, else the reason."""
    return _refusal(replacement_parts, pattern, replacement)


def _matches(search: Callable[[str, int], re.Match[str] | None], text: str) -> Iterator[re.Match[str]]:
    """All matches as Java finds them: after an empty one it resumes one character later (`re.sub` would not)."""
    at = 0
    while at <= len(text):
        found = search(text, at)
        if found is None:
            return
        yield found
        at = found.end() + (found.end() == found.start())


def regexp_replace(pattern: str, replacement: str) -> Callable[[str], str]:
    search, parts = compiled(pattern).search, replacement_parts(pattern, replacement)

    def run(text: str) -> str:
        out, done = [], 0
        for found in _matches(search, text):
            out.append(text[done : found.start()])
            out += [part if isinstance(part, str) else found[part] or "" for part in parts]
            done = found.end()
        return "".join(out) + text[done:] if out else text

    return run


def split(pattern: str, limit: int) -> Callable[[str], list[str]]:
    """Spark's split: the texts between the matches; at most `limit` of them, the last with the rest, if it is above 0.

    A match of nothing at the beginning makes no part, as in Java; an empty pattern divides a text into its characters.
    """
    if not pattern:
        return lambda text: _characters(text, limit)
    search = compiled(pattern).search

    def run(text: str) -> list[str]:
        out: list[str] = []
        done = 0
        for found in _matches(search, text):
            if len(out) == limit - 1:
                break
            if found.end() == 0:
                continue
            out.append(text[done : found.start()])
            done = found.end()
        return [*out, text[done:]]

    return run


def _characters(text: str, limit: int) -> list[str]:
    if not text:
        return [""]
    count = len(text) if limit <= 0 else min(limit, len(text))
    return [*text[: count - 1], text[count - 1 :]]


# ---- LIKE -----------------------------------------------------------------------------------------------------------


def like_parts(pattern: str, escape: str = "\\") -> list[str | None]:
    """A LIKE pattern as literal pieces, "_" and "%" marks: None stands for "%", "" for "_". Raises Refused."""
    parts: list[str | None] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == escape:
            if at == len(pattern):
                raise Refused("the pattern ends with the escape character")
            if pattern[at] not in ("_", "%", escape):
                raise Refused(f"the escape character must precede _, % or itself, not {pattern[at]!r}")
            character = pattern[at]
            at += 1
        elif character in "_%":
            parts.append("" if character == "_" else None)
            continue
        if parts and parts[-1]:
            parts[-1] += character
        else:
            parts.append(character)
    return parts


def check_like(pattern: str, escape: str = "\\") -> str | None:
    """None if the LIKE pattern can be used, else the reason."""
    return _refusal(like_parts, pattern, escape)


class Shape(Enum):
    """A LIKE pattern that needs no regular expression: one text, and where it must occur."""

    EQUAL = 0
    PREFIX = 1
    SUFFIX = 2
    INFIX = 3


def like_shape(pattern: str, escape: str = "\\") -> tuple[Shape, str] | None:
    """The shape of `abc`, `abc%`, `%abc` or `%abc%` and its text; None for any other pattern."""
    match like_parts(pattern, escape):
        case []:
            return Shape.EQUAL, ""
        case [None]:
            return Shape.PREFIX, ""
        case [str(text)] if text:
            return Shape.EQUAL, text
        case [str(text), None] if text:
            return Shape.PREFIX, text
        case [None, str(text)] if text:
            return Shape.SUFFIX, text
        case [None, str(text), None] if text:
            return Shape.INFIX, text
    return None


def like(pattern: str, escape: str = "\\") -> Callable[[str], bool]:
    """Simple shapes by methods of str; everything else by a regular expression."""
    shape = like_shape(pattern, escape)
    match shape:
        case (Shape.EQUAL, wanted):
            return lambda text: text == wanted
        case (Shape.PREFIX, wanted):
            return lambda text: text.startswith(wanted)
        case (Shape.SUFFIX, wanted):
            return lambda text: text.endswith(wanted)
        case (Shape.INFIX, wanted):
            return lambda text: wanted in text
    whole = re.compile(_like_regex(like_parts(pattern, escape)), re.DOTALL).fullmatch
    return lambda text: whole(text) is not None


def _like_regex(parts: Sequence[str | None]) -> str:
    """Matches each piece between two % at its first place, without backtracking: at most length of text times length of pattern
    steps."""
    pieces = [""]
    for part in parts:
        if part is None:
            pieces.append("")
        else:
            pieces[-1] += "." if part == "" else re.escape(part)
    if len(pieces) == 1:
        return pieces[0]
    first, *middle, last = pieces
    return f"{first}{''.join(f'(?>.*?{piece})' for piece in middle if piece)}.*{last}"


def ilike(pattern: str, escape: str = "\\") -> Callable[[str], bool]:
    """ILIKE as in Spark: LIKE with both sides in lower case."""
    lowered = like(pattern.lower(), escape)
    return lambda text: lowered(text.lower())
