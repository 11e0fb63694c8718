"""Reads the contents of windows from their panes: small ones at once, large ones step by step and one at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from elf.cbt.budget import Budget
from elf.jobmaster.delivery.states import as_parts
from elf.jobmaster.log.job_state import JobState, WindowKey
from elf.jobmaster.log.schedule import plan_of
from elf.jobmaster.plan.plan import Plan
from elf.jobmaster.windows.counters import lines_of
from elf.jobmaster.windows.panes import Piece, sampled
from elf.jobmaster.windows.reading import FORGET_LOOKS, STEP_BYTES, Content, Reading, Steps, digest_steps
from elf.jobmaster.windows.state import StateMaker
from elf.jobmaster.windows.windows import Publisher
from elf.srt.messages.messages import Micros
from elf.srt.messages.results import PaneParts


class Contents:
    """The contents of one job's windows. stores_states: whether a sink also stores the states of panes. sample: of a window;
    above 0, the most groups beside the row `other`.

    reading: the large window that is being read, or has been read and waits to be fetched.
    """

    def __init__(
        self, state: JobState, budget: Budget, stores_states: bool, sample: Callable[[WindowKey], int]
    ) -> None:
        self._sample, self.stores_states = sample, stores_states
        self._state, self._budget = state, budget
        self._publishers: dict[str, Publisher] = {}
        self._makers: dict[str, StateMaker] = {}
        self.reading: Reading | None = None

    # One window.

    def of(self, key: WindowKey, *, exact: bool, with_panes: bool) -> tuple[Content, Reading] | None:
        """A window's contents, and how they were read; None if it is large and not read yet. A window may change while it is
        read: with `exact` it is read anew; without, its contents are stale, and it is read and published again later."""
        reading, mine = self.reading, self.reading
        if reading is None or reading.key != key or not reading.serves(exact, with_panes):
            reading = Reading(key, self._steps(key, with_panes), exact=exact, with_panes=with_panes)
            reading.step()
        if reading.content is None:
            if mine is None or mine.key == key:
                self.reading = reading
            return None
        if mine is not None and mine.key == key:
            self.reading = None
        return reading.content, reading

    @property
    def is_reading(self) -> bool:
        """Whether `read_on` has work."""
        return self.reading is not None and self.reading.is_under_way

    def read_on(self) -> None:
        """Take one step of the large window that is being read."""
        if self.reading is not None and self.reading.is_under_way:
            self.reading.step()

    def look(self) -> None:
        """Call this once in each emit interval: it drops contents that nothing has fetched."""
        reading = self.reading
        if reading is not None and not reading.is_under_way:
            reading.looks += 1
            if reading.looks > FORGET_LOOKS:
                self.reading = None

    # Steps of reading.

    def _steps(self, key: WindowKey, with_panes: bool) -> Steps:
        version, start = key
        size = self._state.shape(version).size_us
        panes = self._state.panes[version]
        stop = start + size if size else None
        rows: Sequence[tuple[Any, ...]] = ()
        # Taken before the rows, whose reading begins in this step: an open window must not say that it has lines which it lacks.
        lines = lines_of(panes.lines(start, stop) if size else panes.lines())
        pieces = panes.window(start, stop if stop is not None else start, STEP_BYTES)
        others: Sequence[tuple[Any, ...]] = ()
        if (sample := self._sample(key)) and not panes.plan.families:
            groups, rest = sampled(pieces, panes.ops[0], sample)
            pieces = iter([Piece(groups, [])] if len(groups) else [])
            others = self.publisher(version).rows_of_other(rest)
        for found in self.publisher(version).steps(pieces):
            if found is not None:
                rows = found[1]
                break
            yield None
        if others:
            rows = [*rows, *others]
        digest = 0
        for hashed in digest_steps(rows, lines):
            if hashed is None:
                yield None
            else:
                digest = hashed
        made: tuple[PaneParts, ...] = ()
        for states in self._panes(key) if with_panes else ():
            if states is None:
                yield None
            else:
                made = states
        yield Content(rows, lines, digest, made, len(others))

    def _panes(self, key: WindowKey) -> Iterator[tuple[PaneParts, ...] | None]:
        """The pane states that a lake stores with a window: those of its panes that no earlier window has. So each pane is
        stored once, with the first final window that has it. O(values of these panes)."""
        version, start = key
        shape = self._state.shape(version)
        if not self.stores_states or not shape.pane_us:
            return
        low, stop = start + shape.size_us - shape.slide_us, start + shape.size_us
        panes = self._state.panes[version]
        pieces = panes.pieces(low, stop, split=True, step_bytes=STEP_BYTES)
        made: dict[Micros, PaneParts] = {}
        for state in self._maker(version).steps(pieces, panes.lines(low, stop), "final", (0, 0, 0)):
            if state is None:
                yield None
            else:
                made[state.start] = as_parts(state)
        if key in self._state.finals:  # a lake may hold panes that have lost all their lines since
            for pane in range(low, stop, shape.pane_us):
                made.setdefault(pane, PaneParts(pane, pane + shape.pane_us, (0, 0, 0, 0), ()))
        yield tuple(made[pane] for pane in sorted(made))

    # By version.

    def publisher(self, version: str) -> Publisher:
        if version not in self._publishers:
            self._publishers[version] = Publisher(self._state.name, self._plan(version), self._budget)
        return self._publishers[version]

    def _maker(self, version: str) -> StateMaker:
        if version not in self._makers:
            self._makers[version] = StateMaker(self._state.name, version, self._plan(version), self._budget)
        return self._makers[version]

    def _plan(self, version: str) -> Plan:
        return plan_of(next(line.plan for line in self._state.schedule if line.version == version))

    def keep_only(self, versions: Collection[str]) -> None:
        """Drop the publishers of other versions."""
        for made in (self._publishers, self._makers):
            for version in made.keys() - versions:
                del made[version]
