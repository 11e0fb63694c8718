"""A bug for the agent whose PYTHONPATH leads here: finishing a result with a column `doomed` raises, while a file is there."""

from __future__ import annotations

import os
from typing import Any

from elf.jobmaster.windows.finish import Finisher

_finish = Finisher.finish


def finish(self: Finisher, *arguments: Any, **named: Any) -> Any:
    is_doomed = any(output.name == "doomed" for output in self.plan.select)
    if is_doomed and os.path.exists(os.environ.get("TORTURE_BUG", "")):
        raise RuntimeError("this agent was given a bug")
    return _finish(self, *arguments, **named)


Finisher.finish = finish  # type: ignore[method-assign]
