"""A bug for the agent whose PYTHONPATH leads here: finishing a result that has a column `doomed` raises."""

from __future__ import annotations

from typing import Any

from elf.jobmaster.finish import Finisher

_finish = Finisher.finish


def finish(self: Finisher, *arguments: Any, **named: Any) -> Any:
    if any(output.name == "doomed" for output in self.plan.select):
        raise RuntimeError("this agent was given a bug")
    return _finish(self, *arguments, **named)


Finisher.finish = finish  # type: ignore[method-assign]
