"""A link to one neighbour: messages posted on one side come out on the other, each once and in order.

In one sentence: messages to post, frames of the neighbour and passing time go in; frames to send and deliverable messages come
out.

Each side numbers its messages from 1, per session. A session is the pair of the two sides' session numbers, each made of the life
of a node and how often it has hung up in that life. A frame is accepted only if its session is exactly the present one, so frames
and acknowledgements of an earlier life have no effect.

    event                                   what follows
    --------------------------------------  ------------------------------------------------------------------------------
    post, window allows                     number it, send it, keep it until it is acknowledged; else queue it
    frame, sender's number is older         ignore it: it belongs to an earlier life
    frame, sender's number is newer         its earlier life is over: drop what was queued and kept for it, `restarts` + 1
    frame, not for this life of mine        answer with an acknowledgement, from which the sender learns my present life
    message, next in order                  deliver it and the held ones that follow; acknowledge soon, with a posted message
    message, ahead                          hold it within the window; acknowledge at once
    message, seen before                    acknowledge again, at once
    acknowledgement of something new        drop what is acknowledged, send from the queue as the window allows
    nothing acknowledged for a timeout      resend from the first one on, at most `BURST_BYTES`; the timeout doubles

Invariants
- Kept messages have the numbers directly above the highest acknowledged one, without gaps; held messages do not include the next.
- Kept bytes exceed the neighbour's credit only by the first message (a message larger than the window is sent alone).
- Until a frame of the neighbour has arrived, its number is a guess and nothing counts as delivered; correcting the guess loses
  nothing.

Never drop a link to a neighbour and create another within the same life: the new one would number from 1, and the neighbour would
ignore its messages as repetitions. Use `hang_up`.

After TCP (RFC 9293), without its handshake and congestion control: docs/protocol.md, rule 3.
"""

from __future__ import annotations

from collections import deque

from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Frame, Message
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.sizes import size_of

BURST_BYTES = 64 << 10
"""Bytes resent at one timeout: lost messages are mostly few and small; a lost large bundle is resent alone."""
HANG_UPS_MAX = 1 << 16
"""Bound of hang-ups in one life. A session number is life * 65,536 + hang-ups."""


