"""A source whose lines cannot be parsed is reported, with the fraction and a sample, and its promises meanwhile are gaps."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.files.blocks import Block, FileKey
from elf.agent.formats.batch import Reject
from elf.agent.formats.fields import Reason
from elf.agent.formats.formats import resolve
from elf.agent.work.feed import Feed, Totals
from elf.agent.work.job_rows import Before, JobRows
from elf.agent.work.line_parsing import Parsing
from elf.agent.work.parsers import ParseState, advance
from elf.agent.work.unparsed import EVERY_US, SAMPLE_BYTES, Unparsed, sample_text
from elf.agent.work.worker import Worker
from elf.cbt.rows import Rows
from tests.rigs.mesh_log_rig import PANE_S, Job, Log, Server, line_of, plan_of

SECOND = 1_000_000


def test_a_sample_is_bounded_and_safe_to_print() -> None:
    assert sample_text(b"\x1b]0;rm\x07\r\n\xff") == r"\u001b]0;rm\u0007\u000d\u000a\xff"
    long = sample_text(b"x" * (SAMPLE_BYTES + 1))
    assert long == "x" * SAMPLE_BYTES + "…"


def test_trouble_is_reported_with_its_fraction_until_lines_parse_again() -> None:
    unparsed, totals = Unparsed("access", "$host $status"), Totals()
    first, second = (Reject(Reason.LITERAL, line, 0, "a separator", "time") for line in (b"one", b"two"))
    unparsed.look(0, totals, "a.log")
    totals.lines, totals.parsed, totals.rejects = 20, 5, Counter({Reason.LITERAL: 15})
    assert unparsed.look(EVERY_US, totals, "a.log", first) is None
    assert unparsed.share == 0.75
    assert "75% of the recent lines are rejected (separator missing), such as: one;" in unparsed.trouble
    totals.lines, totals.rejects = 40, Counter({Reason.LITERAL: 35})
    told = str(unparsed.look(2 * EVERY_US, totals, "a b.log", second))
    assert "none of the last 20 lines" in told
    assert told.endswith("with: elf parse 'a b.log' --format '$host $status'")
    assert unparsed.share == 1.0
    assert unparsed.sample == "one"
    totals.lines, totals.parsed = 60, 25
    assert unparsed.look(3 * EVERY_US, totals, "a.log", second) == "access: lines can be parsed again"
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
        unread: list[bool] = []

        def step(rejects: float, lines: int) -> None:
            server.rejects = rejects
            server.write(lines)
            log.now_s += 1
            server.now_s += 1
            cut = job.read()
            job.commit()
            promised.append((cut.watermark_us, cut.is_blind))
            unread.append(cut.ends_unread)

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
        assert all(unread)  # an agent that leaves now is missing from its last watermark on
        for _ in range(3):
            step(0.0, 30)
        assert not promised[-1][1]
        assert unread[-3:] == [False] * 3
    finally:
        log.source.close()
        Log.made.remove(log)


def test_times_of_which_no_line_can_be_read_are_a_gap_though_later_lines_can_be(tmp_path: Path) -> None:
    """And nothing else is: lines parsed before and after are promised apart."""
    (tmp_path / "log").mkdir()
    (tmp_path / "state").mkdir()
    server = Server(tmp_path / "log", random.Random(1))
    log = Log(server, tmp_path / "state", idle_grace_us=600 * SECOND)
    try:
        job = Job(log, (line_of(plan_of(), 1, 0),))
        told: list[tuple[int, int, bool]] = []
        unparsed: list[tuple[int, int] | None] = []

        def step(seconds: int, rejected: int, good: int) -> None:
            """So many lines of each, `seconds` later; then the promise before, the one now, and whether that is a gap."""
            log.now_s += seconds
            stamp = datetime.fromtimestamp(log.now_s, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
            with server.log.open("a") as file:
                file.write("?\n" * rejected)
                file.write(f'10.0.0.1 - - [{stamp}] "GET /a HTTP/1.1" 200 7 "-" "{seconds}"\n' * good)
            before = told[-1][1] if told else 0
            cut = job.read()
            job.commit()
            told.append((before, cut.watermark_us, cut.is_blind))
            unparsed.append(cut.unparsed)

        step(1, 0, 1)
        read_us = told[0][1]
        for _ in range(3):
            step(PANE_S, 4, 0)
        assert told[-1] == (read_us, read_us, False)  # the clock says nothing yet
        step(1, 0, 1)
        until_us = read_us + (3 * PANE_S + 1) * SECOND
        assert told[-1] == (read_us, until_us, True)
        assert unparsed == [None] * 4 + [(read_us, until_us)]
        step(3 * PANE_S, 9, 1)  # so few may be anything
        step(3 * PANE_S, 0, 1)  # nobody has logged a line meanwhile
        step(1, 30, 1)  # no whole pane
        assert [is_blind for _, _, is_blind in told[5:]] == [False] * 3
        step(3 * PANE_S, 0, 0)
        job.lose_master(0)
        step(0, 0, 0)
        assert told[-1][1:] == (read_us, False)
        assert unparsed[5:] == [None] * 4 + [
            (read_us, until_us)
        ]  # with the lines, before the promise for them
        step(0, 0, 0)
        assert told[-1] == (read_us, until_us, True)
        step(0, 0, 0)
        assert told[-1] == (until_us, told[7][1], False)
        assert unparsed[10:] == [(read_us, until_us), None]
    finally:
        log.source.close()
        Log.made.remove(log)


GOOD = '10.0.0.1 - - [14/Nov/2023:22:13:{second:02d} +0000] "GET /{path} HTTP/1.1" 200 7 "-" "-"\n'
LINES = st.lists(st.one_of(st.just(None), st.integers(0, 59)), max_size=40)
"""A line that is rejected, or one of that second."""


def counted(parts: Sequence[Rows]) -> dict[int, tuple[int, ...]]:
    """Line counters by pane."""
    found: Counter[tuple[int, int]] = Counter()
    for rows in parts:
        for at, pane in enumerate(rows.pane.tolist()):
            found.update({(pane, lane): int(rows.lanes[lane][at]) for lane in range(len(rows.lanes))})
    panes = {pane for pane, _ in found}
    return {pane: tuple(found[pane, lane] for lane in range(4)) for pane in panes}


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(LINES, min_size=1, max_size=6))
def test_live_and_replay_count_the_same_lines_wherever_they_are_cut(blocks: list[list[int | None]]) -> None:
    format, plan, state = resolve("combined"), plan_of(), ParseState()
    state.format = format
    parsing = Parsing("UTC", "a", 512, 1 << 20)
    parsing.ask(columns := frozenset({"time", "path", "bytes"}), {})
    live, replay = JobRows((line_of(plan, 1, 0),), 0), Worker(plan)
    feed = Feed(lambda block: format, [replay], columns=columns, settle=lambda: None)
    cuts, at = list[Rows](), 0
    for number, block in enumerate(blocks):
        text = "".join("?\n" if line is None else GOOD.format(second=line, path=line % 3) for line in block)
        data = text.encode()
        made = Block(FileKey(1, 1), "a.log", at, at + len(data), data, number % 2, number == 0, False)
        at += len(data)
        before = Before(state.last_time)
        batch = parsing.parse(made.lines, format, state, 1 << 60, lambda: None)
        live.add(batch, before, made.too_long)
        advance(state, batch)
        cuts += [part.rows[1] for part in live.cut().values()]
        feed.take(made, now_us=1 << 60)
    assert counted(cuts) == counted([delta.rows[1] for delta in replay.cut()])
    (file,) = feed.files.values()
    assert live.untimed == file.pending_rejects
    rejected = sum(lanes[2] for lanes in counted(cuts).values())
    assert feed.totals.rejected == rejected + live.untimed
