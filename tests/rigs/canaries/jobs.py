"""How the rules of trials, of sinks, and of the row `other`, are broken, for `tests/rigs/canaries/rules.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elf.agent.node.term import Term
from elf.cbt import other
from elf.cbt._kernel import make_rows, merge, take
from elf.cbt.rows import Rows
from elf.jobmaster.delivery.outbox import Outbox
from elf.jobmaster.delivery.sink_queue import SinkQueue, Waiting
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import AgentAdvert, JobSpec, decode_agent
from elf.jobmaster.directory.limits import Limits
from elf.jobmaster.directory.settings import Settings
from elf.jobmaster.log.job_state import WindowKey
from elf.jobmaster.master.window_settings import WindowSettings
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Micros
from elf.srt.messages.partial import Part

_levels = other._levels


def by_arrival(part: Part, limits: Limits, panes: Sequence[Micros]) -> Part:
    """The groups with the most lines stay, of those that this cut happens to have."""
    rows, ops, most = part.rows[0], part.ops[0], limits.groups
    order = np.argsort(-rows.lanes[0], kind="stable")
    rest = np.sort(order[most:])
    keys, ends = np.tile(np.array([other.TAG, 0], np.uint8), len(rest)), np.arange(2, 2 * len(rest) + 1, 2)
    folded = make_rows(rows.pane[rest], keys, ends.astype(np.uint64), None, rows.lanes[:, rest], ops)
    kept = take(rows, np.sort(order[:most]))
    return Part(part.ops, (merge([kept, folded], ops), *part.rows[1:]))


def own_level(rows: Rows, others: NDArray[np.bool_], groups_max: int) -> NDArray[np.uint8]:
    return _levels(rows, np.zeros_like(others), groups_max)


def of_all_names(self: JobItems, spec: JobSpec) -> list[tuple[NodeId, AgentAdvert]]:
    adverts = ((item.name, decode_agent(item)) for item in self._directory.items("agent"))
    return [(node, advert) for node, advert in adverts if spec.source in advert.sources]


def of_the_newest(self: WindowSettings, key: WindowKey) -> Settings:
    return self.newest


def one_after_another(self: Outbox, sink: SinkQueue) -> list[tuple[WindowKey, Waiting]]:
    node, before = sink.target.node, set[WindowKey]()
    for each in self._sinks.values():
        if each is sink:
            break
        before |= each.waiting.keys() if each.target.node == node else set()
    return [each for each in sink.next() if each[0] not in before]


def endless(self: Term, until_us: int) -> None:
    self.until_us, self.deadline = until_us, None