class Link:
    """The link to one neighbour. `peer_incarnation`: 0 if unknown, or a guess.

    peer: the neighbour. restarts: how often the neighbour has begun anew; the caller compares it before and after `step`, and
    posts again the messages that still matter. queued_bytes: of messages that wait for the window. repeated, stale: counts of
    frames that were ignored because they were known already, or of an earlier life.
    """

    __slots__ = (
        "_ack_due",
        "_acknowledged",
        "_backlog",
        "_base",
        "_clock",
        "_credit",
        "_hang_ups",
        "_heard",
        "_held",
        "_held_bytes",
        "_kept",
        "_kept_bytes",
        "_mine",
        "_next",
        "_p",
        "_resend_due",
        "_session",
        "_theirs",
        "_timeout",
        "_unacknowledged_bytes",
        "_waiting_since",
        "peer",
        "queued_bytes",
        "repeated",
        "restarts",
        "stale",
    )

    def __init__(
        self, peer: NodeId, my_incarnation: int, peer_incarnation: int, parameters: Parameters
    ) -> None:
        self.peer = peer
        self.restarts = self.repeated = self.stale = 0
        self._p = parameters
        self._clock = 0
        self._hang_ups = 0
        self.reset(my_incarnation, peer_incarnation)

    def reset(self, my_incarnation: int, peer_incarnation: int) -> None:
        """Begin anew between these two lives; drop what is queued or kept."""
        self._base = my_incarnation
        self._mine = my_incarnation * HANG_UPS_MAX + self._hang_ups
        self._begin(peer_incarnation * HANG_UPS_MAX)
        self._heard = False

    @property
    def peer_life(self) -> int:
        """The neighbour's life, as its frames named it; 0 if it is unknown."""
        return self._theirs // HANG_UPS_MAX

    def hang_up(self) -> None:
        """Drop all messages to and from a neighbour that is gone, and send nothing. If it is alive after all, it treats the next
        frame between the two as a restart."""
        self._hang_ups += 1
        self.reset(self._base, self.peer_life)

    def _begin(self, theirs: int) -> None:
        self._theirs = theirs
        self._session = (self._mine, theirs)
        self._next = 1  # number of the next message to send
        # Sent, not acknowledged; numbers without gaps, up to `_next`.
        self._kept: dict[int, tuple[Message, int]] = {}
        self._kept_bytes = 0
        # Waits for the window; None, since an empty deque takes 600 bytes.
        self._backlog: deque[tuple[Message, int]] | None = None
        self.queued_bytes = 0
        self._credit = self._p.link_bytes_max
        self._acknowledged = 0  # highest received in order
        self._held: dict[int, tuple[Message, int]] = {}  # received out of order
        self._held_bytes = 0
        self._unacknowledged_bytes = 0  # received since the last acknowledgement
        self._ack_due: int | None = None
        self._resend_due: int | None = None
        self._timeout = self._p.retransmit_us_min
        self._waiting_since: int | None = None

    # Input.

    def post(self, message: Message, now: int, nbytes: int | None = None) -> list[Effect]:
        """Send it if the window allows, else queue it. `nbytes`: its size, if already known. O(1)."""
        if now < self._clock:
            self._step_back(self._clock - now)
        self._clock = now
        size = size_of(message) if nbytes is None else nbytes
        if self._backlog or not self._fits(size):
            if self._backlog is None:
                self._backlog = deque()
            self._backlog.append((message, size))
            self.queued_bytes += size
            return []
        return [self._send_new(message, size, now)]

    def step(self, frame: Frame, now: int) -> tuple[list[Message], list[Effect]]:
        """Take a frame: messages that are now deliverable, in order, and frames to send. O(1) amortised."""
        if now < self._clock:
            self._step_back(self._clock - now)
        self._clock = now
        if frame.session != (self._theirs, self._mine):
            if not self._other_session(frame, now):
                return [], []
            if frame.session[1] != self._mine:
                return [], [self._acknowledge()]
        effects: list[Effect] = []
        self._heard = True
        self._take_acknowledgement(frame, now, effects)
        if not frame.sequence:
            return [], effects
        return self._take_message(frame, now, effects), effects

    def tick(self, now: int) -> list[Effect]:
        """Resend what was not acknowledged in time, and send acknowledgements that no message carried."""
        if now < self._clock:
            self._step_back(self._clock - now)
        self._clock = now
        effects: list[Effect] = []
        if self._resend_due is not None and now >= self._resend_due:
            self._resend(now, effects)
        if self._ack_due is not None and now >= self._ack_due:
            effects.append(self._acknowledge())
        return effects

    # State.

    @property
    def deadline(self) -> int | None:
        """When `tick` has work next."""
        if self._ack_due is None:
            return self._resend_due
        return self._ack_due if self._resend_due is None else min(self._ack_due, self._resend_due)

    @property
    def resets(self) -> int:
        """How often either side has begun anew."""
        return self.restarts + self._hang_ups

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or unacknowledged."""
        return not self._kept and not self._backlog

    @property
    def has_credit(self) -> bool:
        """Whether the window is open: a message posted now is sent at once. A sender that can wait and merge should do so while
        it is closed."""
        return not self._backlog and self._kept_bytes < self._credit

    @property
    def credit_left(self) -> int:
        """Bytes that the neighbour accepts before it acknowledges."""
        return max(0, self._credit - self._kept_bytes)

    @property
    def held_bytes(self) -> int:
        """Bytes of messages that are sent but not acknowledged, that wait for the window, or that came out of order."""
        return self._kept_bytes + self.queued_bytes + self._held_bytes

    @property
    def silent_since(self) -> int | None:
        """Since when messages are unacknowledged without any progress; None while none is."""
        return self._waiting_since

    # Sessions.

    def _other_session(self, frame: Frame, now: int) -> bool:
        """Learn the neighbour's session number. False: the frame is of an earlier session, to be ignored.

        The number never falls: messages are numbered from 1 again when it rises, so a session must not come twice.
        """
        theirs = frame.session[0]
        if theirs == self._theirs:
            return True
        if theirs < self._theirs:
            self.stale += 1
            return False
        if not self._heard:
            self._theirs = theirs
            self._session = (self._mine, theirs)
            self._resend_due = now if self._kept else None
            return True
        self._begin(theirs)
        self.restarts += 1
        return True

    # Sending.

    def _fits(self, size: int) -> bool:
        return not self._kept or self._kept_bytes + size <= self._credit

    def _send_new(self, message: Message, size: int, now: int) -> Send:
        sequence = self._next
        self._next = sequence + 1
        self._kept[sequence] = message, size
        self._kept_bytes += size
        if self._resend_due is None:
            self._resend_due = now + self._timeout
        if self._waiting_since is None:
            self._waiting_since = now
        return self._frame(sequence, message)

    def _frame(self, sequence: int, message: Message | None) -> Send:
        """A frame with this message, or with none. Every frame acknowledges."""
        self._ack_due = None
        self._unacknowledged_bytes = 0
        return Send(
            self.peer, Frame(self._session, sequence, self._acknowledged, self._p.link_bytes_max, message)
        )

    def _acknowledge(self) -> Send:
        return self._frame(0, None)

    def _take_acknowledgement(self, frame: Frame, now: int, effects: list[Effect]) -> None:
        self._credit = frame.credit
        kept = self._kept
        if kept and (first := self._next - len(kept)) <= frame.acknowledged:
            for sequence in range(first, min(frame.acknowledged + 1, self._next)):
                self._kept_bytes -= kept.pop(sequence)[1]
            self._timeout = self._p.retransmit_us_min
            self._resend_due = now + self._timeout if kept else None
            self._waiting_since = now if kept else None
        backlog = self._backlog
        if backlog is None:
            return
        while backlog and self._fits(backlog[0][1]):
            message, size = backlog.popleft()
            self.queued_bytes -= size
            effects.append(self._send_new(message, size, now))
        if not backlog:
            self._backlog = None

    def _resend(self, now: int, effects: list[Effect]) -> None:
        budget = BURST_BYTES
        for sequence, (message, size) in self._kept.items():
            if budget < BURST_BYTES and size > budget:
                break
            effects.append(self._frame(sequence, message))
            budget -= size
        self._timeout = min(2 * self._timeout, self._p.retransmit_us_max)
        self._resend_due = now + self._timeout

    # Receiving.

    def _take_message(self, frame: Frame, now: int, effects: list[Effect]) -> list[Message]:
        assert frame.message is not None
        size = size_of(frame.message)
        ready = self._deliverable(frame.sequence, frame.message, size)
        self._unacknowledged_bytes += size
        if not ready or self._held or 4 * self._unacknowledged_bytes > self._p.link_bytes_max:
            effects.append(self._acknowledge())
        elif self._ack_due is None:
            self._ack_due = now + self._p.acknowledge_us
        return ready

    def _deliverable(self, sequence: int, message: Message, size: int) -> list[Message]:
        """Rule 3*: a message is delivered once, after all before it.

        The next message in order, and the held ones that follow it; []: the message is held, or a repetition.
        """
        if sequence == self._acknowledged + 1:
            self._acknowledged = sequence
            ready = [message]
            while self._held and self._acknowledged + 1 in self._held:
                self._acknowledged += 1
                following, held_size = self._held.pop(self._acknowledged)
                self._held_bytes -= held_size
                ready.append(following)
            return ready
        fresh = sequence > self._acknowledged and sequence not in self._held
        if fresh and self._held_bytes + size <= self._p.link_bytes_max:
            self._held[sequence] = (message, size)
            self._held_bytes += size
        elif not fresh:
            self.repeated += 1
        return []

    # The clock.

    def _step_back(self, by_us: int) -> None:
        """The clock stepped back: shift all deadlines by that step."""
        if self._ack_due is not None:
            self._ack_due -= by_us
        if self._resend_due is not None:
            self._resend_due -= by_us
        if self._waiting_since is not None:
            self._waiting_since -= by_us

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold. O(messages kept)."""
        numbers = list(self._kept)
        assert numbers == list(range(self._next - len(numbers), self._next)), "gap in what is kept"
        assert self._kept_bytes == sum(size for _, size in self._kept.values())
        assert self.queued_bytes == sum(size for _, size in self._backlog or ())
        assert self._held_bytes == sum(size for _, size in self._held.values()) <= self._p.link_bytes_max
        assert all(sequence > self._acknowledged + 1 for sequence in self._held), "held although deliverable"
        assert not self._backlog or self._kept, "queued with nothing unacknowledged"
        assert (self._resend_due is None) == (not self._kept), "timer without need, or need without timer"
        assert (self._waiting_since is None) == (not self._kept)
