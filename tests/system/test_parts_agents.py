"""Two agents, one beside a container's runtime: a line in parts that a rotation divides is counted once, in its window."""

from __future__ import annotations

import time
from pathlib import Path

from tests.rigs.agents.mesh_rig import FORMAT, Fleet, line
from tests.rigs.agents.seen import totals_of
from tests.rigs.envelopes import parts


class Wrapped(Fleet):
    """The second agent reads CRI lines."""

    def _config(self, number: int, name: str, port: int) -> str:
        config = super()._config(number, name, port)
        return config.replace(f"'{FORMAT}'", f"'cri+{FORMAT}'") if number else config


def cri(text: str, *cuts: int, stream: str = "stdout") -> list[str]:
    return [raw.decode() for raw in parts("cri", text.encode(), list(cuts), stream)]


def test_a_line_in_parts_is_counted_once_across_a_rotation(tmp_path: Path) -> None:
    """Both streams have a line open where the log is rotated."""
    with Wrapped(tmp_path, 2) as fleet:
        fleet.start_job("errors")
        plain, wrapped = fleet.agents
        now_s = int(time.time()) + 1
        out = cri(line(now_s, 500, 7), 5, 9, 20)
        err = cri(line(now_s + 0.5, 404, 11), 12, stream="stderr")
        with fleet.watch("errors") as seen:
            plain.write([line(now_s, 200, 1), line(now_s + 4, 200, 0)])
            wrapped.write([*cri(line(now_s, 200, 3)), out[0], err[0], out[1]])
            wrapped.rotate()
            wrapped.write([out[2], err[1], out[3], *cri(line(now_s, 200, 5)), *cri(line(now_s + 4, 200, 0))])
            seen.wait(lambda: now_s * 1_000_000 in seen.final_starts)
            put = seen.latest[now_s * 1_000_000]
        assert totals_of(put) == {200: (3, 9), 404: (1, 11), 500: (1, 7)}
        assert (put.lines, put.agents_reporting) == ((5, 5, 0, 0), 2)
