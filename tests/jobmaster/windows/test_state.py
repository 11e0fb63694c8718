"""Pane states in parts: their values and digests do not depend on where a memory cap divides them."""

from __future__ import annotations

from pathlib import Path

from elf.agent.run.engine import RunOptions, run
from elf.jobmaster.windows.result import PaneState, StateValues, Window


class Kept:
    """A sink that stores states."""

    wants_open = False
    wants_state = True
    pending_bytes = 0

    def __init__(self) -> None:
        self.states: list[tuple[list[object], bytes, int]] = []

    def next_epoch(self, job: str) -> int:
        return 0

    def put(self, window: Window) -> None: ...

    def put_state(self, state: PaneState) -> None:
        assert isinstance(state.values, StateValues)
        going_on = sum(more for _, more in state.values.parts())
        self.states.append((list(state.values), state.values.digest, going_on))

    def flush(self) -> None: ...

    def close(self) -> None: ...


def states_of(log: Path, cap: int) -> list[tuple[list[object], bytes, int]]:
    query = (
        "SELECT status, count(DISTINCT path) AS p, count(DISTINCT client_ip, path) AS q, "
        "approx_percentile(bytes, 0.5) AS m, sum(bytes) AS b FROM access GROUP BY status"
    )
    sink = Kept()
    run(RunOptions(query, (str(log),), format="combined", memory_max=cap), [sink])
    return sink.states


def test_one_group_of_many_members_comes_in_parts(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    lines = [
        f'10.0.0.{i % 200} - - [17/May/2015:10:05:03 +0000] "GET /{i % 20_000:x} HTTP/1.1" '
        f'{200 if i % 50 else 300 + i % 7} {i % 999} "-" "-"\n'
        for i in range(30_000)
    ]
    log.write_text("".join(lines))
    [(small, small_digest, going_on)] = states_of(log, 4 << 20)
    [(large, large_digest, whole)] = states_of(log, 1 << 30)
    assert going_on > whole == 0
    assert small == large
    assert small_digest == large_digest
    paths = dict(zip(small[0], small[-3], strict=True))  # type: ignore[call-overload]
    assert sorted(paths[200]) == sorted({f"/{i % 20_000:x}" for i in range(30_000) if i % 50})
