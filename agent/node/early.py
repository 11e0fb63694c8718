"""Messages of links that wait until the directory has their job.

In one sentence: messages of unknown jobs go in; when the directory has changed, those of jobs that have a seat now come out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Message

EARLY_MAX = 1_000
"""A second of messages of a busy link. If more wait, the link that delivered the last one begins anew."""


class EarlyMessages:
    """Early messages of all links, in the order of their arrival. They are kept because a link delivers each only once."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[NodeId, Message]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_over(self) -> bool:
        """Whether more wait than may."""
        return len(self._waiting) > EARLY_MAX

    def add(self, source: NodeId, message: Message) -> None:
        """O(1)."""
        self._waiting.append((source, message))

    def ready(self, jobs: Container[JobId]) -> Iterator[tuple[NodeId, Message]]:
        """The messages of these jobs, removed one by one: `jobs` may change in between. O(messages)."""
        early, self._waiting = self._waiting, []
        for source, message in early:
            if message_job(message) in jobs:
                yield source, message
            else:
                self._waiting.append((source, message))

    def forget(self, peer: NodeId) -> None:
        """The link to that neighbour begins anew. O(messages)."""
        self._waiting = [each for each in self._waiting if each[0] != peer]


def message_job(message: Message) -> JobId:
    """The job of a link's message."""
    job: JobId = message.job  # type: ignore[attr-defined]
    return job
