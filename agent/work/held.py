"""Small blocks at the front of a source that are read, and not parsed yet.

A log with little traffic has a few lines at each read. Parsing them, and giving them to each job, costs nearly as much as it does
for many lines. So while no job awaits a line, and none is due, they wait until they are many, or for `HOLD_S`. Their bytes are
read, so a log that is emptied meanwhile loses none of them. For the jobs the front is where these blocks begin.

Only one file has such lines at a time: in a source with several live files they hardly wait.
"""

from __future__ import annotations

from msgspec.structs import replace

from elf.agent.files.blocks import Block

HOLD_S = 1.0
"""How long lines wait at most, until the next beat after that."""
HOLD_BYTES = 64 << 10


class Held:
    """Blocks of one file that follow one another, as one. Falsy while there are none."""

    def __init__(self) -> None:
        self._block: Block | None = None
        self._data = bytearray()
        self._since_s = 0.0

    def __bool__(self) -> bool:
        return self._block is not None

    @property
    def nbytes(self) -> int:
        return len(self._data)

    def add(self, block: Block, now_s: float) -> bool:
        """Hold a copy of the block too. False if it must be parsed now, after those that are held. O(its bytes)."""
        held = self._block
        is_plain = not (block.first or block.last or block.too_long) and len(block.data)
        if not is_plain or len(self._data) + len(block.data) > HOLD_BYTES:
            return False
        if held is None:
            self._block, self._since_s = replace(block, data=b""), now_s
        elif held.file.generation != block.file.generation or held.end != block.start:
            return False
        else:
            held.end, held.size_done = block.end, block.size_done
        self._data += block.data
        return True

    def is_over(self, now_s: float) -> bool:
        """Whether they have waited long enough; also if the clock went back."""
        return not 0 <= now_s - self._since_s < HOLD_S

    def take(self) -> Block | None:
        """The blocks as one, no longer held."""
        block, data = self._block, self._data
        if block is None:
            return None
        self._block, self._data = None, bytearray()
        block.data = memoryview(data)
        return block

    @property
    def files(self) -> set[int]:
        """The generation of the file whose lines are held, if there are any."""
        return set() if self._block is None else {self._block.file.generation}

    def front_of(self, generation: int) -> int | None:
        """Where the held lines of that file begin; None if there are none."""
        held = self._block
        return held.start if held is not None and held.file.generation == generation else None
