"""Compares every window and every publication with the oracle."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.torture.jobs import Job
from tests.torture.oracle import Bounds, Count, Group, Oracle, top
from tests.torture.readers.publications import Publication, Revision

DIFFERENCES_MAX = 6
NEWEST = 6
"""The newest panes, of which at least one must be whole in the end."""
EMPTY = Bounds()
WRONG = {
    "exceeds": "holds more lines than there are",
    "claims": "says it is whole, and lacks lines",
    "wrong": "the last word on a window is not its count",
    "lacks": "says it is not whole, though every line is on a disk",
    "missing": "a window that nobody was told of",
    "again": "final a second time for one reader",
    "differs": "one revision came to a sink with different rows",
    "order": "a revision that does not grow",
    "rejected": "lines are called unreadable or wrong, and none are",
    "ended": "an agent ended by itself",
    "explained": "a loss was told of that did not happen",
    "unsettled": "not well in time after the last fault",
    "memory": "more resident memory than the cap allows",
    "paused": "a watcher waited too long under attack",
    "run": "the run itself failed",
}
"""Kinds of findings; a run with none of them is good."""
NOTED = {"modest": "says it is not whole, and holds every line"}


@dataclass(frozen=True)
class Finding:
    """start_s: of the window, 0 if there is none."""

    kind: str
    text: str
    start_s: int = 0


@dataclass
class Verdict:
    """findings: what is wrong or worth a note. counts: of what was compared. allowed: kinds that are no more than a note."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    allowed: tuple[str, ...] = ()

    def add(self, kind: str, text: str, start_s: int = 0) -> None:
        self.findings.append(Finding(kind, text, start_s))

    @property
    def wrong(self) -> list[Finding]:
        return [each for each in self.findings if each.kind in WRONG and each.kind not in self.allowed]

    def by_kind(self) -> dict[str, int]:
        return dict(Counter(each.kind for each in self.findings))


@dataclass(frozen=True)
class Excuse:
    """Windows that overlap this time (seconds) may be published as whole too early: a clock that is ahead promises too much, and
    so does a process with an agent's key and other logs."""

    from_s: float
    until_s: float

    def holds(self, start_s: int, size_s: int) -> bool:
        return start_s < self.until_s and start_s + size_s > self.from_s


def differences(said: Mapping[Group, Count], bounds: Bounds, job: Job) -> list[str]:
    """The differences between all rows of a window and the oracle's counts."""
    if not bounds.is_exact:
        return _outside(said, bounds, job)
    true = top(bounds.most, job.limit)
    return [
        f"{group}: said {_of(said, group)}, true {_of(true, group)}"
        for group in sorted({*said, *true}, key=str)
        if said.get(group) != true.get(group)
    ]


def _outside(said: Mapping[Group, Count], bounds: Bounds, job: Job) -> list[str]:
    wrong = exceeding(said, bounds)
    if not job.limit:
        wrong += [
            f"{group}: said {_of(said, group)}, true at least {least}"
            for group, least in bounds.least.items()
            if said.get(group, Count()).hits < least.hits
        ]
    return wrong


def exceeding(said: Mapping[Group, Count], bounds: Bounds) -> list[str]:
    """Rows that hold more lines than were ever logged."""
    return [
        f"{group}: said {count}, true {_of(bounds.most, group)}"
        for group, count in said.items()
        if count.hits > bounds.most.get(group, Count()).hits
        or count.bytes > bounds.most.get(group, Count()).bytes
    ]


def _of(groups: Mapping[Group, Count], group: Group) -> str:
    count = groups.get(group)
    return f"{count.hits} hits, {count.bytes} B" if count else "nothing"


def _short(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - DIFFERENCES_MAX} more" if len(texts) > DIFFERENCES_MAX else ""
    return "; ".join(texts[:DIFFERENCES_MAX]) + more


