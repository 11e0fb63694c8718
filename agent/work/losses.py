"""Lines of one source that cannot be read (any more): how long their file is looked for, and what is said of it.

Each loss is said once in the agent's log, with what happened, where, and what to do, and stands in `elf mesh status` for an hour.
"""

from __future__ import annotations

from collections.abc import Callable

from elf.agent.files.follow import Followed
from elf.agent.files.listing import reason
from elf.agent.work.log_files import LogFiles

SHOWN_S = 3_600.0
PROBLEMS_MAX = 8
"""Of one source; the newest."""
UNREAD_MAX = 3
"""Files that are named which may be the missing one."""


class Losses:
    """problems: what was lost of late, as it was said."""

    def __init__(self, name: str, files: LogFiles, grace_s: float, notice: Callable[[str], None]) -> None:
        self._name, self._files, self._grace_s, self._notice = name, files, grace_s, notice
        self._missing: dict[int, tuple[float, float]] = {}  # since when, and when that was last so
        self._reported: dict[tuple[int, str], tuple[float, str]] = {}  # by identity and kind: when and what

    @property
    def problems(self) -> tuple[str, ...]:
        """O(PROBLEMS_MAX)."""
        now_s = self._files.now_s
        return tuple(text for since_s, text in self._reported.values() if now_s - since_s < SHOWN_S)

    def is_given_up(self, identity: int) -> bool:
        """Whether a file that cannot be found has been looked for long enough: a copy or an archive of it may be in the making,
        and is known for one only after a grace."""
        now_s = self._files.now_s
        since, _ = self._missing.get(identity, (now_s, 0.0))
        self._missing[identity] = since, now_s
        self._missing = {key: when for key, when in self._missing.items() if when[1] > now_s - self._grace_s}
        if now_s - since < 2 * self._grace_s:
            self._files.seek()
            return False
        return True

    def gone(self, identity: int, offset: int, file: Followed | None) -> None:
        """It was looked for, and given up. file: what is known of it, unless that was lost too."""
        name = f"what was {file.path}" if file is not None else "a log file of this source"
        text = f"{name}, counted up to byte {offset}, is nowhere in its folders"
        alike = self._files.begins_like(file) if file is not None else ()
        unread = [*((path, "it is shorter") for path in alike), *self._files.unread.items()][:UNREAD_MAX]
        if unread:
            which = "; ".join(f"{path}: {why}" for path, why in unread)
            text += f" as a whole; what is there may be the rest of it ({which}): mend that, and its lines are counted"
        else:
            text += (
                ": it was deleted, emptied or moved away, and nobody knows what it held behind that; have the rotation keep logs "
                "longer, or bring it back beside the others"
            )
        self._report(identity, "gone", f"{text}; windows that lack its lines notice so")

    def short(self, file: Followed | None, identity: int, offset: int, front: int) -> None:
        """It holds less than what the mesh has counted."""
        path = file.path if file is not None else "a log"
        holds = f"it holds {front}" if front < offset else "no line begins there any more"
        text = f"{path}: {offset} bytes of it are counted, and {holds}: "
        if file is not None and file.packed:
            text += (
                "the archive is damaged or was cut short; windows that lack the lines behind that notice so"
            )
        else:
            text += "it was cut short, or a shorter one took its place; reading goes on at its end, and windows notice so"
        self._report(identity, "short", text)

    def behind_copy(self, file: Followed, identity: int, offset: int, front: int) -> None:
        """A job had not counted all that was read of a log when it was emptied, and its copy lacks the end."""
        text = (
            f"{file.path}: a copy, without the end, of a log that was emptied at byte {front}: what came behind byte {offset} is "
            "in no file (copytruncate), and windows that lack it notice so; have the rotation rename the log instead (create)"
        )
        self._report(identity, "copied", text)

    def damaged(self, file: Followed, identity: int, offset: int, front: int) -> None:
        """An archive, or what a log became, that could be read once, and now cannot."""
        text = (
            f"{file.path}: damaged behind byte {offset} (uncompressed), of {front} that could be read before; a job that has not "
            "counted these goes on without them, and its windows notice so; put the whole file back, and they are counted"
        )
        self._report(identity, "damaged", text)

    def unread(self, file: Followed, identity: int, offset: int, error: OSError) -> None:
        """It is there, and the disk does not give it."""
        text = f"{file.path}: {reason(error)}; a job waits at byte {offset} of it (uncompressed) until it can be read"
        self._report(identity, "unread", text)

    def cut_off(self, file: Followed, identity: int) -> None:
        """An archive whose end cannot be read, or a file that was gone when this agent was started again."""
        if not file.packed:
            self.gone(identity, file.state.offset, file)
            return
        self._report(
            identity,
            "damaged",
            f"{file.path}: damaged behind byte {file.state.offset} (uncompressed); lines there are lost, and windows notice so",
        )

    def _report(self, identity: int, kind: str, text: str) -> None:
        if (identity, kind) in self._reported:
            return
        text = f"{self._name}: {text}"
        self._reported[identity, kind] = self._files.now_s, text
        while len(self._reported) > PROBLEMS_MAX:
            del self._reported[next(iter(self._reported))]
        self._notice(text)
