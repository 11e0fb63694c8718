"""The torture itself: its oracle, its judgement and its schedule, and a minute of all of it with real servers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elf.agent.node.worker.kept_bundles import MOVED
from elf.agent.work.losses import Losses
from elf.agent.work.source_bounds import STATE_LOST
from elf.jobmaster.directory.job_spec import CHANGES_MAX
from elf.srt.transport.admission import both
from tests.torture.__main__ import refusal
from tests.torture.changes import NO_TIME, Change, drawn, versions
from tests.torture.jobs import JOBS
from tests.torture.log_lines import judge_log_lines, untrue
from tests.torture.options import Options
from tests.torture.oracle import Count, Log, Oracle, top
from tests.torture.readers.publications import Publication
from tests.torture.readers.receivers import drawn as outages
from tests.torture.readers.receivers import latest as last_of
from tests.torture.readers.receivers import publications as received
from tests.torture.recorder import beyond_cap
from tests.torture.schedule import (
    APART_S,
    FILLED_S,
    FIRST_S,
    KINDS,
    LOST_MAX,
    OF_DISKS,
    OF_GUESTS,
    Fault,
    Schedule,
)
from tests.torture.verdict import Excuse, Judge, Verdict

AGENTS, PATHS, _ = JOBS
START_S = 1_800_000_000
PLAIN = [
    f'{START_S + 1}.250 10.0.0.1 "GET /p/3?n=1 HTTP/1.1" 200 100 "wrk \\x22"',
    f'{START_S + 4}.999 10.0.0.1 "GET /p/3 HTTP/1.1" 200 50 "-"',
    f'{START_S + 5}.000 10.0.0.1 "\\x16\\x03" 400 7 "-"',
]
COMBINED = ['::1 - a b [15/Jan/2027:08:00:03 +0000] "GET /p/9 \\"x\\" HTTP/1.1" 404 - "-" "c\\"]"']
SMOKE = "kill stop restart part block full hog reload renew clock"


def log(folder: Path, agent: str, lines: list[str], *, is_plain: bool = True) -> Log:
    path = folder / f"{agent}.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    return Log(agent, path, is_plain)


def oracle(folder: Path) -> Oracle:
    return Oracle([log(folder, "web1", PLAIN), log(folder, "web2", COMBINED, is_plain=False)])


def said(rows: dict[tuple[str | int, ...], Count], **changes: object) -> Publication:
    """A word on the first window of the job `agents`: final and whole, unless the changes say otherwise."""
    whole = Publication(
        "test", "agents", START_S, "final", (1, "a", 1), 2, 2, 3, 0, 0, is_all=True, rows=rows
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


TRUE: dict[tuple[str | int, ...], Count] = {("web1", 200): Count(2, 150), ("web2", 404): Count(1, 0)}
LESS: dict[tuple[str | int, ...], Count] = {("web1", 200): Count(2, 150)}
MORE = TRUE | {("web1", 200): Count(3, 150)}


def test_the_oracle_reads_both_formats_into_windows_and_panes(tmp_path: Path) -> None:
    truth = oracle(tmp_path)
    assert truth.windows(AGENTS)[START_S].most == TRUE
    assert truth.windows(AGENTS)[START_S + 5].most == {("web1", 400): Count(1, 7)}
    assert {start: bounds.most for start, bounds in truth.windows(PATHS).items()} == {
        START_S - 5: {("/p/3",): Count(2)},
        START_S: {("/p/3",): Count(2)},
        START_S + 5: {},
    }
    assert truth.windows(PATHS, as_panes=True)[START_S].lines_most == 3


def test_what_copytruncate_lost_may_count_or_not(tmp_path: Path) -> None:
    rotated = tmp_path / "access.log.1"
    rotated.write_text(PLAIN[0] + "\n")
    truth = Oracle([replace(log(tmp_path, "web1", PLAIN), rotated=(rotated,))])
    bounds = truth.windows(AGENTS)[START_S]
    assert (bounds.least, bounds.most) == ({("web1", 200): Count(1, 100)}, {("web1", 200): Count(2, 150)})
    assert truth.lost == {"web1": 2}


def test_a_limit_leaves_the_most_hits_then_the_order_of_keys() -> None:
    groups: dict[tuple[str | int, ...], Count] = {
        ("b",): Count(2),
        ("a",): Count(2),
        ("c",): Count(9),
        ("d",): Count(1),
    }
    assert list(top(groups, 3)) == [("c",), ("a",), ("b",)]


@pytest.mark.parametrize(
    ("publication", "kinds"),
    [
        (said(TRUE), []),
        (said(MORE), ["exceeds"]),
        (said(TRUE, lines_read=4), ["exceeds"]),
        (said(TRUE, start_s=START_S + 500, lines_read=0), ["exceeds"]),
        (said(LESS), ["claims"]),
        (said(LESS, status="revised"), ["claims"]),
        (said(LESS, reporting=1), []),
        (said(LESS, lines_late=1), []),
        (said(LESS, status="open", is_all=False), []),
        (said(MORE, status="open", is_all=False), ["exceeds"]),
    ],
)
def test_one_publication(tmp_path: Path, publication: Publication, kinds: list[str]) -> None:
    judge = Judge(oracle(tmp_path), Verdict())
    judge.publication(publication, AGENTS)
    assert [each.kind for each in judge.verdict.findings] == kinds


def test_a_clock_that_was_ahead_excuses_what_was_called_whole_too_early(tmp_path: Path) -> None:
    judge = Judge(oracle(tmp_path), Verdict(), [Excuse(START_S + 4.0, START_S + 9.0)])
    judge.publication(said(LESS), AGENTS)
    assert judge.verdict.findings == []
    judge.publication(said(MORE), AGENTS)
    assert [each.kind for each in judge.verdict.findings] == ["exceeds"]


def test_one_reader_hears_final_once_and_revisions_that_grow(tmp_path: Path) -> None:
    judge = Judge(oracle(tmp_path), Verdict())
    words = [said(TRUE), said(TRUE, revision=(2, "a", 1)), said(TRUE, status="revised", revision=(2, "a", 1))]
    judge.session(words, AGENTS)
    assert [each.kind for each in judge.verdict.findings] == ["again", "order"]
    judge.session(words[:1], AGENTS)
    assert len(judge.verdict.findings) == 2


def test_what_is_final_counts_after_what_the_smaller_side_showed_as_open(tmp_path: Path) -> None:
    judge = Judge(oracle(tmp_path), Verdict())
    judge.session([said(LESS, status="open", is_all=False, revision=(3, "a", 1)), said(TRUE)], AGENTS)
    assert judge.verdict.findings == []
    judge.session([said(TRUE), said(TRUE, status="open")], AGENTS)
    assert [each.kind for each in judge.verdict.findings] == ["order"]


def test_the_last_word_on_each_window(tmp_path: Path) -> None:
    judge = Judge(oracle(tmp_path), Verdict())
    second = said({("web1", 400): Count(1, 7)}, start_s=START_S + 5)
    whole = {START_S: said(TRUE), START_S + 5: second}
    for latest in (
        whole,
        {START_S: said(TRUE)},
        whole | {START_S: said(LESS)},
        whole | {START_S: said(LESS, reporting=1)},
        whole | {START_S: said(TRUE, reporting=1)},
    ):
        judge.last_revisions(latest, AGENTS, "lake", as_panes=True)
    assert [each.kind for each in judge.verdict.findings] == ["missing", "wrong", "lacks", "modest"]
    assert judge.lacking(whole, AGENTS) == ""
    assert judge.lacking(whole | {START_S: said(TRUE, reporting=1)}, AGENTS) == "", (
        "one of the newest is whole"
    )
    modest = {start_s: replace(each, reporting=1) for start_s, each in whole.items()}
    assert judge.lacking(modest, AGENTS).startswith("none of its newest panes is whole: ")
    assert judge.lacking({START_S: said(TRUE)}, AGENTS).startswith("1 of 2 panes are not there, the first ")


def test_what_sinks_receive(tmp_path: Path) -> None:
    judge = Judge(oracle(tmp_path), Verdict())
    judge.delivered([said(TRUE), said(TRUE), said(MORE, revision=(1, "a", 2))], AGENTS)
    assert [each.kind for each in judge.verdict.findings] == ["exceeds"], "a window may come twice"
    judge.delivered([said(TRUE), said(LESS, lines_late=1)], AGENTS)
    assert [each.kind for each in judge.verdict.findings] == ["exceeds", "differs"]
    assert judge.undelivered({START_S: said(TRUE)}, AGENTS) == (
        "1 of 2 windows did not come, the first 1800000005"
    )
    assert judge.undelivered({START_S: said(TRUE), START_S + 5: said({})}, AGENTS) == ""
    assert judge.undelivered({START_S: said(TRUE)}, PATHS) == "", (
        "its earlier window has lines, and may be cut"
    )


def test_messages_become_publications() -> None:
    meta = (
        '"window": {"start": "2027-01-15T08:00:00Z"}, "status": "%s", "revision": [1, "a", %d], "agents_reporting": 2, '
        '"agents_expected": 2, "lines_read": 3, "lines_rejected": 0, "lines_late": 0'
    )
    rows = (
        '[{"agent": "web1", "status": 200, "hits": 2, "bytes": 150},'
        ' {"agent": "web2", "status": 404, "hits": 1, "bytes": null}]'
    )
    lines = [
        f'{at} {{"_elf": {{"job": "{job}", {meta % (status, n)}}}, "rows": {rows}}}\n'.encode()
        for at, job, status, n in (
            (1.5, "agents", "final", 1),
            (1.6, "other", "final", 1),
            (1.7, "agents", "revised", 2),
        )
    ]
    heard = list(received([*lines, lines[0][:-9]], AGENTS, "sink hook"))
    assert [(each.status, each.revision, each.at_s) for each in heard] == [
        ("final", (1, "a", 1), 1.5),
        ("revised", (1, "a", 2), 1.7),
    ]
    assert heard[0].rows == TRUE
    assert last_of(reversed(heard)) == {START_S: heard[1]}
    assert last_of([*heard, replace(heard[1], status="withdrawn", revision=(1, "a", 3))]) == {}


def test_outages_of_receivers_depend_on_the_seed_and_do_not_overlap(tmp_path: Path) -> None:
    few, many = Options(60.0, 5, tmp_path), Options(9_000.0, 6, tmp_path)
    assert outages(few)
    assert outages(many) == outages(many)
    drawn_outages = outages(many)
    assert {each.kind for each in drawn_outages} == {"restart", "stop", "deaf"}
    for one, other in pairwise(drawn_outages):
        assert one.at_s + one.seconds < other.at_s


def step(version: str, state: str, from_us: int, least: int) -> dict[str, object]:
    return {"version": version, "state": state, "from_us": from_us, "parameters": {"least": str(least)}}


def test_each_version_of_a_job_that_changes_counts_its_own_lines(tmp_path: Path) -> None:
    first_us = START_S * 1_000_000
    steps = [
        step("a", "replaced", first_us, 200),
        step("b", "lost", first_us + 1, 500),
        step("b", "replaced", first_us + 3_000_000, 300),
        step("a", "in force", first_us + 5_000_000, 200),
    ]
    a, b = versions(steps)
    first_ms = START_S * 1_000.0
    assert a.stretches == ((first_ms, first_ms + 3_000), (first_ms + 5_000, float("inf")))
    assert (b.stretches, b.least) == (((first_ms + 3_000, first_ms + 5_000),), 300)
    truth = oracle(tmp_path)
    assert {start: bounds.most for start, bounds in truth.windows(a).items()} == {
        START_S: {(200,): Count(1, 100)},
        START_S + 5: {(400,): Count(1, 7)},
    }
    assert {start: bounds.most for start, bounds in truth.windows(b).items()} == {
        START_S: {(404,): Count(1, 0)}
    }
    (again,) = versions([steps[0] | {"asked_us": first_us + 9_000_000}], {"web2": int(first_ms) + 8_000})
    assert again.unread == (("web2", first_ms, float("inf")),), "nobody can read its lines again"
    assert not truth.windows(again)[START_S].is_exact
    (before,) = versions([steps[0] | {"asked_us": first_us}], {"web2": int(first_ms) + 8_000})
    assert before.unread == ()
    asked = [steps[0] | {"asked_us": first_us + 9_000_000}]
    (twin,) = versions(asked, twins=[("web2", first_ms + 8_000, first_ms + 20_000)])
    assert twin.unread == (("web2", first_ms, first_ms + 9_000),), "what held its key has none of its lines"
    assert not truth.windows(twin)[START_S].is_exact
    (alone,) = versions(asked, twins=[("web2", first_ms + 9_500, first_ms + 20_000)])
    assert alone.unread == ()
    judge = Judge(truth, Verdict())
    latest = {START_S: said({(404,): Count(1, 0)})}
    judge.nothing_else(latest, b)
    assert judge.lacking_lines(latest, b) == ""
    assert judge.lacking_lines(latest, a).startswith(
        "1 of 2 panes are not there, the first 1800000005; 1 have other lines, "
    )
    assert judge.verdict.findings == []
    judge.nothing_else(latest, replace(b, stretches=NO_TIME))
    assert [each.kind for each in judge.verdict.findings] == ["wrong"]


def test_a_seed_repeats_its_changes() -> None:
    def changes(seed: int) -> list[Change]:
        return drawn(Options(seconds=900.0, seed=seed, out=Path()), ["web1", "web2"])

    assert changes(3) == changes(3) != changes(4)
    kinds = Counter(each.kind for seed in range(1, 9) for each in changes(seed))
    assert set(kinds) == {"set", "rollback", "promote", "abort", "settings"}
    assert max(len(changes(seed)) for seed in range(1, 9)) < CHANGES_MAX


def schedule(seed: int, seconds: float = 900.0) -> Schedule:
    options = Options(seconds=seconds, seed=seed, out=Path())
    return Schedule(options, [f"web{n}" for n in range(5)], ["guest1", "guest2"], ["web1", "web2"])


def test_a_seed_repeats_its_schedule() -> None:
    assert schedule(3).faults == schedule(3).faults
    assert schedule(3).rotations == schedule(3).rotations
    assert schedule(3).faults != schedule(4).faults


def test_eight_seeds_see_every_kind_of_fault_in_each_of_its_ways() -> None:
    seen = Counter((fault.kind, fault.variant) for seed in range(1, 9) for fault in schedule(seed).faults)
    assert set(seen) == {(kind.name, variant) for kind in KINDS for variant in kind.variants}


def test_a_guest_that_has_gone_stays_away() -> None:
    """Its keys are revoked, or it left for good."""
    for seed in [*range(1, 9), 104]:
        joins = Counter(fault.host for fault in schedule(seed).faults if fault.kind == "join")
        assert set(joins.values()) <= {1}


def test_a_guest_keeps_its_disk_until_a_job_knows_its_files() -> None:
    for seed in range(1, 40):
        joined_s: dict[str, float] = {}
        for fault in schedule(seed).faults:
            if fault.kind == "join":
                joined_s[fault.host] = fault.at_s
            elif fault.kind in OF_DISKS - OF_GUESTS and fault.host in joined_s:
                assert fault.at_s >= joined_s[fault.host] + FIRST_S


def test_no_agent_has_two_faults_at_once() -> None:
    for seed in range(8):
        until_s: dict[str, float] = {}
        for fault in schedule(seed).faults:
            assert until_s.get(fault.host, 0.0) <= fault.at_s
            until_s[fault.host] = fault.at_s + fault.span_s + APART_S


def test_two_disks_at_most_are_lost_at_a_time() -> None:
    for seed in range(8):
        filled_s: list[float] = []
        for fault in schedule(seed).faults:
            if fault.kind in OF_DISKS:
                assert sum(until_s > fault.at_s for until_s in filled_s) < LOST_MAX
                filled_s.append(fault.at_s + fault.span_s + FILLED_S)


WEB1, WEB2, SPARE = "10.66.0.1:7400", "10.66.0.12:7400", "10.66.0.4:7400"
ADDRESSES = {"web1": WEB1, "web2": WEB2, "web3": "10.66.0.3:7400"}
STARTED = "--- start 2 at 1800000000.000"


def fault(kind: str, host: str) -> Fault:
    return Fault(1.0, kind, host, 5.0, "", "web3", 0.5)


def told_of(kind: str) -> str:
    """What the product logs about a loss of that kind."""
    told: list[str] = []
    file: Any = SimpleNamespace(
        path="/logs/access.log.1", packed=kind == "archive", state=SimpleNamespace(offset=90)
    )
    files: Any = SimpleNamespace(now_s=0.0, unread={}, begins_like=lambda file: ("/logs/access.log.2",))
    losses = Losses("access", files, 1.0, told.append)
    if kind in ("short", "archive"):
        losses.short(file, 1, 90, 50)
    elif kind == "copied":
        losses.behind_copy(file, 1, 90, 100)
    elif kind == "damaged":
        losses.damaged(file, 1, 90, 100)
    elif kind == "cut off":
        file.packed = True
        losses.cut_off(file, 1)
    else:
        losses.gone(1, 90, file if kind == "unrepaired" else None)
    (text,) = told
    return text


LOSSES = ("short", "archive", "copied", "damaged", "cut off", "unrepaired", "gone")


def untrue_at(name: str, lines: Sequence[str], *faults: Fault, is_copied: bool = False) -> list[str]:
    return list(untrue(name, lines, faults, ADDRESSES, is_copied=is_copied))


def test_two_agents_with_one_key_are_reported_only_where_a_twin_was() -> None:
    lines = [f"elf: web3: {both(WEB2, SPARE)}"]
    for name in ADDRESSES:
        assert untrue_at(name, lines, fault("twin", "web2")) == [], "neighbours report it as well"
        assert untrue_at(name, lines, fault("twin", "web1")) == lines
        assert untrue_at(name, lines, fault("wipe", "web2")) == lines
    assert untrue_at("web3", [both(SPARE, WEB1)], fault("twin", "web1")) == []


@pytest.mark.parametrize(
    ("kind", "is_true"),
    [("twin", True), ("wipe", True), ("restore", True), ("kill", False), ("clock", False)],
)
def test_an_agent_is_counted_further_only_after_its_state_was_lost_or_copied(
    kind: str, is_true: bool
) -> None:
    lines = [f"elf: {MOVED.format(2)}"]
    assert untrue_at("web1", lines, fault(kind, "web1")) == ([] if is_true else lines)
    assert untrue_at("web1", lines, fault(kind, "web2")) == lines, "it is another agent's"


@pytest.mark.parametrize("kind", LOSSES)
def test_each_text_about_a_loss_is_recognised(kind: str) -> None:
    text = told_of(kind)
    assert untrue_at("web1", ["elf: all is well", text], fault("kill", "web1")) == [text]


@pytest.mark.parametrize("kind", LOSSES)
def test_copytruncate_explains_what_it_loses_and_no_damage(kind: str) -> None:
    text = told_of(kind)
    assert untrue_at("web1", [text], is_copied=True) == (
        [] if kind in ("short", "copied", "gone") else [text]
    )


@pytest.mark.parametrize("kind", LOSSES)
def test_who_lost_its_state_may_lack_lines_until_its_next_start(kind: str) -> None:
    text, lost = told_of(kind), f"elf: access: {STATE_LOST}"
    damaged = [text] if kind in ("archive", "damaged", "cut off") else []
    assert untrue_at("web1", [lost, text], fault("wipe", "web1")) == damaged
    assert untrue_at("web1", [lost, STARTED, text], fault("wipe", "web1")) == [text]
    assert untrue_at("web1", [lost, text]) == [lost, text], "its state was not wiped"


def test_lines_of_all_logs_are_judged(tmp_path: Path) -> None:
    agents = {
        name: SimpleNamespace(log_file=tmp_path / name, address=address)
        for name, address in ADDRESSES.items()
    }
    for name in ("web1", "web2"):
        (tmp_path / name).write_text(f"{STARTED}\n{told_of('short')}\n")
    modes = {name: SimpleNamespace(mode=SimpleNamespace(is_lossy=name == "web2")) for name in ADDRESSES}
    world: Any = SimpleNamespace(agents=agents, rotations=modes)
    verdict = Verdict()
    judge_log_lines(world, [], verdict)
    assert [(each.kind, each.text) for each in verdict.findings] == [
        ("explained", f"web1: {told_of('short')}")
    ]
    assert verdict.counts["words"] == 4


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(bool(refusal()) and os.environ.get("CI") != "true", reason=refusal())
def test_a_minute_of_it(tmp_path: Path) -> None:
    """Three agents: every window of both lakes, and every publication, is what the oracle counts."""
    command = [
        sys.executable,
        "-m",
        "tests.torture",
        "--seconds",
        "45",
        "--seeds",
        "7",
        "--agents",
        "3",
        "--quick",
    ]
    done = subprocess.run(
        [*command, "--gap", "4", "--rate", "20", "--out", str(tmp_path), "--faults", SMOKE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 7: good" in done.stdout
    assert (tmp_path / "7" / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(("highest", "expected"), [(112, {}), (113, {"web1": 113 << 20})])
def test_a_process_has_its_cap_and_what_it_takes_between_two_looks_beyond_the_bare_one(
    highest: int, expected: dict[str, int]
) -> None:
    samples: list[dict[str, Any]] = [
        {"agents": {"web1": {"peak": mib << 20}}} for mib in (15, 41, highest, 57)
    ]
    samples.append({"agents": {"web1": {"disk": 1.0}}})  # it is down
    assert beyond_cap(samples, 40 << 20) == expected
