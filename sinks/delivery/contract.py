"""What a sink does that delivers windows as messages: take one, and return when it is acknowledged.

    connect -> deliver, deliver, … -> close
                  |
                  `-- returns: acknowledged   RefusedError: this message only   DeliveryError: the connection is over
                                              DeclinedError: never this message

A kind of such a sink is one module with a `Carrier`. What is sent next, again, and after which pause is decided outside
(`elf.jobmaster.delivery.dispatch`), and so is what has been acknowledged (the ledger). So a carrier keeps nothing: after a
`DeliveryError` it is closed, and another one is made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

CONTENT_TYPE = "application/json"
Take = Callable[[bytes], Awaitable[dict[str, Any]]]
"""Does what a command asks for that came from a receiver. Returns the answer, for JSON."""


class DeliveryError(Exception):
    """The sink cannot be reached, refuses the connection, or does not answer. The text is shown: it contains no secret. after_s:
    for how long the sink asked not to be tried again."""

    def __init__(self, text: str, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.after_s = after_s


class RefusedError(Exception):
    """The sink refuses this one message. The text is shown."""


class DeclinedError(Exception):
    """The sink will never take this message, or not all of it: it counts as refused, and comes no more. The text is shown."""


class WindowMessage(msgspec.Struct, frozen=True):
    """One window, or one change of an alert (`kind`). id: of (job, version, window, revision), the same at each repetition. body:
    JSON (`window_json_of`). is_newest: no newer window of the job was delivered before, nor a later revision of this one. keep_s:
    how long it matters. keys: the columns that no aggregate decides, without the window. end_us: of the window. fresh_s: after
    that the next one is overdue. start_us: of the window. columns: (name, Spark type) of each, as in the body; none for a
    withdrawn window of a version that is not known any more."""

    id: str
    job: str
    version: str
    status: str
    revision: str
    digest: str
    body: bytes
    is_newest: bool
    keep_s: int
    keys: tuple[str, ...] = ()
    end_us: int = 0
    fresh_s: int = 0
    kind: str = "window"
    start_us: int = 0
    columns: tuple[tuple[str, str], ...] = ()


class Carrier(Protocol):
    """One connection. All methods run on the loop. One with `at_once` takes so many messages without acknowledgement, instead of
    16 (`dispatch.AT_ONCE`)."""

    async def connect(self) -> None:
        """Raises DeliveryError."""

    async def deliver(self, message: WindowMessage) -> None:
        """Return once it is acknowledged. Several calls may wait at once; messages go out in the order of the calls. Raises
        DeliveryError, RefusedError."""

    async def gone(self) -> None:
        """Wait until the connection ends, and raise DeliveryError."""

    async def close(self) -> None:
        """Release everything. Raises nothing. Idempotent."""
