"""What an agent logs: notices of its node, each once for its kind, peer and interval, and the milestones of its life."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable

from elf.agent.node.mesh_node import MeshNode
from elf.srt.messages.effects import Notice
from elf.srt.messages.ids import JobId, short

INTERVAL_S = 60.0
REMEMBERED_MAX = 1_000


class NoticeLog:
    """`counts`: notices by kind. `names`: a peer's name for operators. Notices without a peer (about an unidentified host, about
    this agent) are logged once for each text and interval."""

    def __init__(self, say: Callable[[str], None], names: Callable[[bytes], str] = short) -> None:
        self.counts: Counter[str] = Counter()
        self._say, self._names = say, names
        self._last: OrderedDict[tuple[str, bytes], tuple[float, int]] = OrderedDict()

    def take(self, notice: Notice, now_s: float) -> None:
        """Count a notice, and log it if that is due. now_s: of a clock that never steps."""
        self.counts[notice.kind] += 1
        key = notice.kind, notice.peer or notice.text.encode()
        at, silent = self._last.get(key, (-INTERVAL_S, 0))
        if now_s - at < INTERVAL_S:
            self._last[key] = at, silent + 1
            return
        again = f" ({silent} more like this since)" if silent else ""
        self._last[key] = now_s, 0
        self._last.move_to_end(key)
        while len(self._last) > REMEMBERED_MAX:
            self._last.popitem(last=False)
        self._say(
            f"{self._names(notice.peer)}: {notice.text}{again}" if notice.peer else f"{notice.text}{again}"
        )


class Milestones:
    """Logs when the agent joins other agents, and which jobs it is, or no longer is, the master of."""

    def __init__(self, say: Callable[[str], None], names: Callable[[bytes], str]) -> None:
        self._say, self._names = say, names
        self._has_joined = False
        self._masters: dict[JobId, str] = {}

    def look(self, node: MeshNode) -> None:
        """Log what has changed since the last look."""
        known = node.overlay.acquaintances()
        if known and not self._has_joined:
            self._has_joined = True
            more = f" and {len(known) - 1} more" if len(known) > 1 else ""
            self._say(f"joined the mesh of {self._names(known[0])}{more}")
        masters = {seat.job: seat.spec.name for seat in node.seats.values() if seat.master is not None}
        for job in masters.keys() - self._masters.keys():
            self._say(f"master of job {masters[job]}")
        for job in self._masters.keys() - masters.keys():
            self._say(f"no longer master of job {self._masters[job]}")
        self._masters = masters
