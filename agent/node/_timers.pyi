from elf.agent.node.timers import Timed

class Timers:
    """A queue of cores by deadline. `watch` a core whenever its deadline may be earlier than before. O(log n) each.

    A deadline that has moved later leaves its entry in place; `refresh` moves the entry, or `due` does when its time comes. A
    deadline that has moved earlier gets a second entry, which voids the first. Cores are compared by identity, and have one
    owner.
    """

    @property
    def next_us(self) -> int | None:
        """The earliest time at which a core may be due. Amortised O(log n)."""

    def watch(self, core: Timed, owner: object = None) -> None:
        """Read the core's deadline again. `due` returns `owner` with it."""

    def forget(self, core: Timed) -> None:
        """Remove a core, and keep no reference to it. O(1)."""

    def refresh(self) -> None:
        """Move entries at the front whose deadlines have moved later. If many have, this saves a node most needless wake-ups.
        O(log n) for each entry that is moved."""

    def is_watched(self, core: Timed) -> bool:
        """Whether `due` will return the core when its deadline comes."""

    def due(self, now: int) -> list[tuple[Timed, object]]:
        """Remove and return the cores whose deadline has come, with their owners. Watch each again after its tick."""
