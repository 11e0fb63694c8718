"""The mesh's timings and bounds: their rules, and the arithmetic about the defaults in their comments."""

from __future__ import annotations

from itertools import count

import pytest

from elf.srt.messages.parameters import MS, SECOND, Parameters
from elf.srt.tree.place import depth_max
from tests.rigs.quick import QUICK

P = Parameters()
MBIT_100 = 100_000_000 // 8
"""Bytes per second."""


@pytest.mark.parametrize("parameters", [P, QUICK])
def test_what_is_used_keeps_the_rules(parameters: Parameters) -> None:
    parameters.check()


def test_nobody_takes_a_quiet_worker_for_a_missing_one() -> None:
    assert P.unsent_us == P.unsent_us_max == 20 * SECOND
    assert Parameters(hold_us_max=15 * SECOND).unsent_us == 5 * SECOND
    assert Parameters(forget_us=10 * SECOND).unsent_us == 5 * SECOND
    assert Parameters(hold_us_max=500 * MS).unsent_us == P.flush_us


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (Parameters(combine_us_max=200 * MS), "combine_us_max must stay below flush_us"),
        (Parameters(unsent_us_max=200 * MS), "unsent_us_max must exceed flush_us"),
        (Parameters(append_us=200 * MS), "append_us must stay below flush_us"),
        (Parameters(read_us=251 * MS), "read_us must not exceed emit_us"),
        (Parameters(acknowledge_us=400 * MS), "acknowledge_us must stay below retransmit_us_min"),
        (Parameters(retransmit_us_min=1_601 * MS), "retransmit_us_min is above retransmit_us_max"),
        (Parameters(link_dead_us=1_600 * MS), "link_dead_us must outlast a retransmission"),
        (Parameters(park_us=1_600 * MS), "a parked bundle must outwait a retransmission"),
        (Parameters(probe_timeout_us=250 * MS), "two probe timeouts must fit into probe_us"),
        (Parameters(suspect_us=999 * MS), "suspect_us must leave two periods to refute"),
        (Parameters(dead_us=6 * SECOND), "dead_us must outlast news_repeats probes, each probe_us"),
        (Parameters(parent_timeout_us=2 * SECOND), "parent_timeout_us must exceed twice life_us"),
        (Parameters(size_us=1_001 * MS), "size_us must not exceed path_us"),
        (Parameters(rumor_us=1_001 * MS), "rumor_us must not exceed gossip_us"),
        (Parameters(ask_us=1 * SECOND), "ask_us_max must allow for a lost request"),
        (Parameters(ask_us_max=7 * SECOND), "transfer_us_max is below ask_us_max"),
        (Parameters(disk_us_max=11 * SECOND), "disk_us_max must outlast two transfer_us_max"),
        (
            Parameters(offer_us_max=9 * SECOND),
            "offer_us_max must outlast the transfer of a log and a parked bundle",
        ),
        (Parameters(link_bytes_max=1_000 << 10), "link_bytes_max must hold two frames"),
        (Parameters(handover_bytes_max=500 << 10), "handover_bytes_max must hold a frame"),
        (Parameters(window_bytes_max=500 << 10), "window_bytes_max must hold a frame"),
        (Parameters(children_max=1), "children_max must be at least 2"),
        (Parameters(leaves=15), "leaves must be even and hold the replicas"),
        (Parameters(replicas=9), "leaves must be even and hold the replicas"),
        (Parameters(leaves=18), "news_repeats must be 3 log2(leaves) or more"),
        (Parameters(hops_max=33), "hops_max must be above 33"),
    ],
)
def test_parameters_that_break_one_rule_are_refused(broken: Parameters, text: str) -> None:
    with pytest.raises(ValueError, match=r"^mesh parameters: ") as caught:
        broken.check()
    assert text in str(caught.value)


def test_four_levels_combine_within_a_flush() -> None:
    assert depth_max(65_536, P.children_max) == 5  # the workers below four levels that combine
    assert 4 * P.combine_us_max <= P.flush_us * 9 // 10
    assert 4 * P.combine_us_max + P.append_us + P.flush_us < SECOND // 2


def test_an_acknowledgement_rides_on_what_comes_by_itself() -> None:
    assert P.append_us + P.flush_us * 9 // 10 < P.acknowledge_us
    assert P.append_us + P.flush_us < P.acknowledge_us
    assert P.retransmit_us_min == 2 * P.flush_us


def test_a_neighbour_is_doubted_after_three_attempts() -> None:
    attempts = [P.retransmit_us_min << n for n in range(3)]
    assert attempts[-1] == P.retransmit_us_max
    assert sum(attempts) < P.link_dead_us < sum(attempts) + P.retransmit_us_max
    assert P.retransmit_us_max + P.flush_us < P.park_us


def test_a_probe_waits_behind_a_frame_on_each_side() -> None:
    frame_us = P.frame_bytes_max * SECOND // MBIT_100
    assert 41 * MS < frame_us < 43 * MS
    assert 2 * frame_us + 2 * MS < P.probe_timeout_us


def test_a_live_node_is_seldom_suspected() -> None:
    fails = [1 - 0.95**ways for ways in range(5)]
    all_three = fails[4] ** P.indirect_probes
    assert 1 / 160 < all_three < 1 / 150
    assert 1 / 17_000 < all_three * fails[2] ** 2 < 1 / 16_000


def test_spans_are_so_many_of_others() -> None:
    assert P.suspect_us == 3 * P.probe_us
    assert P.dead_us == 10 * P.news_repeats * P.probe_us
    assert P.repair_us == 4 * P.probe_us
    assert 3 * P.life_us < P.parent_timeout_us < 4 * P.life_us
    assert P.ask_us_max == 5 * P.ask_us
    assert P.disk_us_max == 2 * P.transfer_us_max
    assert P.tree_retry_us == P.retransmit_us_min
    assert P.join_retry_us == P.probe_us
    assert P.offer_us_max > P.transfer_us_max + 2 * P.park_us


def test_sizes_are_so_many_of_others() -> None:
    assert P.link_bytes_max == 8 * P.frame_bytes_max
    assert P.children_max * P.link_bytes_max == 64 << 20
    assert P.children_max * 4 * P.frame_bytes_max == P.park_bytes_max
    assert P.outbox_bytes_max >= 250 * 1_000 * 60
    assert P.window_bytes_max >= 30_000_000 * 35
    assert P.kept_bytes_max >= 8_000_000
    assert P.kept_bytes_max // 2 >= P.frame_bytes_max
    assert P.handover_bytes_max + 10_000 >= 60 * 70_000
    assert P.transfer_us_max > (64 << 20) * SECOND // MBIT_100
    assert 100_000 // P.buckets * 200 <= P.frame_bytes_max


def test_rounds_of_gossip() -> None:
    rounds = next(n for n in count() if P.rumor_fanout**n >= 65_536)
    assert (rounds, rounds * P.rumor_us // 2) == (8, 200 * MS)
    assert 2**16 < 100_000 <= 2**17
