"""What the agent and the process that writes results send each other: one request, one answer."""

from __future__ import annotations

import msgspec


class ResultWindow(msgspec.Struct, frozen=True, array_like=True):
    """One window, final, revised or withdrawn. revision: "epoch.maker.n" (`WindowMessage`). columns: (name, Spark type) of each,
    in the order of the query. body: JSON with `rows` (`window_object`). start: microseconds UTC."""

    job: str
    version: str
    start: int
    status: str
    revision: str
    columns: tuple[tuple[str, str], ...]
    body: bytes


class ResultRequest(msgspec.Struct, frozen=True, array_like=True):
    """The windows to write below that folder."""

    folder: str
    windows: list[ResultWindow]


class ResultAnswer(msgspec.Struct, frozen=True, array_like=True):
    """written: the positions in the request of windows that are on the disk. declined: of windows that no file can hold, with the
    reason. failed: why the others were not written; "" if there are none."""

    written: list[int]
    declined: dict[int, str]
    failed: str = ""
