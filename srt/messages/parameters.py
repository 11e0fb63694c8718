"""Timings and bounds of the mesh in one place, each with its arithmetic; `check` verifies that they fit together.

Spans are in microseconds, sizes in bytes. The defaults suit a datacenter: round trips under 2 ms, clocks within 100 ms. Relations
that every choice of values must keep are rules of `check`. Comments state the cost of the default values;
tests/srt/messages/test_parameters.py checks their arithmetic.

**With a slow beat.** A job whose open windows nobody reads is cut when a window closes, and after unsent_us_max, not at every
flush_us (`elf.srt.tree.cadence`). What bounds the silence of a worker must outlast that:

    rule                  | with cuts 20 s apart
    ----------------------+--------------------------------------------------------------------------------------------------
    hold_us_max           | a worker that is behind reports after 20 s, and again if that bundle is lost: 60 s is thrice that, and
                          | where it is shorter, so is this (`Parameters.unsent_us`)
    forget_us             | a live worker's watermark moves every 20 s: a day is 4,320 times that; twice at least, likewise
    lagging_us            | from the watermark to the clock at a cut: a cut late does not make the watermark of that cut old
    idle_grace_us         | files are read and folders scanned at every flush_us while lines come, and when an idle source reaches
                          | the next cut, so its watermark is as early as before
    readings of a source  | expire without a read for 10 s (`ABSENT_S`); each has a turn in 5 s: 25 beats of 200 ms, 5 of 1 s
    park_us, and the time | from when a bundle is there or has left: 2 s, and 8 s; without a bundle nothing is overdue
    of an overdue Commit  |
    kept_bytes_max        | a cut comes before 20 s have passed if rows take a frame (`UNSENT_BYTES`, 512 KiB), a sixteenth of it
    retirement            | waits for transfer_us_max in which the log makes progress (24 emissions before); where emissions are
                          | rare, each counts a quarter of it at most: after 4 of them, so up to 80 s, not 6
    a clock set back      | a watermark never falls, so no window closes before the clock is there again; what is logged meanwhile
                          | is late, and is cut after 20 s as late lines are
    watchers              | renew every emit_us on their own: their expiry does not depend on cuts

Not here, but as constants beside the structure that they bound: multiples of these values (numbers of doublings, of retries, of
missed rounds); counts and sizes that no deployment has a reason to change; and, in seconds, the timeouts of sockets and hosts,
which no core sees.
"""

from __future__ import annotations

from math import log2

import msgspec

from elf.srt.messages.ids import DIGITS

