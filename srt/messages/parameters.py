"""Timings and bounds of the mesh in one place, each with its arithmetic; `check` holds them against each other.

Spans are microseconds, sizes bytes. The defaults suit a datacenter: round trips under 2 ms, clocks within 100 ms. Arithmetic that
others must keep to is a rule of `check`; what a value costs is told of the default (tests/srt/messages/test_parameters.py holds
it).

Elsewhere are, as constants beside the structure that they bound: multiples of these (so many doublings, looks, missed rounds),
counts and sizes of what that structure keeps or believes, which no deployment has a reason to change; and, in seconds, what only
the edge waits for: sockets and hosts, whose waits no core sees.
"""

from __future__ import annotations

from math import log2

import msgspec

from elf.srt.messages.ids import DIGITS

MS = 1_000
SECOND = 1_000_000


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    # ---- data ----

    # A worker cuts five times a second: four levels of combining and the log, 220 ms, and a flush stay well under a second.
    flush_us: int = 200 * MS
    # A reducer waits so long for the rest of its children, after the first one's bundle, for each level of nodes below it, and
    # never longer than nine tenths of a flush: what four levels take, of 65,536 nodes.
    combine_us_max: int = 45 * MS
    # Rows that wait for one durable sink: 250 windows of 1,000 rows with 60 bytes each; the rest is read again.
    outbox_bytes_max: int = 16 << 20
    # A larger window does not go to sinks. Both ends hold it under their memory's cap or on disk: 30 million groups of 35 bytes.
    window_bytes_max: int = 1 << 30
    # Open windows are published four times a second: what an eye can follow.
    emit_us: int = 250 * MS
    # What is being read, since it is large, is asked for again so soon: one step of reading takes about as long, and 200 of them
    # a second are next to no work for whoever asks.
    read_us: int = 5 * MS
    # A bundle that is ahead waits for what is missing: a retransmission, however often its timeout has doubled, and a flush.
    park_us: int = 2 * SECOND
    # 16 children with four bundles of 512 KiB each.
    park_bytes_max: int = 32 << 20
    # Sent and not committed, per job: 8 s of 1 MB/s; a worker past it reads its log again. Half of it may be offers, of a frame
    # each.
    kept_bytes_max: int = 8 << 20
    # A window waits so long for agents that do not report: a host that starts again is back in a minute.
    hold_us_max: int = 60 * SECOND
    # An agent that nobody heard of for a day is forgotten.
    forget_us: int = 24 * 3600 * SECOND
    # An idle source's promise lags the clock by the server's log buffering: nginx with `flush=5s`; those without write at once.
    idle_grace_us: int = 5 * SECOND
    # A worker further behind its clock tells its watermark apart, 32 bytes in `Bundle.lagging`, and holds nobody in its subtree
    # back. As long as idle_grace_us, so that of idle sources, which are behind by that and a little more, each does.
    lagging_us: int = 5 * SECOND

    # ---- links ----

    # An acknowledgement waits for a message to ride on. A bundle's rides on its Commit, which comes after 20 ms of the log, or at
    # most 180 ms of waiting for late ones more; a Commit's on the next bundle, mostly within a flush, or a little later where
    # that waits for others. So a working tree sends next to no frames that only acknowledge, which would be two of every five,
    # also where datagrams are lost.
    acknowledge_us: int = 330 * MS
    # An acknowledgement's wait, a round trip, and time to spare for a busy process: two flushes, so that what was lost comes with
    # the next round but one and is merged there.
    retransmit_us_min: int = 400 * MS
    # Two doublings.
    retransmit_us_max: int = 1_600 * MS
    # In flight or waiting for order, per link: 16 children hold 64 MiB at most. Eight frames; two at least, one behind the other.
    link_bytes_max: int = 4 << 20
    # Nothing acknowledged for so long, after three more attempts (400 + 800 + 1,600 ms): the neighbour is doubted.
    link_dead_us: int = 3 * SECOND
    # A bundle is closed there, and what is larger travels in fragments: 42 ms of 100 Mbit/s, so that a probe that stands behind
    # one is answered in time.
    frame_bytes_max: int = 512 << 10

    # ---- failure detection (SWIM) ----

    # One member of the leaf set (and one tree neighbour) is probed twice a second. Each in its turn: by one of its 16 neighbours
    # twice a second.
    probe_us: int = 500 * MS
    # A direct probe; indirect ones get the rest of the period. A round trip, and a frame that it waits behind on each side, 84
    # ms.
    probe_timeout_us: int = 150 * MS
    # Where 5 % of datagrams are lost, all of three fail in 1 of 150 cases (four ways each), and with them the direct probe and
    # its repetition, two ways each, in 1 of 16,000: only then somebody who lives is suspected, and has suspect_us to say so.
    indirect_probes: int = 3
    # Time to refute: three probe periods; two at least.
    suspect_us: int = 1_500 * MS
    # A dead member's incarnation is remembered so long, so that old news does not revive it, and it is looked for meanwhile: ten
    # times the 6 s in which a claim is told news_repeats times, and longer than a claim travels in any case.
    dead_us: int = 60 * SECOND
    # Claims that ride on a ping: with 40 bytes each it stays a small datagram.
    news_max: int = 6
    # 3 log2(16): each claim is told so often to the leaf set.
    news_repeats: int = 12

    # ---- overlay ----

    # L: half on each side; a node is lost sight of only when eight next to one another die at once.
    leaves: int = 16
    # 128 / 4 digits and the leaf set's last step; a message beyond is in a loop.
    hops_max: int = 40
    # A join asks its way, eight hops of 2 ms, and is answered within a probe period; then the next seed is asked, twice as long.
    join_retry_us: int = 500 * MS
    # Neighbours whose leaf sets differ from what was seen last are asked for them, at most four times in this span: once per
    # probe, which is what tells of it, and 1.5 KB each.
    repair_us: int = 2 * SECOND

    # ---- trees ----

    # As many as a digit has values: a tree of N nodes that stands is at most ceil(log16 N) + 1 deep, one that forms maybe deeper.
    # A node merges 16 bundles per flush.
    children_max: int = 16
    # A sign of life and the path, from parent to child.
    path_us: int = 1 * SECOND
    # Three missed paths and a bit (two at least): look for another parent.
    parent_timeout_us: int = 3_500 * MS
    # A join that was lost, or whose answer was: eight hops there, and as long as a link waits to repeat the answer; plus up to
    # half as much again at random, so that a loop's nodes do not ask in step.
    tree_retry_us: int = 400 * MS
    # A subtree that has changed by a quarter is told upwards so soon, smaller changes once per path_us.
    size_us: int = 100 * MS

    # ---- directory ----

    # A digest goes to one neighbour: 100 bytes a second. What rumors missed is everywhere after log2(N) periods: 17 s, 100,000
    # nodes.
    gossip_us: int = 1 * SECOND
    # New items wait so long, at random, for others to travel with them: eight rounds, 4^8 = 65,536 nodes, take 0.2 s.
    rumor_us: int = 50 * MS
    # e^-4: two in a hundred nodes miss a rumor, and hear of it by gossip_us.
    rumor_fanout: int = 4
    # Digests of all are 9 bytes each, 576: a small datagram. A bucket of 100,000 agents, 1,600 items of 200 bytes, fits one
    # answer.
    buckets: int = 64

    # ---- the master's log ----

    # Three copies with the master's: two nodes may die at once. Every commit waits for the slowest, so more would cost time.
    replicas: int = 2
    # Entries are gathered so long before they are sent: 50 messages a second to each replica at most.
    append_us: int = 20 * MS
    # StateRequest, Fetch, Hello, LedgerRequest are repeated: a round trip, and a disk that syncs before it is answered.
    ask_us: int = 200 * MS
    # Who has not told its state by then, asked five times, is not waited for.
    ask_us_max: int = 1 * SECOND
    # A state on its way is waited for so long: 64 MiB at 100 Mbit/s.
    transfer_us_max: int = 6 * SECOND
    # A write that is not durable by then: the disk is full or broken, the node steps aside, and others serve in its place. Twice
    # transfer_us_max, by which time a master has replaced a replica that writes nothing; above any sync of a disk that works.
    disk_us_max: int = 12 * SECOND
    # A log is cut there: 10 entries a second make it minutes long.
    snapshot_entries: int = 2_000
    # Rows of a state that are written and sent at a time, unpacked; a smaller state is one piece. A third of it travels.
    piece_bytes: int = 1 << 20
    # What a master accepts while a replica is away, in case the other side wins: a minute of 70 KB/s as it came; then the deltas
    # of each worker are joined, a frame at a time, and it grows with panes and groups only.
    handover_bytes_max: int = 4 << 20
    # It is offered for so long: another master's log may be on its way for 6 s first, and a bundle that is ahead waits 2 s,
    # twice: for an offer, which itself may be ahead.
    offer_us_max: int = 12 * SECOND

    # ---- seats ----

    # A job that failed here begins anew after this, twice as long after each failure that follows: a bug that only one moment
    # shows costs a second.
    seat_retry_us: int = 1 * SECOND
    # And never longer than this, 12 attempts an hour. A job that has not failed for so long has recovered.
    seat_retry_us_max: int = 300 * SECOND

    def within(self, memory_max: int) -> Parameters:
        """For a node with that cap: what each of these bounds is a share of it at most, and never less than two frames."""

        def share(bound: int, parts: int) -> int:
            return min(bound, max(memory_max // parts, 2 * self.frame_bytes_max))

        return msgspec.structs.replace(
            self,
            outbox_bytes_max=share(self.outbox_bytes_max, 8),
            park_bytes_max=share(self.park_bytes_max, 8),
            kept_bytes_max=share(self.kept_bytes_max, 16),
            link_bytes_max=share(self.link_bytes_max, 32),
        )

    def check(self) -> None:
        """Raise ValueError unless the timings fit together."""
        for holds, text in self._rules():
            if not holds:
                raise ValueError(f"mesh parameters: {text}")

    def _rules(self) -> tuple[tuple[bool, str], ...]:
        return (*self._rules_of_time(), *self._rules_of_size())

    def _rules_of_time(self) -> tuple[tuple[bool, str], ...]:
        return (
            (self.combine_us_max < self.flush_us, "combine_us_max must stay below flush_us"),
            (self.append_us < self.flush_us, "append_us must stay below flush_us"),
            (self.read_us <= self.emit_us, "read_us must not exceed emit_us"),
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
            (2 * self.probe_timeout_us < self.probe_us, "two probe timeouts must fit into probe_us"),
            (self.suspect_us >= 2 * self.probe_us, "suspect_us must leave two periods to refute"),
            (
                self.news_repeats * self.probe_us < self.dead_us,
                "dead_us must outlast news_repeats probes, each probe_us",
            ),
            (2 * self.path_us < self.parent_timeout_us, "parent_timeout_us must allow for two lost paths"),
            (self.size_us <= self.path_us, "size_us must not exceed path_us"),
            (self.rumor_us <= self.gossip_us, "rumor_us must not exceed gossip_us"),
            (self.seat_retry_us <= self.seat_retry_us_max, "seat_retry_us is above seat_retry_us_max"),
            (self.ask_us < self.ask_us_max, "ask_us_max must allow for a lost ask"),
            (self.ask_us_max <= self.transfer_us_max, "transfer_us_max is below ask_us_max"),
            (
                2 * self.transfer_us_max <= self.disk_us_max,
                "disk_us_max must outlast two transfer_us_max, in which a replica that writes nothing is replaced",
            ),
            (
                self.offer_us_max >= self.transfer_us_max + 2 * self.park_us,
                "offer_us_max must outlast a log's way and a parked bundle",
            ),
        )

    def _rules_of_size(self) -> tuple[tuple[bool, str], ...]:
        frame, is_even = self.frame_bytes_max, self.leaves % 2 == 0
        return (
            (2 * frame <= self.link_bytes_max, "link_bytes_max must hold two frames"),
            (frame <= self.handover_bytes_max, "handover_bytes_max must hold a frame"),
            (frame <= self.window_bytes_max, "window_bytes_max must hold a frame"),
            (self.children_max >= 2, "children_max must be at least 2"),
            (is_even and self.leaves >= 2 * self.replicas, "leaves must be even and hold the replicas"),
            (3 * log2(self.leaves) <= self.news_repeats, "news_repeats must be 3 log2(leaves) or more"),
            (self.hops_max > DIGITS + 1, f"hops_max must be above {DIGITS + 1}"),
        )
