"""When a mesh agent's process frees what its jobs have dropped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elf.agent.host.memory import Memory

MASTER, STATE = object(), object()


def seat(job: bytes, master: Any = None, state: Any = None) -> Any:
    log = SimpleNamespace(state=state)
    return SimpleNamespace(
        job=job, master=master, succession=SimpleNamespace(replica=SimpleNamespace(log=log))
    )


@pytest.mark.parametrize(
    ("before", "after", "is_dropped"),
    [
        ([], [seat(b"a", MASTER, STATE)], False),
        ([seat(b"a")], [seat(b"a", None, STATE)], False),
        ([seat(b"a", None, STATE)], [seat(b"a", MASTER, STATE)], False),
        ([seat(b"a", MASTER, STATE)], [seat(b"a", MASTER, STATE), seat(b"b", MASTER, STATE)], False),
        ([seat(b"a", MASTER, STATE)], [seat(b"a", None, STATE)], True),
        ([seat(b"a", MASTER, STATE)], [seat(b"a", object(), STATE)], True),
        ([seat(b"a", None, STATE)], [seat(b"a", None, object())], True),
        ([seat(b"a", None, STATE)], [], True),
        ([seat(b"a")], [], False),
    ],
)
def test_a_master_or_a_state_that_is_gone_is_noticed_once(
    before: list[Any], after: list[Any], is_dropped: bool
) -> None:
    memory = Memory(64 << 20, lambda: 0)
    memory.is_dropped(before)
    assert memory.is_dropped(after) is is_dropped
    assert not memory.is_dropped(after)


def test_pages_of_files_and_what_the_process_began_with_are_bare() -> None:
    own = 20
    memory = Memory(64 << 20, lambda: own + 30, lambda: own)
    assert (memory.bare, memory.grown) == (50, 0)
    own = 25
    assert (memory.bare, memory.grown) == (50, 5)
    own = 15
    assert (memory.bare, memory.grown) == (45, 0)
