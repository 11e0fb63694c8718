"""The limits of `make lint` that tests/rooms.py checks."""

from __future__ import annotations

from tests.rooms import METHODS_MAX, crowded

KINDS = (
    "def m{}(self): ...",
    "async def m{}(self): ...",
    "@property\n    def m{}(self): ...",
    "def _m{}(self): ...",
)


def source(methods: int, indent: str = "") -> str:
    lines = ["class Queue(Base):", *(f"    {KINDS[each % 4].format(each)}" for each in range(methods))]
    return "\n".join(indent + line for line in "\n".join(lines).split("\n"))


def test_a_class_may_have_as_many_methods_as_the_limit() -> None:
    assert METHODS_MAX == 40
    assert list(crowded(source(METHODS_MAX))) == []


def test_a_class_of_one_method_more_is_a_problem() -> None:
    (problem,) = crowded(source(METHODS_MAX + 1))
    assert problem.startswith("class Queue has 41 methods, at most 40: it is several nouns")


def test_methods_are_counted_for_each_class() -> None:
    two = source(METHODS_MAX) + "\n\n" + source(METHODS_MAX).replace("Queue", "Table")
    assert list(crowded(two)) == []
    inner = "def make():\n" + source(METHODS_MAX + 1, "    ")
    assert len(list(crowded(inner))) == 1
