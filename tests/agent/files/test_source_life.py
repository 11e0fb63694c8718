"""The life of a log, at random: written, rotated in every way, packed, deleted, while the agent reads, waits and restarts."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.rigs.source_rig import GRACE_S, Log, Reader, compress


class LifeOfALog(RuleBasedStateMachine):
    """The model is the list of lines that were written: at the end each must have been read once."""

    def __init__(self) -> None:
        super().__init__()
        self.above = Path(tempfile.mkdtemp())
        self.moves = 0
        self.folder = self.above / "0"
        self.folder.mkdir()
        self.log = Log(self.folder)
        self.down = False

    @initialize(pattern=st.sampled_from(["access.log*", "access.log"]), before=st.integers(1, 60))
    def start(self, pattern: str, before: int) -> None:
        self.matches_rotated = pattern.endswith("*")
        self.log.append(before)
        self.reader = Reader(str(self.folder / pattern))
        self.reader.step()

    @rule(count=st.one_of(st.integers(1, 5), st.integers(20, 200)))
    def append(self, count: int) -> None:
        self.log.append(count)

    @rule()
    def begin_a_line(self) -> None:
        self.log.begin_line()

    @rule(late=st.integers(0, 3))
    def rename_and_create(self, late: int) -> None:
        self.look()
        self.log.rename()
        self.log.append(late)
        self.log.reopen()

    @rule(late=st.integers(0, 3))
    def copy_and_truncate(self, late: int) -> None:
        self.look()
        self.log.copy()
        self.look()
        self.log.truncate()
        self.log.append(late)

    @rule(number=st.integers(1, 3))
    def pack(self, number: int) -> None:
        path = self.log.rotated(number)
        if path.exists():
            compress(path)

    @rule()
    def delete_what_was_read(self) -> None:
        """Delete the oldest rotation, as with `rotate 3`; only if it was read, since unread lines would be lost."""
        self.read_all()
        oldest = max(
            self.folder.glob("access.log.*"), key=lambda path: int(path.name.split(".")[2]), default=None
        )
        if oldest is not None:
            oldest.unlink()

    @rule(blocks=st.integers(1, 3))
    def read_some(self, blocks: int) -> None:
        if not self.down:
            self.reader.step(blocks)

    @rule()
    def read_all(self) -> None:
        self.up()
        while self.reader.step():
            pass

    def look(self) -> None:
        if not self.down:
            self.reader.now += 0.1
            self.reader.source.scan(self.reader.now)

    @rule()
    def wait(self) -> None:
        if not self.down:
            self.reader.wait(GRACE_S + 1)

    def leave_a_trace(self) -> None:
        """Rotated files that no pattern matches are recognised by their content read before, so there must be some."""
        if not self.matches_rotated:
            self.log.append(1)
            self.read_all()

    @rule()
    def restart(self) -> None:
        self.up()
        self.leave_a_trace()
        self.reader.restart()

    @precondition(lambda self: not self.down)
    @rule()
    def stop(self) -> None:
        self.leave_a_trace()
        self.reader.stop()
        self.down = True

    @rule(is_kept=st.booleans())
    def move_to_another_folder(self, is_kept: bool) -> None:
        """The logs are copied while the agent is down, and its pattern is changed. Less than 1 KiB is no evidence."""
        self.up()
        self.log.append(30)
        self.read_all()
        self.reader.stop()
        self.log.end_line()
        self.log.close()
        self.moves += 1
        former, self.folder = self.folder, self.above / str(self.moves)
        shutil.copytree(former, self.folder)
        if not is_kept:
            shutil.rmtree(former)
        self.log.move(self.folder)
        self.reader.patterns = (str(self.folder / ("access.log*" if self.matches_rotated else "access.log")),)
        self.down = True

    def up(self) -> None:
        if self.down:
            self.reader.resume()
            self.down = False

    @invariant()
    def no_line_twice(self) -> None:
        if hasattr(self, "reader"):
            twice = [line for line, count in Counter(self.reader.lines).items() if count > 1]
            assert not twice

    def teardown(self) -> None:
        if hasattr(self, "reader"):
            self.log.end_line()
            self.up()
            self.reader.settle()
            self.reader.close()
        self.log.close()
        shutil.rmtree(self.above)
        if hasattr(self, "reader"):
            assert sorted(self.reader.lines) == self.log.written, self.reader.notices
            assert self.reader.source.lost_bytes == 0


LifeOfALog.TestCase.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, derandomize=True
)
TestLifeOfALog = LifeOfALog.TestCase
