"""When a master publishes next."""

from __future__ import annotations

from elf.jobmaster.master.emission import Emission
from elf.srt.messages.parameters import MS, Parameters

P = Parameters()
T = 1_000_000


def test_a_line_after_a_pause_is_published_at_once_and_further_ones_at_the_interval() -> None:
    emission = Emission()

    def accept(now: int, has_lines: bool) -> int | None:
        emission.accepted(has_lines)
        emission.hurry(now, P.emit_us)
        return emission.at

    assert accept(T, True) == T
    emission.emitted(T, P.emit_us, with_open=True)
    now = T + 2 * P.emit_us
    assert accept(now, False) == now
    emission.emitted(now, P.emit_us, with_open=True)
    line = now + 5 * MS
    assert accept(line, False) == now + P.emit_us // 2, "only the coverage has changed"
    assert accept(line, True) == line
    emission.emitted(line, P.emit_us, with_open=True)
    assert accept(line + 50 * MS, True) == line + P.emit_us // 2


def test_one_late_bundle_does_not_delay_those_after_it() -> None:
    emission, published = Emission(), []
    for beat, late in enumerate((0, 150 * MS, 0, 0, 0)):
        now = T + beat * P.flush_us + late
        emission.accepted(True)
        emission.hurry(now, P.emit_us)
        assert emission.at is not None
        published.append(emission.at - (T + beat * P.flush_us))
        emission.emitted(emission.at, P.emit_us, with_open=True)
    assert published == [0, 150 * MS, 50 * MS, 30 * MS, 10 * MS]
