"""Notices of a node for its operator: counted, and logged once for each kind, peer and interval. Those without a peer (about an
unidentified host, about this agent) are logged once for each text and interval."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable

from elf.srt.messages.effects import Notice
from elf.srt.messages.ids import short

INTERVAL_S = 60.0
REMEMBERED_MAX = 1_000


class NoticeLog:
    """`counts`: notices by kind. `names`: a peer's name for operators."""

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