class Judge:
    """Compares publications with the oracle, and collects findings in `verdict`. excuses: windows that may be published as whole
    too early. gone: times of agents that were removed for good, whose windows may stay incomplete."""

    def __init__(
        self, oracle: Oracle, verdict: Verdict, excuses: Sequence[Excuse] = (), gone: Sequence[Excuse] = ()
    ) -> None:
        self._oracle, self.verdict, self._excuses, self._gone = oracle, verdict, excuses, gone
        self._truth: dict[tuple[Job, bool], dict[int, Bounds]] = {}

    def truth(self, job: Job, *, as_panes: bool = False) -> dict[int, Bounds]:
        key = job, as_panes
        if key not in self._truth:
            self._truth[key] = self._oracle.windows(job, as_panes=as_panes)
        return self._truth[key]

    def publication(self, said: Publication, job: Job, *, as_pane: bool = False) -> None:
        """Check one publication: never too many lines, and whole only if it is."""
        self.verdict.counts["publications"] += 1
        bounds = self.truth(job, as_panes=as_pane).get(said.start_s, EMPTY)
        more = exceeding(said.rows, bounds)
        if said.lines_rejected:
            self.verdict.add("rejected", f"{said}: {said.lines_rejected} lines", said.start_s)
        if said.lines_read > bounds.lines_most and not said.lines_rejected:
            more.append(f"{said.lines_read} lines read of {bounds.lines_most}")
        if more:
            self.verdict.add("exceeds", f"{said}: {_short(more)}", said.start_s)
        elif said.is_all and said.is_whole and not self._is_excused(said, job):
            wrong = differences(said.rows, bounds, _unlimited(job) if as_pane else job)
            if wrong:
                self.verdict.add("claims", f"{said}: {_short(wrong)}", said.start_s)

    def _is_excused(self, said: Publication, job: Job) -> bool:
        return any(each.holds(said.start_s, job.size_s) for each in self._excuses)

    def _is_of_gone(self, start_s: int, job: Job) -> bool:
        return any(each.holds(start_s, job.size_s) for each in self._gone)

    def delivered(self, heard: Iterable[Publication], job: Job) -> None:
        """Check what one sink received: it may get a window more than once, and then the same."""
        rows: dict[tuple[int, Revision], Publication] = {}
        for said in heard:
            self.publication(said, job)
            known = rows.setdefault((said.start_s, said.revision), said)
            if known.rows != said.rows:
                self.verdict.add(
                    "differs", f"{said}: {len(known.rows)} rows, then {len(said.rows)}", said.start_s
                )

    def undelivered(self, latest: Mapping[int, Publication], job: Job) -> str:
        """Which windows did not come to a sink; "" if all with lines have. Those that begin before the first line may be cut by
        the job's start."""
        first_s = min((start_s for start_s, _ in self._panes(job)), default=0)
        windows = [at for at, bounds in self.truth(job).items() if bounds.least and at >= first_s]
        lacks = sorted(at for at in windows if at not in latest)
        return f"{len(lacks)} of {len(windows)} windows did not come, the first {lacks[0]}" if lacks else ""

    def lacking(self, latest: Mapping[int, Publication], job: Job) -> str:
        """What a lake lacks: "" if it holds all panes with all their lines, and one of the newest says so.

        Earlier ones may be modest for good: an agent that lost its disk, or a log that was copied and truncated while nobody
        looked, leaves a doubt that nothing can lift. If all of the newest are, some agent does not count as whole any more.
        """
        lacks = self.lacking_lines(latest, job)
        newest = self._panes(job)[-NEWEST:]
        if lacks or any(
            latest[start_s].is_whole or not bounds.is_exact or self._is_of_gone(start_s, job)
            for start_s, bounds in newest
        ):
            return lacks
        return f"none of its newest panes is whole: {latest[newest[-1][0]] if newest else 'there are none'}"

    def lacking_lines(self, latest: Mapping[int, Publication], job: Job) -> str:
        """Which panes a lake lacks, and in which it has other lines; "" if it holds all with all their lines."""
        panes = self._panes(job)
        lacks = [start_s for start_s, _ in panes if start_s not in latest]
        wrong = [
            f"{latest[start_s]}: {_short(differs)}"
            for start_s, bounds in panes
            if start_s in latest and (differs := differences(latest[start_s].rows, bounds, _unlimited(job)))
        ]
        texts = [f"{len(lacks)} of {len(panes)} panes are not there, the first {lacks[0]}"] if lacks else []
        return "; ".join(texts + ([f"{len(wrong)} have other lines, the last {wrong[-1]}"] if wrong else []))

    def _panes(self, job: Job) -> list[tuple[int, Bounds]]:
        return sorted((at, bounds) for at, bounds in self.truth(job, as_panes=True).items() if bounds.least)

    def nothing_else(self, latest: Mapping[int, Publication], job: Job) -> None:
        """Check that a lake has no rows for times at which that version of the job is not in force."""
        for start_s, said in latest.items():
            if said.rows and start_s not in self.truth(job, as_panes=True):
                text = f"{said}: version {job.version} is not in force then: {_short([f'{each}' for each in said.rows])}"
                self.verdict.add("wrong", text, start_s)

    def session(self, heard: Iterable[Publication], job: Job) -> None:
        """Check what one reader received, in order."""
        finals: Counter[int] = Counter()
        last: dict[int, Publication] = {}
        for said in heard:
            self.publication(said, job)
            before = last.get(said.start_s)
            if before is not None and said.revision <= before.revision and not _gives_way(before, said):
                self.verdict.add("order", f"{said} after {before}", said.start_s)
            last[said.start_s] = said
            finals[said.start_s] += said.status == "final"
            if said.status == "final" and finals[said.start_s] > 1:
                self.verdict.add("again", f"{said} after {before}", said.start_s)

    def last_revisions(
        self, latest: Mapping[int, Publication], job: Job, where: str, *, as_panes: bool = False
    ) -> None:
        """Check the last revision of each window. as_panes: of a lake, which must hold all rows, before any LIMIT."""
        for start_s, bounds in sorted(self.truth(job, as_panes=as_panes).items()):
            self.verdict.counts["windows"] += 1
            said = latest.get(start_s)
            if said is None:
                if as_panes and bounds.least:
                    self.verdict.add(
                        "missing",
                        f"{where}: {job.name} {start_s} of {sum(c.hits for c in bounds.most.values())} lines",
                        start_s,
                    )
                continue
            self._last_revision(said, bounds, _unlimited(job) if as_panes else job)

    def _last_revision(self, said: Publication, bounds: Bounds, job: Job) -> None:
        wrong = differences(said.rows, bounds, job) if said.is_all else []
        if wrong:
            self.verdict.add("wrong" if said.is_whole else "lacks", f"{said}: {_short(wrong)}", said.start_s)
        elif not said.is_whole and bounds.is_exact and not self._is_of_gone(said.start_s, job):
            self.verdict.add("modest", str(said), said.start_s)


def _gives_way(before: Publication, said: Publication) -> bool:
    """The smaller side of a partition shows as open what the other side's log holds as final, under a higher ballot: a final
    revision counts after an open one, whatever their revisions (`agent/control/follow.py`)."""
    return before.status == "open" and said.status != "open"


def _unlimited(job: Job) -> Job:
    return Job(**{**job.__dict__, "limit": 0})


def newest(sessions: Iterable[Iterable[Publication]]) -> dict[int, Publication]:
    """The highest revision of full rows of each window that any reader received."""
    latest: dict[int, Publication] = {}
    revisions: dict[int, list[Publication]] = defaultdict(list)
    for session in sessions:
        for said in session:
            revisions[said.start_s].append(said)
    for start_s, heard in revisions.items():
        full = [each for each in heard if each.is_all]
        if full:
            latest[start_s] = max(full, key=lambda each: each.revision)
    return latest
