"""A durable sink's record of one job: the master that it serves, and the highest revision of each window that it holds.

    message                                | answer              | recorded
    ---------------------------------------+---------------------+------------------------------------------
    LedgerRequest, Put of a lower ballot   | the fence: refused  | nothing
    LedgerRequest                          | the entries         | its ballot as the fence, and what it names as delivered
                                           |                     |   by another node with this sink
    Put of a higher revision               | its revision        | fence, revision, digest; stored by the sink
    the same, open, of a final window      | the revision held   | its ballot as the fence
    Put of a final window, where only an   | its revision        | like a higher revision
      earlier master's open one is held    |                     |
    Put of the revision held               | its revision        | its ballot as the fence: a repetition
    Put of a lower revision                | the revision held   | its ballot as the fence
    PutPart of a window that is wanted     | none: see `wants`   | nothing
    any other PutPart                      | the revision held   | its ballot as the fence

A master needs the final results only, so windows of which the sink holds just an open revision are not reported. A withdrawn
window is an entry like any other, with the digest `NO_ROWS`. A sink accepts a window as final once: if a master that does not
know the result publishes the window as final again, it is stored as revised.

An answer contains the revision held, and the master compares it with its own. The sink stores the windows of `take_accepted`
before it performs the effects that the same step returned. Its files are named by revision, so storing a window twice does no
harm. After a crash between the two, the next Put of the window repeats or supersedes the file. Compaction of files never changes
the ledger.

The lake's files show more than the records do if the records were lost, or were not written before the agent ended: the ledger
adopts those windows (`adopt`). Without that, nobody would withdraw such a window when a change of the job removes it.

Entries of windows that the master cannot publish again are forgotten, with a margin: a master that begins a new log may retain
earlier windows than the last one did (`_forget`).

Invariants: `check`. Size: some 300 bytes for each window and version; 6 MB at most, where a master retains so many.
"""

from __future__ import annotations

from sys import intern
from typing import TYPE_CHECKING

from msgspec.structs import replace

from elf.srt.messages.effects import Effect, Notice, Send, Write
from elf.srt.messages.ids import MAKER_BYTES
from elf.srt.messages.messages import NO_BALLOT, Ballot, Digest, Message, Micros, under
from elf.srt.messages.results import NO_ROWS, LedgerReport, LedgerRequest, Put, PutPart, PutReply

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from elf.srt.messages.ids import JobId, NodeId

Window = tuple[str, Micros]
"""(version, start)."""
Revision = tuple[int, bytes, int]
"""(epoch, maker, n), compared in order."""
Record = tuple[Ballot, tuple[tuple[Window, Revision, int, bool], ...]]
"""A record of the ledger on disk: the fence, and the new entries (all entries, if the record replaces earlier ones), each with
whether it is open."""
NO_REVISION: Revision = (0, b"", 0)
ENTRIES_MAX, ENTRIES_KEPT = 20_000, 15_000
"""When there are more than `ENTRIES_MAX`, all but the newest `ENTRIES_KEPT` are dropped, so that sorting is rare."""
ENTRIES_MIN = 1_000
"""So many are kept in any case."""
UNKNOWN_ROWS: Digest = 1
"""The digest of a result that is known from the lake's files alone. The next master publishes the window again."""
ENTRIES_REPORTED_MAX = 5_000  # the newest windows: 14 hours of ten seconds, far above what a master retains


def above_all(epoch: int) -> Ballot:
    """A ballot above all of that epoch: the fence of a sink that has lost its ledger, if that is the lake's highest epoch."""
    return epoch, b"\xff" * MAKER_BYTES


