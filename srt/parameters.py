"""All timings and bounds of the mesh in one place, each with its arithmetic; `check` holds them against each other.

Spans are microseconds, sizes bytes. The defaults suit a datacenter: round trips under 2 ms, clocks within 100 ms.
"""

from __future__ import annotations

import msgspec

MS = 1_000
SECOND = 1_000_000


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    # Data.
    flush_us: int = (
        200 * MS
    )  # a worker cuts five times a second: five hops of combining still stay under a second
    combine_us_max: int = (
        60 * MS
    )  # a reducer waits so long for the rest of its children, after the first one's bundle
    emit_us: int = 250 * MS  # open windows are published four times a second: what an eye can follow
    park_us: int = 2 * SECOND  # a bundle that is ahead waits for what is missing: several retransmissions
    park_bytes_max: int = 32 << 20  # 16 children with a 2 MiB bundle each
    kept_bytes_max: int = (
        8 << 20
    )  # sent and not committed, per job: 8 s of 1 MB/s; a worker past it reads its log again
    lateness_us: int = 60 * SECOND  # unless the job says otherwise
    keep_us: int = 3600 * SECOND  # retention of final panes
    hold_us_max: int = 60 * SECOND  # a window waits so long for agents that do not report
    forget_us: int = 24 * 3600 * SECOND  # an agent that nobody heard of for a day is forgotten
    idle_grace_us: int = 5 * SECOND  # an idle source's promise lags the clock by the server's log buffering
    lagging_us: int = (
        5 * SECOND
    )  # a worker further behind its clock tells its watermark apart, in `Bundle.lagging`

    # Links.
    retransmit_us_min: int = 50 * MS  # 25 round trips
    retransmit_us_max: int = 1_600 * MS  # five doublings
    acknowledge_us: int = (
        20 * MS
    )  # an acknowledgement waits so long for a message to ride on; below retransmit_us_min
    link_bytes_max: int = 4 << 20  # in flight or waiting for order, per link: 16 children hold 64 MiB at most
    link_dead_us: int = 3 * SECOND  # nothing acknowledged for so long: the neighbour is doubted

    # Failure detection (SWIM).
    probe_us: int = 500 * MS  # one member of the leaf set (and one tree neighbour) is probed twice a second
    probe_timeout_us: int = 150 * MS  # direct; then indirect ones get the rest of the period
    indirect_probes: int = 3
    suspect_us: int = 1_500 * MS  # time to refute: three probe periods
    dead_us: int = (
        60 * SECOND
    )  # a dead member's incarnation is remembered so long, so that old news does not revive it
    news_max: int = 6  # claims that ride on a ping
    news_repeats: int = 12  # 3 log2(16): each claim is told so often to the leaf set

    # Overlay.
    leaves: int = 16  # L: half on each side
    hops_max: int = 40  # 128 / 4 digits and the leaf set's last step; a message beyond is in a loop
    join_retry_us: int = 500 * MS
    repair_us: int = 2 * SECOND  # leaf sets are compared with a neighbour's

    # Trees.
    children_max: int = 16
    path_us: int = 1 * SECOND  # a sign of life and the path from parent to child
    parent_silence_us: int = 3_500 * MS  # three missed paths and a bit: look for another parent
    tree_retry_us: int = 400 * MS
    size_us: int = (
        100 * MS
    )  # a subtree that has changed by a quarter is told upwards so soon, smaller changes once per path_us

    # Directory.
    gossip_us: int = 1 * SECOND
    rumor_us: int = 50 * MS  # new items wait so long, at random, for others to travel with them
    rumor_fanout: int = 4  # e^-4: two in a hundred nodes miss a rumor, and hear of it by gossip_us
    buckets: int = 64

    # The master's log.
    replicas: int = 2
    append_us: int = (
        20 * MS
    )  # entries are gathered so long before they are sent: 50 messages a second to each replica at most
    ask_us: int = 200 * MS  # StateAsk, Fetch, Hello, LedgerAsk are repeated
    ask_us_max: int = 1 * SECOND  # who has not told its state by then is not waited for
    transfer_us_max: int = 6 * SECOND  # a state on its way is waited for so long: 64 MiB at 100 Mbit/s
    snapshot_entries: int = 2_000  # a log is cut there: 10 entries a second make it minutes long

    frame_bytes_max: int = 512 << 10  # a bundle above travels in fragments

    def check(self) -> None:
        """Raise ValueError unless the timings fit together."""
        rules = [
            (self.combine_us_max < self.flush_us, "combine_us_max must stay below flush_us"),
            (
                self.acknowledge_us < self.retransmit_us_min,
                "acknowledge_us must stay below retransmit_us_min",
            ),
            (
                self.retransmit_us_min <= self.retransmit_us_max,
                "retransmit_us_min is above retransmit_us_max",
            ),
            (2 * self.probe_timeout_us < self.probe_us, "two probe timeouts must fit into probe_us"),
            (2 * self.path_us < self.parent_silence_us, "parent_silence_us must allow for two lost paths"),
            (self.retransmit_us_max < self.park_us, "a parked bundle must outwait a retransmission"),
            (self.suspect_us >= 2 * self.probe_us, "suspect_us must leave two periods to refute"),
            (self.ask_us < self.ask_us_max, "ask_us_max must allow for a lost ask"),
            (self.ask_us_max <= self.transfer_us_max, "transfer_us_max is below ask_us_max"),
            (self.append_us < self.flush_us, "append_us must stay below flush_us"),
            (
                self.leaves % 2 == 0 and self.leaves >= 2 * self.replicas,
                "leaves must be even and hold the replicas",
            ),
            (self.size_us <= self.path_us, "size_us must not exceed path_us"),
            (self.rumor_us <= self.gossip_us, "rumor_us must not exceed gossip_us"),
            (self.children_max >= 2, "children_max must be at least 2"),
            (2 * self.frame_bytes_max <= self.link_bytes_max, "link_bytes_max must hold two frames"),
        ]
        for holds, text in rules:
            if not holds:
                raise ValueError(f"mesh parameters: {text}")
