"""What to say of a name that is not known."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from elf.errors import UsageError

SHOWN_MAX = 8


def meant(name: str, known: Sequence[str], none: str) -> str:
    """Which was meant, else which there are; `none` if there are none."""
    close = get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    names = ", ".join(known[:SHOWN_MAX]) + (", …" if len(known) > SHOWN_MAX else "")
    return f"there {'is' if len(known) == 1 else 'are'} {names}" if known else none


def unknown_job(name: str, known: Sequence[str]) -> UsageError:
    """There is no such job."""
    return UsageError(f"no job is called {name!r}; {meant(name, known, 'none has been started')}")