MS = 1_000
SECOND = 1_000_000


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    # ---- data ----

    # Between cuts of a worker. Four levels of combining and the log take 220 ms more, so windows are well under a second old.
    flush_us: int = 200 * MS
    # How long lines of a job may wait in a source while nobody reads its open windows and no window closes. So much is read again
    # after a crash. `unsent_us` is what holds.
    unsent_us_max: int = 20 * SECOND
    # How long a reducer waits for its other children after the first one's bundle: this time for each level below it, but never
    # longer than nine tenths of a flush. That suffices for four levels, of 65,536 nodes.
    combine_us_max: int = 45 * MS
    # Rows that wait for one durable sink: 250 windows of 1,000 rows with 60 bytes each. More rows are read again later.
    outbox_bytes_max: int = 16 << 20
    # A larger window is not sent to sinks. Both ends hold it under their memory cap or on disk: 30 million groups of 35 bytes.
    window_bytes_max: int = 1 << 30
    # Open windows are published at each flush: as fast as an eye can follow, and without a wait for a beat of its own.
    emit_us: int = 200 * MS
    # How soon the next step of reading a large window is requested. One step takes about as long, and 200 requests a second cost
    # little.
    read_us: int = 5 * MS
    # How long a bundle that is ahead waits for what is missing: a retransmission after all doublings of its timeout, and a flush.
    park_us: int = 2 * SECOND
    # 16 children with four bundles of 512 KiB each.
    park_bytes_max: int = 32 << 20
    # Sent and not committed, per job: 8 s of 1 MB/s; a worker that exceeds it reads its log again. Half of it may be offers, of a
    # frame each.
    kept_bytes_max: int = 8 << 20
    # How long a window waits for agents that do not report: a host that restarts is back within a minute.
    hold_us_max: int = 60 * SECOND
    # An agent is forgotten after a day without a report.
    forget_us: int = 24 * 3600 * SECOND
    # How long a job goes on whose operator's certificate was revoked: time for another operator to read the alarm and sign it.
    revoked_grace_us: int = 3600 * SECOND
    # An idle source's watermark lags the clock by the server's log buffering: nginx with `flush=5s`. Unbuffered servers write at
    # once.
    idle_grace_us: int = 5 * SECOND
    # A worker further behind its clock reports its watermark separately, 32 bytes in `Bundle.lagging`, and so holds back no other
    # worker of its subtree. Equal to idle_grace_us: each idle source lags by a little more than that, and reports separately.
    lagging_us: int = 5 * SECOND

    # ---- links ----

    # How long an acknowledgement waits for a message that can carry it. The Commit carries that of a bundle: it comes after at
    # most 180 ms of waiting for late bundles, in reducers or at the master, and 20 ms of the log. The next bundle carries that of
    # a Commit, mostly within a flush, or a little later where it waits for others. So a working tree sends almost no frames that
    # only acknowledge, even where datagrams are lost; without this wait two of every five frames would be such.
    acknowledge_us: int = 330 * MS
    # The wait of an acknowledgement, a round trip, and a margin for a busy process: two flushes, so that a lost bundle arrives
    # two rounds later and is merged with that round.
    retransmit_us_min: int = 400 * MS
    # Two doublings.
    retransmit_us_max: int = 1_600 * MS
    # In flight or waiting for order, per link: 16 children hold 64 MiB at most. Eight frames; two at least, one behind the other.
    link_bytes_max: int = 4 << 20
    # After this time without an acknowledgement, and three retransmissions (400 + 800 + 1,600 ms), the neighbour is probed.
    link_dead_us: int = 3 * SECOND
    # A bundle of this size is closed, and a larger message is sent in fragments: 42 ms of 100 Mbit/s, so that a probe queued
    # behind one is answered in time.
    frame_bytes_max: int = 512 << 10

    # ---- failure detection (SWIM) ----

    # Twice a second a node probes one member of its leaf set (and one tree neighbour), in turn. So each node is probed twice a
    # second, by one of its 16 neighbours. A node that watches none, since it works for no job, waits twice as long.
    probe_us: int = 500 * MS
    # Of a direct probe; indirect ones get the rest of the period. A round trip, and a frame ahead of it on each side, 84 ms.
    probe_timeout_us: int = 150 * MS
    # Where 5 % of datagrams are lost, all three indirect probes (four datagrams each) fail in 1 of 150 cases, and with them the
    # direct probe and its repetition (two each) in 1 of 16,000. Only then is a live node suspected, and it has suspect_us to
    # refute.
    indirect_probes: int = 3
    # Time to refute a suspicion: three probe periods; two at least.
    suspect_us: int = 1_500 * MS
    # How long a dead member's incarnation is remembered, so that old claims do not revive it; meanwhile it is probed now and
    # then. Ten times the 6 s in which a claim is repeated news_repeats times, and longer than any claim circulates.
    dead_us: int = 60 * SECOND
    # Claims on one ping: with 40 bytes each it stays a small datagram.
    news_max: int = 6
    # 3 log2(16): how often a node repeats each claim to its leaf set.
    news_repeats: int = 12

    # ---- overlay ----

    # L: half on each side. The ring breaks only where eight neighbouring nodes die at once.
    leaves: int = 16
    # 128 / 4 digits and the leaf set's last step; a message with more hops is in a loop.
    hops_max: int = 40
    # A join takes eight hops of 2 ms, and is answered within a probe period; after that the node tries the next seed, with twice
    # the wait.
    join_retry_us: int = 500 * MS
    # A node requests a neighbour's changed leaf set at most four times in this span: once per probe, which carries the digest
    # that shows the change. 1.5 KB each.
    repair_us: int = 2 * SECOND

    # ---- trees ----

    # As many as a digit has values. A settled tree of N nodes is at most ceil(log16 N) + 1 deep; one that forms may be deeper. A
    # node merges 16 bundles per flush.
    children_max: int = 16
    # How late small changes of a subtree are reported, and a tree that is too deep is repaired.
    path_us: int = 1 * SECOND
    # Between Paths from parent to child while nothing changes. That a parent's node lives, its children know from the overlay,
    # which probes it for all jobs together; a Path finds the seat that does not know the child. Each costs as much as a bundle.
    life_us: int = 5 * SECOND
    # Three missed Paths and a margin (two at least): then the child searches for another parent.
    parent_timeout_us: int = 17_500 * MS
    # A join is repeated if it or its answer may be lost: after eight hops, and the time in which a link repeats the answer; plus
    # up to half as much at random, so that the nodes of a loop do not retry in step.
    tree_retry_us: int = 400 * MS
    # How soon a subtree reports a change of a quarter of its size; smaller changes are reported once per path_us.
    size_us: int = 100 * MS

    # ---- directory ----

    # A digest is sent to one neighbour: 100 bytes a second. Items that rumors missed are everywhere after log2(N) periods: 17 s
    # for 100,000 nodes.
    gossip_us: int = 1 * SECOND
    # New items wait a random time up to this one, to be sent together: eight rounds, to 4^8 = 65,536 nodes, take 0.2 s.
    rumor_us: int = 50 * MS
    # e^-4: two in a hundred nodes miss a rumor, and get it by gossip.
    rumor_fanout: int = 4
    # Digests of all buckets take 9 bytes each, 576: a small datagram. A bucket of 100,000 agents, 1,600 items of 200 bytes, fits
    # one answer.
    buckets: int = 64

    # ---- the master's log ----

    # Three copies with the master's: two nodes may die at once. Every commit waits for the slowest replica, so more of them would
    # cost time.
    replicas: int = 2
    # Entries that follow a write so soon wait and leave together: at most 50 messages a second to each replica. After a pause an
    # entry is written at once.
    append_us: int = 20 * MS
    # StateRequest, Fetch, Hello and LedgerRequest are repeated after this: a round trip, and a sync of the disk before the
    # answer.
    ask_us: int = 200 * MS
    # A node that has not reported its state by then, after five requests, is left out.
    ask_us_max: int = 1 * SECOND
    # How long to wait for a state in transit: 64 MiB at 100 Mbit/s.
    transfer_us_max: int = 6 * SECOND
    # If a write is not durable by then, the disk is full or broken: the node steps aside, and others serve in its place. Twice
    # transfer_us_max, by which time a master has replaced a replica that writes nothing; longer than any sync of a working disk.
    disk_us_max: int = 12 * SECOND
    # Entries after which a log is replaced by a snapshot: at 10 entries a second, minutes.
    snapshot_entries: int = 2_000
    # Rows of a state that are written and sent at a time, unpacked; compressed, a third. A smaller state is one piece.
    piece_bytes: int = 1 << 20
    # Accepted bundles that a master keeps while it is cut off from a replica, in case the other side wins: a minute of 70 KB/s as
    # received; beyond that the deltas of each worker are joined, a frame at a time, so the size grows with panes and groups only.
    handover_bytes_max: int = 4 << 20
    # How long these bundles are offered to the master that won. First, another master's log may be in transit for 6 s. A bundle
    # that is ahead waits 2 s for an offer, and that offer may be ahead too and wait 2 s.
    offer_us_max: int = 12 * SECOND

    # ---- seats ----

    # A job that failed at this node is started again after this, with twice the wait after each further failure: a bug that shows
    # only once costs a second.
    seat_retry_us: int = 1 * SECOND
    # The longest such wait, 12 attempts an hour. A job that has run for this time without a failure has recovered.
    seat_retry_us_max: int = 300 * SECOND

    @property
    def unsent_us(self) -> int:
        """unsent_us_max, or less where a mesh waits less for missing workers or forgets them sooner, so that nobody takes a quiet
        worker for such a one. A flush at least."""
        return max(self.flush_us, min(self.unsent_us_max, self.hold_us_max // 3, self.forget_us // 2))

    def within(self, memory_max: int) -> Parameters:
        """For a node with that memory cap: each of these bounds is at most a fraction of it, but never less than two frames."""

        def fraction(bound: int, parts: int) -> int:
            return min(bound, max(memory_max // parts, 2 * self.frame_bytes_max))

        return msgspec.structs.replace(
            self,
            outbox_bytes_max=fraction(self.outbox_bytes_max, 8),
            park_bytes_max=fraction(self.park_bytes_max, 8),
            kept_bytes_max=fraction(self.kept_bytes_max, 16),
            link_bytes_max=fraction(self.link_bytes_max, 32),
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
            (self.flush_us < self.unsent_us_max, "unsent_us_max must exceed flush_us"),
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
            (
                2 * self.life_us < self.parent_timeout_us,
                "parent_timeout_us must exceed twice life_us, so that two Paths may be lost",
            ),
            (self.size_us <= self.path_us, "size_us must not exceed path_us"),
            (self.rumor_us <= self.gossip_us, "rumor_us must not exceed gossip_us"),
            (self.seat_retry_us <= self.seat_retry_us_max, "seat_retry_us is above seat_retry_us_max"),
            (self.ask_us < self.ask_us_max, "ask_us_max must allow for a lost request"),
            (self.ask_us_max <= self.transfer_us_max, "transfer_us_max is below ask_us_max"),
            (
                2 * self.transfer_us_max <= self.disk_us_max,
                "disk_us_max must outlast two transfer_us_max, in which a replica that writes nothing is replaced",
            ),
            (
                self.offer_us_max >= self.transfer_us_max + 2 * self.park_us,
                "offer_us_max must outlast the transfer of a log and a parked bundle",
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
