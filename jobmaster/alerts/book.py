"""The states of a job's alerts: windows are judged in the order of event time, and each once.

An instance is an alert with the keys of a row; the condition holds for it in a window if it holds for a row with these keys.

    state    | in a later window                              | next
    ---------+------------------------------------------------+------------------------------------------------------
    inactive | holds                                          | pending; firing if that window alone covers `for`
    pending  | holds, and has for `for`, this window included | firing
             | does not hold, and the window is complete      | inactive
    firing   | does not hold, and the window is complete      | resolved, which is inactive
    any      | its alert is no longer the job's               | as if it did not hold in a complete window

Of an alert "no data by" columns the instances are values of these: those that had rows once (`members`). The condition holds for
a member in a window with lines that has no rows with it, complete or not, and does not in any window that has some. A member
that had none for `FORGET_US` is forgotten.

A window stands for its last step: the time by which it goes on from the one before (its slide). So a window of ten seconds alone
covers a `for` of ten seconds. A window that is not complete (an agent is missing, a control line cuts it) may fire, and never
resolves: what it lacks might be what holds. A time without lines is a complete window without rows once all agents have passed
it.

Rule Once*: a window is judged once, in the order of the ends, as an entry of the job's log says (`Judgement`): a revision, or a
window that becomes final after a later one was judged, changes nothing. So what was resolved does not fire again, and a master
that takes over goes on after the last entry.

Bounds: `INSTANCES_MAX` of an alert, `JOB_INSTANCES_MAX` and `BYTES_MAX` of a job; what has no room is counted (`left_out`), and
is tried again in the next window. `HISTORY_MAX` transitions are kept for sinks that were away.

Invariants: `check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from elf.jobmaster.alerts.alert import Alert, Labels
from elf.srt.messages.messages import Count, Micros

INSTANCES_MAX = 100
"""Pending and firing, of one alert."""
BYTES_MAX = 256 << 10
"""All pending and firing instances of a job; a text of 100 characters with three labels takes some 400 bytes, so 600 of these."""
JOB_INSTANCES_MAX = 500
MEMBERS_MAX = 100
"""Of all alerts of a job."""
MEMBERS_BYTES_MAX = 48 << 10
FORGET_US = 86_400_000_000
HISTORY_MAX = 1024
"""All instances of a job may be resolved, and as many others fire, in one window."""
CHANGES_BYTES_MAX = 128 << 10
"""Of one entry: a quarter of a frame."""
CHANGE_BYTES = 120
"""Of a transition without its texts."""

Keys = tuple[tuple[str, str], ...]
"""Columns that are keys, and their values as text, without those that are NULL."""
InstanceKey = tuple[str, Keys]
"""(name of the alert, keys)."""
State = Literal["inactive", "pending", "firing", "resolved"]
Text = Annotated[str, Meta(max_length=4096)]


class Hit(msgspec.Struct, frozen=True):
    """The condition of an alert holds for a row with these keys. text: the alert's, filled with the row's values."""

    keys: Keys
    text: str


class JudgedWindow(msgspec.Struct, frozen=True):
    """What the book needs to know of a window. until_us: its end; step_us: its slide. hits: for each alert, the instances for
    which it holds, or of "no data by" those that have rows; left_out: how many more rows there were."""

    until_us: Micros
    step_us: Micros
    is_complete: bool
    has_lines: bool
    hits: dict[str, tuple[Hit, ...]] = {}
    left_out: dict[str, int] = {}


class Transition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An instance changes its state at `at_us`, the end of a window; it has held since `since_us`. What follows of a firing
    instance is not repeated when it is resolved."""

    alert: Text
    keys: Annotated[tuple[tuple[Text, Text], ...], Meta(max_length=512)]
    state: State
    at_us: Micros
    since_us: Micros
    text: Text = ""
    labels: Annotated[tuple[tuple[Text, Text], ...], Meta(max_length=16)] = ()
    sinks: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()

    @property
    def key(self) -> InstanceKey:
        return (self.alert, self.keys)

    @property
    def is_notified(self) -> bool:
        """Whether sinks hear of it."""
        return self.state in ("firing", "resolved")

    @property
    def nbytes(self) -> int:
        """O(its texts)."""
        pairs = sum(len(one.encode()) + len(other.encode()) for one, other in (*self.keys, *self.labels))
        return CHANGE_BYTES + len(self.text.encode()) + pairs + sum(len(name.encode()) for name in self.sinks)


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value of the columns of an alert "no data by" that had rows. text: the alert's, filled with it."""

    alert: Text
    keys: Annotated[tuple[tuple[Text, Text], ...], Meta(max_length=512)]
    text: Text = ""

    @property
    def nbytes(self) -> int:
        """O(its texts)."""
        pairs = sum(len(one.encode()) + len(other.encode()) for one, other in self.keys)
        return CHANGE_BYTES + len(self.text.encode()) + pairs


