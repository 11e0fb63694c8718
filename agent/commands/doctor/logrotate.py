"""Reads logrotate's configuration as far as a follower of logs must know it: which logs, how rotated, and how many are kept.

The syntax is that of logrotate.conf(5): patterns, then directives in braces; directives outside of braces hold for the blocks
after them. Scripts between `postrotate` and `endscript` are skipped.
"""

from __future__ import annotations

import fnmatch
import glob
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

MAIN = "/etc/logrotate.conf"
SCRIPTS = ("postrotate", "prerotate", "firstaction", "lastaction", "preremove")


class Rule(msgspec.Struct, frozen=True):
    """The treatment of the logs that `patterns` match. where: the file that has it. copies: by copytruncate or copy. keeps: how
    many rotated files."""

    where: str
    patterns: tuple[str, ...]
    copies: bool
    keeps: int

    def is_for(self, path: str) -> bool:
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in self.patterns)


def rules(main: str = MAIN) -> list[Rule]:
    """The rules of that file, and of those that it includes; none if it cannot be read."""
    return list(_rules(main, {"keeps": 0, "copies": False}))


def _rules(where: str, outer: dict[str, int]) -> Iterator[Rule]:
    """outer: the directives so far, which this file's go on."""
    try:
        text = Path(where).read_text("utf-8", "replace")
    except OSError:
        return
    held, patterns = outer, list[str]()
    for words in _directives(text):
        if words[-1] == "{":
            patterns += words[:-1]
            held = dict(outer)
        elif words[0] == "}":
            yield Rule(where, tuple(patterns), bool(held["copies"]), held["keeps"])
            held, patterns = outer, []
        elif words[0] == "include" and len(words) == 2 and held is outer:
            for path in _included(words[1]):
                yield from _rules(path, outer)
        elif words[0].startswith(("/", "~")):
            patterns += words
        else:
            _apply(words, held)


def _apply(words: Sequence[str], held: dict[str, int]) -> None:
    name = words[0]
    if name == "rotate" and len(words) == 2 and re.fullmatch("-?[0-9]+", words[1]):
        held["keeps"] = int(words[1])
    elif name in ("copytruncate", "copy", "nocopytruncate", "nocopy"):
        held["copies"] = not name.startswith("no")


def _directives(text: str) -> Iterator[list[str]]:
    """The words of each line; a brace ends a line too."""
    is_script = False
    for line in re.sub(
        r"([{}])[ \t]*", r"\1\n", re.sub(r"[ \t]*}", "\n}", _without_comments(text))
    ).splitlines():
        try:
            words = shlex.split(line)
        except ValueError:
            words = line.split()
        if not words:
            continue
        is_script = words[0] in SCRIPTS or (is_script and words[0] != "endscript")
        if not is_script and words[0] != "endscript":
            yield words


def _without_comments(text: str) -> str:
    return re.sub(r"(?m)^[ \t]*#.*$", "", text)


def _included(path: str) -> list[str]:
    """The files that `include` names: those of a folder, in the order of their names."""
    if Path(path).is_dir():
        return sorted(
            each for each in glob.glob(f"{glob.escape(path)}/*") if not each.endswith((".bak", "~"))
        )
    return [path]
