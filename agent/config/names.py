"""Checks of names, and messages about unknown ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

from elf.errors import UsageError
from elf.jobmaster.directory.job_spec import NAME_MAX

SHOWN_MAX = 8
NAME_EXPECTED = "a name of at most 64 letters, digits, _ - and ., beginning with a letter, digit or _"


def is_name(text: str) -> bool:
    """Whether a job or a sink may have that name; folders of lakes have it too."""
    return re.fullmatch("[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", text) is not None


def check_new(job: str) -> None:
    """Raises UsageError if a new job may not have that name."""
    if not is_name(job):
        raise UsageError(f"NAME: expected {NAME_EXPECTED}, found {shortened(job)}")


def check_asked(job: str) -> None:
    """Raises UsageError for a name that no job can have."""
    if not 0 < len(job) <= NAME_MAX or any("\ud800" <= letter <= "\udfff" for letter in job):
        raise UsageError(f"no job is called {shortened(job)}; see elf job list")


def shortened(text: str) -> str:
    """The text found, shortened for a message."""
    return repr(text if len(text) <= 80 else text[:79] + "…")


def meant(name: str, known: Sequence[str], none: str) -> str:
    """The name that was probably meant, else the known ones; `none` if there are none."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    names = ", ".join(known[:SHOWN_MAX]) + (", …" if len(known) > SHOWN_MAX else "")
    return f"there {'is' if len(known) == 1 else 'are'} {names}" if known else none


def unknown_job(name: str, known: Sequence[str]) -> UsageError:
    """The error for an unknown job."""
    return UsageError(f"no job is called {name!r}; {meant(name, known, 'none has been started')}")
