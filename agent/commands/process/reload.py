"""SIGHUP: an agent reads its configuration again. A good one makes it end in order and begin again, as the same process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from threading import Thread
from typing import NoReturn

from elf.errors import ElfError


class Reload:
    """check: reads the configuration; raises ElfError. is_due: the agent was made to end, and is to begin again."""

    def __init__(self, check: Callable[[], object], notices: Callable[[str], None]) -> None:
        self._check, self._notices = check, notices
        self.is_due = False

    def ask(self, end: Callable[[], None]) -> None:
        """Check the configuration in a thread, and if it is good, call `end` there. For handlers of signals."""
        Thread(target=self._try, args=(end,), daemon=True).start()

    def _try(self, end: Callable[[], None]) -> None:
        try:
            self._check()
        except ElfError as error:
            self._notices(f"the configuration has an error, and the former one stays in force: {error}")
            return
        self._notices("the configuration is good: the agent ends, and begins again with it")
        self.is_due = True
        end()


def begin_again() -> NoReturn:
    """Replace this process, which keeps its number, by a new one with the same arguments."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
