"""Lines of one source that cannot be read, or no longer: how long their file is searched for, and the reports of losses.

Each loss is logged once, with what happened, where, and what to do, and is shown by `elf mesh status` for an hour.
"""

from __future__ import annotations

from collections.abc import Callable

from elf.agent.files.follow import Followed
from elf.agent.files.listing import reason
from elf.agent.work.log_files import LogFiles

SHOWN_S = 3_600.0
PROBLEMS_MAX = 8
"""Reports kept of one source, the newest ones."""
UNREAD_MAX = 3
"""Named candidates for a missing file."""


class Losses:
    """The losses of one source. problems: notices of recent ones."""

    def __init__(self, name: str, files: LogFiles, grace_s: float, notice: Callable[[str], None]) -> None:
        self._name, self._files, self._grace_s, self._notice = name, files, grace_s, notice
        self._missing: dict[int, tuple[float, float]] = {}  # by identity: missing since, last `is_given_up`
        self._reported: dict[tuple[int, str], tuple[float, str]] = {}  # by identity and kind: when, notice

    @property
    def problems(self) -> tuple[str, ...]:
        """O(PROBLEMS_MAX)."""
        now_s = self._files.now_s
        return tuple(text for since_s, text in self._reported.values() if now_s - since_s < SHOWN_S)

    def is_given_up(self, identity: int) -> bool:
        """Whether a missing file has been searched for long enough: a copy or archive of it may still be in progress, and is
        recognised only after the grace period."""
        now_s = self._files.now_s
        since, _ = self._missing.get(identity, (now_s, 0.0))
        self._missing[identity] = since, now_s
        self._missing = {key: when for key, when in self._missing.items() if when[1] > now_s - self._grace_s}
        if now_s - since < 2 * self._grace_s:
            self._files.seek()
            return False
        return True

    def gone(self, identity: int, offset: int, file: Followed | None) -> None:
        """Report a file that was given up. file: what is known of it, unless that was lost too."""
        name = f"what was {file.path}" if file is not None else "a log file of this source"
        text = f"{name}, counted up to byte {offset}, is missing from its folders"
        alike = self._files.begins_like(file) if file is not None else ()
        unread = [*((path, "it is shorter") for path in alike), *self._files.unread.items()][:UNREAD_MAX]
        if unread:
            which = "; ".join(f"{path}: {why}" for path, why in unread)
            text += (
                f"; these files may contain the rest of it ({which}): repair them, and the lines are counted"
            )
        else:
            text += (
                ": it was deleted, emptied or moved away, and lines past that byte are lost; let the rotation keep logs longer, "
                "or put the file back into the folder"
            )
        self._report(identity, "gone", f"{text}; windows that lack its lines do not count this agent")

    def short(self, file: Followed | None, identity: int, offset: int, front: int) -> None:
        """Report a file that is shorter than what the mesh has counted of it."""
        path = file.path if file is not None else "a log"
        holds = f"it now has {front}" if front < offset else "no line begins at that offset now"
        text = f"{path}: {offset} bytes of it are counted, and {holds}: "
        if file is not None and file.packed:
            text += "the archive is damaged or was cut short; windows that lack the later lines do not count this agent"
        else:
            text += (
                "it was cut short, or a shorter one took its place; reading continues at its end, and windows that lack lines "
                "do not count this agent"
            )
        self._report(identity, "short", text)

    def behind_copy(self, file: Followed, identity: int, offset: int, front: int) -> None:
        """Report lines that a job had not counted when their log was emptied, and that the log's copy lacks."""
        text = (
            f"{file.path}: this copy of a log that was emptied at byte {front} lacks its end: lines past byte {offset} are in no "
            "file (copytruncate), and windows that lack them do not count this agent; let the rotation rename the log instead "
            "(create)"
        )
        self._report(identity, "copied", text)

    def damaged(self, file: Followed, identity: int, offset: int, front: int) -> None:
        """Report an archive, or a renamed log, that was readable before and is not now."""
        text = (
            f"{file.path}: damaged after byte {offset} (uncompressed), of {front} that were readable before; a job that has not "
            "counted the rest continues without it, and its windows do not count this agent; put the whole file back, and the "
            "rest is counted"
        )
        self._report(identity, "damaged", text)

    def unread(self, file: Followed, identity: int, offset: int, error: OSError) -> None:
        """Report a file that exists but cannot be read."""
        text = f"{file.path}: {reason(error)}; a job waits at byte {offset} of it (uncompressed) until it can be read"
        self._report(identity, "unread", text)

    def cut_off(self, file: Followed, identity: int) -> None:
        """Report an archive whose end cannot be read, or a file that was missing when this agent restarted."""
        if not file.packed:
            self.gone(identity, file.state.offset, file)
            return
        self._report(
            identity,
            "damaged",
            f"{file.path}: damaged after byte {file.state.offset} (uncompressed); the lines after it are lost, and windows that "
            "lack them do not count this agent",
        )

    def _report(self, identity: int, kind: str, text: str) -> None:
        if (identity, kind) in self._reported:
            return
        text = f"{self._name}: {text}"
        self._reported[identity, kind] = self._files.now_s, text
        while len(self._reported) > PROBLEMS_MAX:
            del self._reported[next(iter(self._reported))]
        self._notice(text)
