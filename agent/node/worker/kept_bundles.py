"""The uncommitted bundles of one worker, and the queue of bundles for its node's reducer."""

from __future__ import annotations

from elf.srt.messages.bundles import again
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Bundle, BundleId, Position, Slot
from elf.srt.messages.sizes import bundle_bytes

MOVED = (
    "{} of this agent's files are counted further than this run of it has reported, as after its state folder was lost or "
    "restored; it continues at the counted positions"
)
"""Notice of committed positions past what bundles cover. It names no culprit: this worker does not know which run or process
reported them, and two processes with one key are found when they connect (`srt/transport/admission.py`)."""


class KeptBundles:
    """Bundles in the order of cutting. nbytes: of all of them. out: the queue for the reducer."""

    __slots__ = ("bundles", "nbytes", "out")

    def __init__(self) -> None:
        self.bundles: dict[BundleId, Bundle] = {}
        self.nbytes = 0
        self.out: list[Bundle] = []

    def __len__(self) -> int:
        return len(self.bundles)

    def add(self, bundle: Bundle) -> None:
        """Queue a bundle, and keep it until it is committed."""
        self.bundles[bundle.id] = bundle
        self.nbytes += bundle_bytes(bundle)
        self.out.append(bundle)

    def pop(self, id: BundleId) -> Bundle | None:
        """Remove a kept bundle; None if it is not kept."""
        bundle = self.bundles.pop(id, None)
        if bundle is not None:
            self.nbytes -= bundle_bytes(bundle)
        return bundle

    def resend(self, ids: tuple[BundleId, ...]) -> None:
        """Queue kept bundles again; without ids all of them."""
        for id in ids or tuple(self.bundles):
            bundle = self.bundles.get(id)
            if bundle is not None:
                self.out.append(again(bundle, id))

    def take(self) -> list[Bundle]:
        """The queued bundles, in order; the queue is empty afterwards."""
        if not self.out:
            return []
        taken, self.out = self.out, []
        return taken

    def clear(self) -> None:
        """Drop all bundles."""
        self.bundles.clear()
        self.nbytes = 0
        self.out.clear()

    def is_within(self, slot: Slot, position: Position) -> bool:
        """Whether a position lies inside a kept bundle's span. This worker's bundles cannot cause that, since a bundle is in the
        log as a whole or not at all."""
        spans = (each.contributions[slot] for each in self.bundles.values() if slot in each.contributions)
        return any(start < position.offset < end for start, end, _ in spans)

    def check(self, me: NodeId) -> None:
        """Raise AssertionError unless the spans of each file follow one another. O(contributions)."""
        assert self.nbytes == sum(bundle_bytes(bundle) for bundle in self.bundles.values())
        ends: dict[Slot, int] = {}
        for bundle in self.bundles.values():
            assert bundle.contributions, "a bundle without any file"
            for slot, (start, end, _) in bundle.contributions.items():
                assert slot[0] == me
                assert start <= end
                assert ends.get(slot, start) <= start, f"read twice without forgetting at {slot}"
                ends[slot] = end
