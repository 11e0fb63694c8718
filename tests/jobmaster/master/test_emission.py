"""When a master publishes next."""

from __future__ import annotations

from elf.jobmaster.master.emission import Emission
from elf.srt.messages.parameters import MS, Parameters

P = Parameters()
T = 1_000_000


def test_a_line_after_a_pause_is_published_at_once_and_further_ones_at_the_interval() -> None:
    emission = Emission(P.append_us)

    def accept(now: int, has_lines: bool) -> int | None:
        emission.accepted(has_lines)
        emission.hurry(now, P.emit_us)
        return emission.at

    assert accept(T, True) == T + P.append_us
    emission.emitted(T + P.append_us, with_open=True)
    now = T + P.append_us + P.emit_us
    assert accept(now, False) == now + P.append_us
    emission.emitted(now + P.append_us, with_open=True)
    line = now + P.append_us + 5 * MS
    assert accept(line, False) == now + P.append_us + P.emit_us, "only the coverage has changed"
    assert accept(line, True) == line + P.append_us
    emission.emitted(line + P.append_us, with_open=True)
    assert accept(line + 50 * MS, True) == line + P.append_us + P.emit_us
