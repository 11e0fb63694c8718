"""All timings and bounds of the mesh in one place, each with its arithmetic; `check` holds them against each other.

Spans are microseconds, sizes bytes. The defaults suit a datacenter: round trips under 2 ms, clocks within 100 ms.
"""

from __future__ import annotations

import msgspec

MS = 1_000
SECOND = 1_000_000


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    # ---- data ----

    # A worker cuts five times a second: five hops of combining still stay under a second.
    flush_us: int = 200 * MS
    # A reducer waits so long for the rest of its children, after the first one's bundle, for each level of nodes below it: four
    # levels, of 65,536 nodes, stay within a flush.
    combine_us_max: int = 45 * MS
    # Rows that wait for one durable sink: 250 windows of 1,000 rows with 60 bytes each; the rest is read again.
    outbox_bytes_max: int = 16 << 20
    # A larger window does not go to sinks. Both ends hold it under their memory's cap or on disk: 30 million groups of 35 bytes.
    window_bytes_max: int = 1 << 30
    # Open windows are published four times a second: what an eye can follow.
    emit_us: int = 250 * MS
    # A bundle that is ahead waits for what is missing: several retransmissions.
    park_us: int = 2 * SECOND
    # 16 children with a 2 MiB bundle each.
    park_bytes_max: int = 32 << 20
    # Sent and not committed, per job: 8 s of 1 MB/s; a worker past it reads its log again.
    kept_bytes_max: int = 8 << 20
    # Unless the job says otherwise.
    lateness_us: int = 60 * SECOND
    # Retention of final panes.
    keep_us: int = 3600 * SECOND
    # A window waits so long for agents that do not report.
    hold_us_max: int = 60 * SECOND
    # An agent that nobody heard of for a day is forgotten.
    forget_us: int = 24 * 3600 * SECOND
    # An idle source's promise lags the clock by the server's log buffering.
    idle_grace_us: int = 5 * SECOND
    # A worker further behind its clock tells its watermark apart, in `Bundle.lagging`.
    lagging_us: int = 5 * SECOND

    # ---- links ----

    # An acknowledgement waits for a message to ride on. A bundle's rides on its Commit, which comes after 20 ms of the log, or at
    # most 180 ms of waiting for late ones more; a Commit's on the next bundle, a flush and at most as much waiting later. So a
    # working tree sends no frame that only acknowledges, which would be two of every five, also where datagrams are lost.
    acknowledge_us: int = 330 * MS
    # An acknowledgement's wait, a round trip, and time to spare for a busy process: two flushes, so that what was lost comes with
    # the next round but one and is merged there.
    retransmit_us_min: int = 400 * MS
    # Two doublings.
    retransmit_us_max: int = 1_600 * MS
    # In flight or waiting for order, per link: 16 children hold 64 MiB at most.
    link_bytes_max: int = 4 << 20
    # Nothing acknowledged for so long, after three more attempts: the neighbour is doubted.
    link_dead_us: int = 3 * SECOND
    # A bundle above travels in fragments.
    frame_bytes_max: int = 512 << 10

    # ---- failure detection (SWIM) ----

    # One member of the leaf set (and one tree neighbour) is probed twice a second.
    probe_us: int = 500 * MS
    # A direct probe; indirect ones get the rest of the period.
    probe_timeout_us: int = 150 * MS
    indirect_probes: int = 3
    # Time to refute: three probe periods.
    suspect_us: int = 1_500 * MS
    # A dead member's incarnation is remembered so long, so that old news does not revive it.
    dead_us: int = 60 * SECOND
    # Claims that ride on a ping.
    news_max: int = 6
    # 3 log2(16): each claim is told so often to the leaf set.
    news_repeats: int = 12

    # ---- overlay ----

    # L: half on each side.
    leaves: int = 16
    # 128 / 4 digits and the leaf set's last step; a message beyond is in a loop.
    hops_max: int = 40
    join_retry_us: int = 500 * MS
    # Leaf sets are compared with a neighbour's.
    repair_us: int = 2 * SECOND

    # ---- trees ----

    children_max: int = 16
    # A sign of life and the path, from parent to child.
    path_us: int = 1 * SECOND
    # Three missed paths and a bit: look for another parent.
    parent_silence_us: int = 3_500 * MS
    tree_retry_us: int = 400 * MS
    # A subtree that has changed by a quarter is told upwards so soon, smaller changes once per path_us.
    size_us: int = 100 * MS

    # ---- directory ----

    gossip_us: int = 1 * SECOND
    # New items wait so long, at random, for others to travel with them.
    rumor_us: int = 50 * MS
    # e^-4: two in a hundred nodes miss a rumor, and hear of it by gossip_us.
    rumor_fanout: int = 4
    buckets: int = 64

    # ---- the master's log ----

    replicas: int = 2
    # Entries are gathered so long before they are sent: 50 messages a second to each replica at most.
    append_us: int = 20 * MS
    # StateAsk, Fetch, Hello, LedgerAsk are repeated.
    ask_us: int = 200 * MS
    # Who has not told its state by then is not waited for.
    ask_us_max: int = 1 * SECOND
    # A state on its way is waited for so long: 64 MiB at 100 Mbit/s.
    transfer_us_max: int = 6 * SECOND
    # A write that is not durable by then: the disk is full or broken, the node steps aside, and others serve in its place. Twice
    # transfer_us_max, by which time a master has replaced a replica that writes nothing; above any sync of a disk that works.
    disk_us_max: int = 12 * SECOND
    # A log is cut there: 10 entries a second make it minutes long.
    snapshot_entries: int = 2_000
    # What a master accepts while a replica is away, in case the other side wins: a minute of 70 KB/s as it came; then the deltas
    # of each worker are joined, and it grows with panes and groups only.
    handover_bytes_max: int = 4 << 20
    # It is offered for so long: another master's log may be on its way for 6 s first, and a bundle that is ahead waits 2 s.
    offer_us_max: int = 12 * SECOND

    def check(self) -> None:
        """Raise ValueError unless the timings fit together."""
        for holds, text in self._rules():
            if not holds:
                raise ValueError(f"mesh parameters: {text}")

    def _rules(self) -> tuple[tuple[bool, str], ...]:
        is_even = self.leaves % 2 == 0
        return (
            (self.combine_us_max < self.flush_us, "combine_us_max must stay below flush_us"),
            (
                self.acknowledge_us < self.retransmit_us_min,
                "acknowledge_us must stay below retransmit_us_min",
            ),
            (
                self.retransmit_us_min <= self.retransmit_us_max,
                "retransmit_us_min is above retransmit_us_max",
            ),
            (self.retransmit_us_max < self.link_dead_us, "link_dead_us must outlast a retransmission"),
            (self.retransmit_us_max < self.park_us, "a parked bundle must outwait a retransmission"),
            (2 * self.frame_bytes_max <= self.link_bytes_max, "link_bytes_max must hold two frames"),
            (2 * self.probe_timeout_us < self.probe_us, "two probe timeouts must fit into probe_us"),
            (self.suspect_us >= 2 * self.probe_us, "suspect_us must leave two periods to refute"),
            (2 * self.path_us < self.parent_silence_us, "parent_silence_us must allow for two lost paths"),
            (self.size_us <= self.path_us, "size_us must not exceed path_us"),
            (self.children_max >= 2, "children_max must be at least 2"),
            (self.rumor_us <= self.gossip_us, "rumor_us must not exceed gossip_us"),
            (
                2 * self.transfer_us_max <= self.disk_us_max,
                "disk_us_max must outlast two transfer_us_max, in which a replica that writes nothing is replaced",
            ),
            (self.append_us < self.flush_us, "append_us must stay below flush_us"),
            (self.ask_us < self.ask_us_max, "ask_us_max must allow for a lost ask"),
            (self.ask_us_max <= self.transfer_us_max, "transfer_us_max is below ask_us_max"),
            (
                self.offer_us_max >= self.transfer_us_max + 2 * self.park_us,
                "offer_us_max must outlast a log's way and a parked bundle",
            ),
            (is_even and self.leaves >= 2 * self.replicas, "leaves must be even and hold the replicas"),
        )
