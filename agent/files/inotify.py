"""Wakes a reader when something changes in a folder: libc's inotify by ctypes; without inotify there are no events.

It only makes following faster; correctness does not depend on it: some file systems, network ones above all, report no events, so
a caller that waits on `fileno` needs a timeout, and scans after it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct

_MODIFY, _ATTRIB = 0x2, 0x4
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _IGNORED, _ONLYDIR = 0x400, 0x800, 0x8000, 0x01000000
_EVENTS = (
    _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
)
FOLDERS_MAX = 256
NAMES_MAX = 1024
READ_BYTES = 64 * 1024
_EVENT = struct.Struct("iIII")


class Inotify:
    """Watches folders. `fileno` is readable after a change in one of them; -1 without inotify."""

    def __init__(self) -> None:
        self._fileno = -1
        self._folders: dict[str, int] = {}
        self.failed: set[str] = set()
        """Folders that could not be watched."""
        self.written: set[str] = set()
        """Names of files that were only written to, since the caller last cleared this."""
        self.moved = True
        """Whether files appeared, disappeared or changed otherwise, since the caller last set this to False."""
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fileno = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, AttributeError):
            self._fileno = -1

    def fileno(self) -> int:
        return self._fileno

    def watch(self, folders: set[str]) -> None:
        """Watch exactly these folders (at most `FOLDERS_MAX` of them). A folder that was removed and made again is watched
        again."""
        if self._fileno < 0:
            self.failed = set(folders)
            return
        for folder in [known for known in self._folders if known not in folders]:
            self._libc.inotify_rm_watch(self._fileno, self._folders.pop(folder))
        self.failed = set()
        for folder in sorted(folders):
            if folder in self._folders:
                continue
            watch = -1
            if len(self._folders) < FOLDERS_MAX:
                watch = self._libc.inotify_add_watch(self._fileno, os.fsencode(folder), _EVENTS)
            if watch < 0:
                self.failed.add(folder)
            else:
                self._folders[folder] = watch

    def drain(self) -> bool:
        """Read all pending events into `written` and `moved`. Returns whether there were any."""
        any_event = False
        with contextlib.suppress(BlockingIOError):
            while self._fileno >= 0 and (events := os.read(self._fileno, READ_BYTES)):
                any_event = True
                self._take(events)
                if len(events) < READ_BYTES // 2:
                    break  # there was room for more
        return any_event

    def _take(self, events: bytes) -> None:
        at = 0
        while at + _EVENT.size <= len(events):
            watch, mask, _, length = _EVENT.unpack_from(events, at)
            at += _EVENT.size + length
            if mask & _MODIFY and len(self.written) < NAMES_MAX:
                self.written.add(os.fsdecode(events[at - length : at].rstrip(b"\0")))
            else:
                self.moved = True
            # The folder is no longer watched, or was moved: `watch` adds it again.
            if mask & (_IGNORED | _MOVE_SELF):
                for folder in [known for known, number in self._folders.items() if number == watch]:
                    del self._folders[folder]

    def close(self) -> None:
        if self._fileno >= 0:
            os.close(self._fileno)
            self._fileno = -1