class Judgement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is new once a window is judged. until_us: windows that end by then are; data_us: the end of the last one with lines;
    0: as before. left_out: how many instances had no room, by alert. members, dropped: of alerts "no data by"."""

    until_us: Micros = 0
    data_us: Micros = 0
    changes: tuple[Transition, ...] = ()
    left_out: tuple[tuple[Text, Count], ...] = ()
    members: tuple[Member, ...] = ()
    dropped: tuple[tuple[Text, tuple[tuple[Text, Text], ...]], ...] = ()


class Notification(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A transition that sinks hear of. number: grows by one with each, from 1 on in each log."""

    number: Count
    change: Transition


class BookState(msgspec.Struct, frozen=True, array_like=True):
    """A `Book` as a value."""

    until_us: Micros = 0
    data_us: Micros = 0
    number: Count = 0
    instances: tuple[Transition, ...] = ()
    history: tuple[Notification, ...] = ()
    left_out: tuple[tuple[Text, Count], ...] = ()
    members: tuple[Member, ...] = ()


EMPTY = BookState()


class Book:
    """instances: those that are pending or firing, by the transition that made them so. members: see `Member`. history: the last
    transitions that sinks hear of. number: of the last one."""

    def __init__(self, state: BookState = EMPTY) -> None:
        self.until_us, self.data_us, self.number = state.until_us, state.data_us, state.number
        self.instances: dict[InstanceKey, Transition] = {each.key: each for each in state.instances}
        self.history: list[Notification] = list(state.history)
        self.left_out: dict[str, int] = dict(state.left_out)
        self.members: dict[InstanceKey, Member] = {(each.alert, each.keys): each for each in state.members}

    def state(self) -> BookState:
        """O(instances log instances)."""
        instances = tuple(self.instances[key] for key in sorted(self.instances))
        about = self.until_us, self.data_us, self.number, instances, tuple(self.history)
        members = tuple(self.members[key] for key in sorted(self.members))
        return BookState(*about, tuple(sorted(self.left_out.items())), members)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is pending or firing."""
        return not self.instances

    def firing(self) -> list[Transition]:
        """In order of their keys."""
        return [
            self.instances[key] for key in sorted(self.instances) if self.instances[key].state == "firing"
        ]

    # ---- judging: what would change ----

    def judge(self, window: JudgedWindow, alerts: Sequence[Alert], sinks: Sequence[str] = ()) -> Judgement:
        """What the window changes; its end must be past `until_us`. alerts: the job's for this window; sinks: the job's own.
        O(instances + hits, and members log members)."""
        assert window.until_us > self.until_us
        room = _Room(self.instances.values())
        named = {each.name: each for each in alerts}
        held = {(name, hit.keys) for name, found in window.hits.items() for hit in found}
        changes = [*self._ended(window, named, held, room)]
        over = {change.key for change in changes} - held
        dropped = [
            key for key in sorted(self.members) if key in over or key[0] not in named or not named[key[0]].by
        ]
        for alert in alerts:
            hits = self._absent(window, alert, held | over) if alert.by else window.hits.get(alert.name, ())
            changes += self._risen(window, alert, hits, alert.sinks or tuple(sinks), room)
        members, no_room = self._joining(window, alerts, len(dropped))
        data_us = window.until_us if window.has_lines and window.until_us > self.data_us else 0
        left_out = _summed(_summed(window.left_out, room.left_out), no_room)
        counted = tuple(sorted((name, count) for name, count in left_out.items() if count))
        return Judgement(window.until_us, data_us, tuple(changes), counted, members, tuple(dropped))

    def _absent(self, window: JudgedWindow, alert: Alert, but: set[InstanceKey]) -> list[Hit]:
        """The members of an alert "no data by" that have no rows in a window with lines, but these. O(members log members)."""
        if not window.has_lines:
            return []
        return [
            Hit(key[1], self.members[key].text)
            for key in sorted(self.members)
            if key[0] == alert.name and key not in but
        ]

    def _joining(
        self, window: JudgedWindow, alerts: Sequence[Alert], leaving: int
    ) -> tuple[tuple[Member, ...], dict[str, int]]:
        """The new members, and how many have no room, by alert."""
        joining, left_out = list[Member](), dict[str, int]()
        count = len(self.members) - leaving
        nbytes = sum(each.nbytes for each in self.members.values())
        for alert in alerts:
            for hit in window.hits.get(alert.name, ()) if alert.by else ():
                member = Member(alert.name, hit.keys, hit.text)
                if (alert.name, hit.keys) in self.members:
                    continue
                if count >= MEMBERS_MAX or nbytes + member.nbytes > MEMBERS_BYTES_MAX:
                    left_out[alert.name] = left_out.get(alert.name, 0) + 1
                    continue
                count, nbytes = count + 1, nbytes + member.nbytes
                joining.append(member)
        return tuple(joining), left_out

    def _ended(
        self, window: JudgedWindow, alerts: dict[str, Alert], held: set[InstanceKey], room: _Room
    ) -> Iterable[Transition]:
        """The instances that do not hold any more. held: those of the window's hits."""
        for key, known in sorted(self.instances.items()):
            alert = alerts.get(key[0])
            if alert is not None and alert.is_no_data:
                is_over = window.has_lines
            elif alert is not None and alert.by:
                is_over = key in held or window.until_us - known.since_us >= FORGET_US
            else:
                is_over = alert is None or (window.is_complete and key not in held)
            if is_over:
                room.free(known)
                yield _ended(known, window.until_us)

    def _risen(
        self, window: JudgedWindow, alert: Alert, hits: Sequence[Hit], sinks: tuple[str, ...], room: _Room
    ) -> Iterable[Transition]:
        """The instances of an alert that begin to hold, or have held for long enough."""
        at = window.until_us
        seen = set[Keys]()
        for hit in hits:
            if hit.keys in seen:
                continue
            seen.add(hit.keys)
            known = self.instances.get((alert.name, hit.keys))
            if known is not None and known.state == "firing":
                continue
            since = known.since_us if known is not None else at - window.step_us
            is_firing = at - since >= alert.for_us
            if known is not None and not is_firing:
                continue
            state: State = "firing" if is_firing else "pending"
            change = Transition(alert.name, hit.keys, state, at, since, hit.text, alert.labels, sinks)
            if room.take(change, known):
                yield change

    def silence(
        self,
        alerts: Sequence[Alert],
        begun_us: Micros,
        now_us: Micros,
        wait_us: Micros,
        sinks: Sequence[str] = (),
    ) -> Judgement | None:
        """What changes because no window with lines has come, by the clock `now_us`; None: nothing. begun_us: when the job
        began, if no window has come at all. wait_us: how long after its end a window may become final. O(alerts)."""
        last_us = max(self.data_us, begun_us)
        changes = []
        for alert in alerts:
            if not alert.is_no_data or (alert.name, ()) in self.instances or not last_us:
                continue
            at = last_us + alert.for_us
            if now_us >= at + wait_us:
                about = alert.labels, alert.sinks or tuple(sinks)
                changes.append(Transition(alert.name, (), "firing", at, last_us, alert.text, *about))
        return Judgement(changes=tuple(changes)) if changes else None

    # ---- applying: an entry of the log ----

    def apply(self, found: Judgement) -> list[Notification]:
        """Take what the log says. Returns the transitions that sinks hear of. O(changes)."""
        self.until_us = max(self.until_us, found.until_us)
        self.data_us = max(self.data_us, found.data_us)
        notifications = list[Notification]()
        for change in found.changes:
            whole = self._applied(change)
            if whole is not None and whole.is_notified:
                self.number += 1
                notifications.append(Notification(self.number, whole))
        for name, keys in found.dropped:
            self.members.pop((name, keys), None)
        self.members |= {(each.alert, each.keys): each for each in found.members}
        self.left_out = _summed(self.left_out, dict(found.left_out))
        self.history = [*self.history, *notifications][-HISTORY_MAX:]
        return notifications

    def _applied(self, change: Transition) -> Transition | None:
        """The transition with all that sinks hear; None if the instance is not there, as in an entry of another log."""
        if change.state in ("pending", "firing"):
            self.instances[change.key] = change
            return change
        known = self.instances.pop(change.key, None)
        if known is None:
            return None
        return replace(change, text=known.text, labels=known.labels, sinks=known.sinks)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold. O(instances)."""
        assert all(each.state in ("pending", "firing") for each in self.instances.values())
        assert all(each.key == key for key, each in self.instances.items())
        numbers = [each.number for each in self.history]
        assert numbers == list(range(self.number - len(numbers) + 1, self.number + 1))
        assert len(numbers) <= HISTORY_MAX
        assert len(self.members) <= MEMBERS_MAX


class _Room:
    """What the instances of a job, and the changes of an entry, have room for."""

    def __init__(self, instances: Iterable[Transition]) -> None:
        self.left_out: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._nbytes = self._changed = 0
        for each in instances:
            self._add(each, 1)

    def _add(self, each: Transition, count: int) -> None:
        self._counts[each.alert] = self._counts.get(each.alert, 0) + count
        self._nbytes += count * each.nbytes

    def free(self, known: Transition) -> None:
        self._add(known, -1)

    def take(self, change: Transition, known: Transition | None) -> bool:
        """Whether the instance has room; it takes that of `known`."""
        if known is not None:
            self.free(known)
        size = change.nbytes
        fits = (
            self._counts.get(change.alert, 0) < INSTANCES_MAX
            and sum(self._counts.values()) < JOB_INSTANCES_MAX
            and self._nbytes + size <= BYTES_MAX
            and self._changed + size <= CHANGES_BYTES_MAX
        )
        if fits:
            self._add(change, 1)
            self._changed += size
        else:
            self.left_out[change.alert] = self.left_out.get(change.alert, 0) + 1
            if known is not None:
                self._add(known, 1)
        return fits


def _ended(known: Transition, at_us: Micros) -> Transition:
    state: State = "resolved" if known.state == "firing" else "inactive"
    return Transition(known.alert, known.keys, state, at_us, known.since_us)


def _summed(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}


def identifier(job: bytes, change: Transition) -> str:
    """The id of a transition: the same whoever reports it, and however often."""
    about = [change.alert, *(part for pair in change.keys for part in pair), change.state, str(change.at_us)]
    data = job + b"\0".join(each.encode(errors="surrogateescape") for each in about)
    return blake2b(data, digest_size=16).hexdigest()


def labels_of(change: Transition, job: str) -> Labels:
    """All labels: the alert's name, the job, the keys, and the alert's own, which win, in order of the names."""
    keys = {f"{name}": value for name, value in change.keys}
    found = {**keys, "alertname": change.alert, "job": job, **dict(change.labels)}
    return tuple(sorted(found.items()))
