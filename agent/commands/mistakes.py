"""What is said of arguments that cannot be a query and its files: what was likely meant, as a command to repeat."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from elf.agent.commands.arguments import is_query

_FROM = re.compile(r"\bFROM\s+([`'\"]?)([^\s`'\"();]+)\1", re.IGNORECASE)


def no_file(query: str) -> str:
    """Of a query without files. A file behind FROM is meant to be read."""
    found = _FROM.search(query)
    if found is None or not os.path.isfile(found[2]):
        return "no file to read; name one, or - for stdin"
    meant = f"{query[: found.start()]}FROM access{query[found.end() :]}"
    return f"FROM {found[2]}: a query reads FROM access, and its files follow it: elf run {_words(meant, found[2])}"


def no_query(first: str, rest: Sequence[str]) -> str | None:
    """Of a first argument that does not begin like a query; None where nothing better is known than what the compiler says."""
    swapped = next((word for word in rest if is_query(word)), None)
    if swapped is not None:
        names = [word for word in (first, *rest) if word != swapped]
        return f"the query comes first, then the files: elf run {_words(swapped, *names)}"
    if os.path.isfile(first):
        return f"{first}: is a file, where the query should be: elf run QUERY {first}; a file with the query is -F {first}"
    if first.endswith(".sql"):
        return f"{first}: no such file, and no query; a query in a file is -F FILE"
    return None


def divided(words: Sequence[str]) -> str:
    """Of a query that the shell has divided into its words, with the files behind it."""
    last = max((at + 1 for at, word in enumerate(words) if not os.path.isfile(word)), default=len(words))
    files = words[last:] or ("FILE",)
    return f"the query must be one argument, between quotes: elf run {_words(' '.join(words[:last]), *files)}"


def _words(*words: str) -> str:
    return " ".join(shlex.quote(word) for word in words)
