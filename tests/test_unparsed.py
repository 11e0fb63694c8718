"""A source of which lines cannot be read says so, with the share and a sample, and what its agent promises meanwhile is a gap."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

from elf.agent.batch import Reject
from elf.agent.feed import Totals
from elf.agent.fields import Reason
from elf.agent.unparsed import EVERY_US, SAMPLE_BYTES, Unparsed, sample_text
from tests.mesh_log_rig import Job, Log, Server, line_of, plan_of

SECOND = 1_000_000


def test_a_sample_is_bounded_and_safe_to_print() -> None:
    assert sample_text(b"\x1b]0;rm\x07\r\n\xff") == r"\u001b]0;rm\u0007\u000d\u000a\xff"
    long = sample_text(b"x" * (SAMPLE_BYTES + 1))
    assert long == "x" * SAMPLE_BYTES + "…"


def test_trouble_is_told_with_its_share_until_lines_can_be_read_again() -> None:
    unparsed, totals = Unparsed("access"), Totals()
    first, second = (Reject(Reason.LITERAL, line, 0, "a separator", "time") for line in (b"one", b"two"))
    unparsed.look(0, totals, "a.log")
    totals.lines, totals.parsed, totals.rejects = 20, 5, Counter({Reason.LITERAL: 15})
    assert unparsed.look(EVERY_US, totals, "a.log", first) is None
    assert unparsed.share == 0.75
    assert "75% of the recent lines are rejected (separator missing), such as: one;" in unparsed.trouble
    totals.lines, totals.rejects = 40, Counter({Reason.LITERAL: 35})
    assert "none of the last 20 lines" in str(unparsed.look(2 * EVERY_US, totals, "a.log", second))
    assert unparsed.share == 1.0
    assert unparsed.sample == "one"
    totals.lines, totals.parsed = 60, 25
    assert unparsed.look(3 * EVERY_US, totals, "a.log", second) == "access: lines can be read again"
    assert unparsed.trouble == ""


def test_a_source_of_which_no_line_can_be_read_promises_by_the_clock_and_that_is_a_gap(
    tmp_path: Path,
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "state").mkdir()
    server = Server(tmp_path / "log", random.Random(1), rejects=1.0)
    log = Log(server, tmp_path / "state", idle_grace_us=2 * SECOND)
    try:
        job = Job(log, (line_of(plan_of(), 1, 0),))
        promised: list[tuple[int, bool]] = []

        def step(rejects: float, lines: int) -> None:
            server.rejects = rejects
            server.write(lines)
            log.now_s += 1
            server.now_s += 1
            cut = job.read()
            job.commit()
            promised.append((cut.watermark_us, cut.is_blind))

        for _ in range(6):
            step(1.0, 5)
        marks = [mark for mark, _ in promised]
        assert marks[0] == 0
        assert marks[-1] > marks[-2] > 0
        grows = [mark > before for before, mark in pairwise([0, *marks])]
        assert [is_blind for _, is_blind in promised] == grows
        for _ in range(12):
            step(0.0, 0)  # nothing comes: that is no gap, once what came is promised
        assert [is_blind for _, is_blind in promised[-4:]] == [False] * 4
        assert promised[-1][0] > promised[-2][0]
        for _ in range(3):
            step(0.0, 30)
        assert not promised[-1][1]
    finally:
        log.source.close()
        Log.made.remove(log)
