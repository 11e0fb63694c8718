"""Which nodes can take part in a job: those whose adverts have the features that the job's plans need.

A node that lacks one takes no part: it has an empty seat, and no other node counts it among those that may serve the job or hold
its log. All decide by the same adverts. An agent whose advert is not known here is taken for able: it is new. While two nodes
disagree about it, a message that each of them would pass to the other is dropped after `hops_max`, and sent again.
"""

from __future__ import annotations

from collections.abc import Iterable

from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_spec import JobSpec, features_of
from elf.jobmaster.plan.features import lacking, own
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Item

NOBODY: frozenset[NodeId] = frozenset()


class Abilities:
    """Those of `me`, with these packed features (b"": of this version of elf), and of the agents in the directory. Memory: the
    agents that know other features than this one."""

    def __init__(self, me: NodeId, features: bytes, directory: Directory) -> None:
        self.me, self.features = me, features or own()
        self._directory = directory
        self._others: set[NodeId] = set()
        self._noted: dict[JobId, frozenset[NodeId]] = {}

    def is_able(self, spec: JobSpec) -> bool:
        """Whether this node can take part. O(1); once for each version more."""
        return not lacking(self.features, spec.needs)

    def unable(self, spec: JobSpec, nodes: Iterable[NodeId]) -> frozenset[NodeId]:
        """Rule Features*: those of these nodes that cannot take part. O(nodes)."""
        needs = spec.needs
        return frozenset(node for node in nodes if lacking(self._of(node), needs))

    def note_unable(self, spec: JobSpec, nearest: Iterable[NodeId]) -> frozenset[NodeId]:
        """Those of the nodes nearest to the job, which may include this one, that cannot take part. They are noted."""
        unable = self.unable(spec, nearest)
        if unable:
            self._noted[spec.id] = unable
        else:
            self._noted.pop(spec.id, None)
        return unable

    def noted(self, job: JobId) -> frozenset[NodeId]:
        """As `note_unable` found last."""
        return self._noted.get(job, NOBODY)

    def _of(self, node: NodeId) -> bytes:
        item = None if node == self.me else self._directory.get("agent", node)
        return self.features if item is None else self._read(item)

    def _read(self, item: Item) -> bytes:
        features = features_of(item.body) or self.features
        if features != self.features:
            self._others.add(item.name)
        return features

    def have_changed(self, items: Iterable[Item]) -> bool:
        """Whether one of these new items may change who can take part in some job."""
        return any(item.kind == "job" or (item.kind == "agent" and self._is_other(item)) for item in items)

    def _is_other(self, item: Item) -> bool:
        return item.name in self._others or self._read(item) != self.features