class Ledger:
    """One job's ledger in one sink.

    entries: window -> (revision, digest of the rows). fence: the highest ballot served.
    """

    def __init__(self, job: JobId, key: bytes = b"") -> None:
        self.job, self._key = job, key or job  # the key of its records on disk
        self.fence: Ballot = NO_BALLOT
        self.entries: dict[Window, tuple[Revision, int]] = {}
        self._open: set[Window] = set()
        self._accepted: list[Put] = []
        self._records = 0
        self._forget_at = ENTRIES_MIN  # number of entries

    @property
    def results(self) -> dict[Window, tuple[Revision, int]]:
        """The entries that are not open. O(entries)."""
        return {window: held for window, held in self.entries.items() if window not in self._open}

    @property
    def known_from_us(self) -> Micros:
        """Windows that start earlier may be forgotten. O(entries)."""
        if len(self.entries) < ENTRIES_MIN:
            return 0
        return min((start for _, start in self.entries if start), default=0)

    def step(self, source: NodeId, message: Message, now: int) -> list[Effect]:
        """Answer a master. `now` is ignored: all cores have the same signature."""
        if isinstance(message, LedgerRequest):
            return self._on_request(source, message)
        if isinstance(message, Put):
            return self._on_put(source, message)
        if isinstance(message, PutPart) and not self.wants(message):
            return [*self._raise_fence(message.ballot), self._reply(source, message)]
        return []

    def wants(self, part: PutPart | Put) -> bool:
        """Whether the final window, or that of this part, would be accepted."""
        return not self._is_fenced_off(part.ballot) and self._is_newer(
            (part.version, part.start), part.revision, part.ballot
        )

    def status_of(self, put: Put) -> str:
        """The status under which the window would be accepted: a sink accepts it as final once."""
        window = (put.version, put.start)
        held = self.entries.get(window)
        is_again = held is not None and window not in self._open and held[1] != NO_ROWS
        return "revised" if put.status == "final" and is_again else put.status

    def take_accepted(self) -> list[Put]:
        """The windows to store before the effects of the step that accepted them are performed, once each."""
        accepted, self._accepted = self._accepted, []
        return accepted

    def restore(self, records: Iterable[Record]) -> None:
        """Apply the records that were written under ("ledger", job), in order."""
        for fence, entries in records:
            self.fence = max(self.fence, fence)
            for window, revision, digest, is_open in entries:
                held = self.entries.get(window)
                if held is None or revision > held[0] or (window in self._open and not is_open):
                    self._hold(window, revision, digest, is_open)
            self._records += 1

    def adopt(self, held: Mapping[Window, tuple[Revision, bool]]) -> None:
        """Rule Sinks*: the lake holds these windows, whatever the records say. held: revisions, and which are withdrawn. The next
        write has all entries."""
        results = self.results
        for window, (revision, is_withdrawn) in held.items():
            if window not in results or revision > results[window][0]:
                self._hold(window, revision, NO_ROWS if is_withdrawn else UNKNOWN_ROWS, is_open=False)
                self.fence = max(self.fence, revision[:2])
                self._records = 3 * ENTRIES_MAX + 64

    def _is_fenced_off(self, ballot: Ballot) -> bool:
        """Rule Sinks*: refuse all messages of a master whose ballot is below the fence."""
        return ballot < self.fence

    def _is_newer(self, window: Window, revision: Revision, ballot: Ballot, is_open: bool = False) -> bool:
        """Rule Windows*: revisions are compared in order; a window never goes back to a lower one, nor from final to open. But a
        final result from the log of a later ballot replaces an open result of an earlier master, even at a lower revision."""
        held = self.entries.get(window)
        if held is None:
            return True
        if window in self._open:
            return revision > held[0] or (not is_open and ballot > held[0][:2])
        return revision > held[0] and not (is_open and held[1] != NO_ROWS)

    def _hold(self, window: Window, revision: Revision, digest: int, is_open: bool) -> None:
        window = intern(window[0]), window[1]
        self.entries[window] = (under(self.fence, revision), digest)
        (self._open.add if is_open else self._open.discard)(window)
        if len(self.entries) > ENTRIES_MAX:
            self._forget_oldest(window)

    def _forget_oldest(self, but: Window) -> None:
        """Forget the oldest windows. If a Put repeats one of them, it is stored again under the same name, which does no harm."""
        self._drop(
            sorted(self.entries.keys() - {but}, key=lambda each: each[1])[: ENTRIES_MAX - ENTRIES_KEPT]
        )

    def _forget(self, since_us: Micros, but: Window) -> None:
        """Forget windows before those that the master retains, which start at or after `since_us`, but not those of as long a
        span before them. Amortized O(1)."""
        if len(self.entries) <= self._forget_at or not since_us:
            return
        starts = sorted(start for _, start in self.entries)
        from_us = min(2 * since_us - starts[-1], starts[-ENTRIES_MIN])
        gone = {window for window in self.entries if 0 < window[1] < from_us}  # 0: of a query without windows
        self._drop(gone - {but})
        self._forget_at = max(ENTRIES_MIN, 5 * len(self.entries) // 4)

    def _drop(self, windows: Collection[Window]) -> None:
        for window in windows:
            del self.entries[window]
        self._open.difference_update(windows)

    def _on_request(self, source: NodeId, message: LedgerRequest) -> list[Effect]:
        if self._is_fenced_off(message.ballot):
            return [Send(source, LedgerReport(self.job, self.fence, message.number, (), message.sink))]
        effects = [*self._take_over(message), *self._raise_fence(message.ballot)]
        final = [window for window in self.results if window[1] >= message.since_us]
        final = sorted(final, key=lambda window: (window[1], window[0]))[-ENTRIES_REPORTED_MAX:]
        entries = tuple((window, *self.entries[window]) for window in final)
        report = LedgerReport(self.job, self.fence, message.number, entries, message.sink)
        return [*effects, Send(source, report)]

    def _take_over(self, message: LedgerRequest) -> list[Effect]:
        """Rule Moving: results that another node delivered count as held here. They are recorded before the answer is sent."""
        new = [
            (window, revision, digest, False)
            for window, revision, digest in message.known
            if self._is_newer(window, revision, message.ballot)
        ]
        for entry in new:
            self._hold(*entry)
        self.fence = max(self.fence, message.ballot) if new else self.fence
        return [self._write(tuple(new))] if new else []

    def _raise_fence(self, ballot: Ballot) -> list[Effect]:
        if ballot <= self.fence:
            return []
        self.fence = ballot
        return [self._write(())]

    def _on_put(self, source: NodeId, message: Put) -> list[Effect]:
        window = (message.version, message.start)
        effects: list[Effect] = []
        if not self._is_fenced_off(message.ballot):
            if self._is_newer(window, message.revision, message.ballot, message.status == "open"):
                effects.append(self._accept(window, message))
            else:
                effects += self._raise_fence(message.ballot) + self._check_digest(source, window, message)
        return [*effects, self._reply(source, message)]

    def _reply(self, source: NodeId, about: Put | PutPart) -> Send:
        held = self.entries.get((about.version, about.start), (NO_REVISION, 0))[0]
        return Send(source, PutReply(self.job, self.fence, about.version, about.start, held, about.sink))

    def _check_digest(self, source: NodeId, window: Window, message: Put) -> list[Effect]:
        revision, digest = self.entries[window]
        if message.revision != revision or digest in (message.digest, UNKNOWN_ROWS):
            return []
        text = f"revision {revision[2]} of the window at {message.start} came with two different contents; the first is kept"
        return [Notice("ledger", text, source)]

    def _accept(self, window: Window, message: Put) -> Write:
        self.fence = max(self.fence, message.ballot)
        is_open = message.status == "open"
        status = self.status_of(message)
        if status != message.status:
            message = replace(message, status=status)
        self._hold(window, message.revision, message.digest, is_open)
        self._forget(message.since_us, window)
        self._accepted.append(message)
        return self._write(((window, message.revision, message.digest, is_open),))

    def _write(self, entries: tuple[tuple[Window, Revision, int, bool], ...]) -> Write:
        """Append the entries to the disk; when it has three times as many as are held, write all entries anew."""
        self._records += 1
        if self._records <= 3 * len(self.entries) + 64:
            return Write(("ledger", self._key), (self.fence, entries))
        self._records = 1
        whole = tuple((window, *held, window in self._open) for window, held in self.entries.items())
        return Write(("ledger", self._key), (self.fence, whole), replace=True)

    def check(self) -> None:
        """Raise AssertionError unless all invariants hold. O(entries)."""
        assert all(revision > NO_REVISION for revision, _ in self.entries.values())
        assert self._open <= self.entries.keys()
        assert all(put.ballot <= self.fence for put in self._accepted)
