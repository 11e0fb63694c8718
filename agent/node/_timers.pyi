from elf.agent.node.timers import Timed

class Timers:
    """The earliest deadlines first. `watch` a core whenever it may have an earlier one. O(log n) each.

    A deadline that moved away leaves its entry where it was; `refresh` puts it off, or `due` does when its time comes. One that
    came closer gets a second entry; the first counts no more. Cores are told apart by identity, and have one owner.
    """

    @property
    def next_us(self) -> int | None:
        """When something may be due. Amortised O(log n)."""

    def watch(self, core: Timed, owner: object = None) -> None:
        """Look at the core's deadline again. `owner` comes back with it."""

    def forget(self, core: Timed) -> None:
        """Never look at this one again, nor hold it. O(1)."""

    def refresh(self) -> None:
        """Put off what would be found early next. Called where many deadlines have moved away, it saves a node most of the times
        that it would wake up for nothing. O(log n) for each that is put off."""

    def is_watched(self, core: Timed) -> bool:
        """Whether it will be found when its deadline comes."""

    def due(self, now: int) -> list[tuple[Timed, object]]:
        """Take out the cores whose deadline has come, with their owners. Each must be watched again after its tick."""
