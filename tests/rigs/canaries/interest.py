"""How the rules of interest are broken: methods in the place of others (`tests.rigs.canaries.rules`)."""

from __future__ import annotations

from msgspec.structs import replace

from elf.agent.node.worker.delta_worker import DeltaWorker
from elf.jobmaster.delivery.watchers import Watchers
from elf.srt.messages.messages import Adopt, Path
from elf.srt.tree.place import Place

_follow = Place.follow


def unannounced(place: Place, watched: bool) -> bool:
    """The root takes note, and sends the announcement that it made before."""
    place.watched = watched
    return False


def deaf(place: Place, message: Adopt | Path) -> bool:
    """Interest is lost on its way; that nobody watches is not."""
    return _follow(place, replace(message, watched=message.watched and place.watched))


def outliving(watchers: Watchers, now: int) -> None:
    """No watcher expires."""
    for watcher in watchers._watchers.values():
        watcher.expires_at = now + watchers.expiry_us


def voiding(worker: DeltaWorker, now: int) -> None:
    """Drop the outstanding Read instead of repeating it."""
    if worker._reading is not None and worker._cut_at is not None:
        worker._request += 1
        worker._reading, worker._cut_at = None, now + (1 << 40)
