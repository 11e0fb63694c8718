"""The tree against a dict, op by op, with nodes so small and caps so low that everything splits and spills."""

from __future__ import annotations

import errno
import os
import random
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elf.cbt import tree as tree_module
from elf.cbt._kernel import make_rows, merge
from elf.cbt.budget import FRAGMENT_OVERHEAD_BYTES, Budget
from elf.cbt.root_buffer import READ_RUNS_MAX
from elf.cbt.tree import CHUNK_BYTES, COLD_BYTES, Sizes, Tree
from tests.cbt.cbt_model import OPS, Model, Record, add, colliding_key, model_of, read, records, rows_of

panes = st.none() | st.integers(-3, 5)


def within(model: Model, start: int | None, stop: int | None) -> Model:
    return {
        place: lanes
        for place, lanes in model.items()
        if (start is None or place[0] >= start) and (stop is None or place[0] < stop)
    }


class TreeAgainstDict(RuleBasedStateMachine):
    """Two trees under one budget, so that each makes the other spill."""

    @initialize(
        cap=st.sampled_from([3_000, 30_000, 1 << 30]),
        root=st.sampled_from([600, 5_000, 1 << 20]),
        node=st.sampled_from([500, 4_000]),
        fanout=st.sampled_from([2, 3, 8]),
    )
    def start(self, cap: int, root: int, node: int, fanout: int) -> None:
        self.budget = Budget(cap)
        self.trees = [Tree(OPS, self.budget, Sizes(root, node, fanout)) for _ in range(2)]
        self.models: list[Model] = [{}, {}]

    @rule(which=st.integers(0, 1), parts=st.lists(st.lists(records, max_size=40), max_size=4))
    def insert(self, which: int, parts: list[list[Record]]) -> None:
        for part in parts:
            self.trees[which].insert(rows_of(part))
            add(self.models[which], part)

    @rule(which=st.integers(0, 1), start=panes, stop=panes)
    def flush(self, which: int, start: int | None, stop: int | None) -> None:
        assert read(self.trees[which].flush(start, stop)) == within(self.models[which], start, stop)

    @rule(which=st.integers(0, 1), start=panes, stop=panes)
    def drain(self, which: int, start: int | None, stop: int | None) -> None:
        expected = within(self.models[which], start, stop)
        assert read(self.trees[which].drain(start, stop)) == expected
        for place in expected:
            del self.models[which][place]

    @rule(which=st.integers(0, 1), start=panes, stop=panes)
    def drain_a_little(self, which: int, start: int | None, stop: int | None) -> None:
        """A drain that its caller abandons: rows that were not yielded are still there."""
        drain = self.trees[which].drain(start, stop)
        for place in read([rows for rows in [next(drain, None)] if rows is not None]):
            del self.models[which][place]
        del drain

    @rule(which=st.integers(0, 1), part=st.lists(records, max_size=40))
    def insert_into_the_other_while_flushing(self, which: int, part: list[Record]) -> None:
        seen = []
        for rows in self.trees[which].flush():
            seen.append(rows)
            self.trees[1 - which].insert(rows_of(part))
            add(self.models[1 - which], part)
        assert read(seen) == self.models[which]

    @rule(size=st.sampled_from([0, 2_000, 1 << 20]))
    def reserve(self, size: int) -> None:
        self.budget.reserve("dictionary", size)

    @rule(which=st.integers(0, 1))
    def compress(self, which: int) -> None:
        self.trees[which].compress()

    @rule(which=st.integers(0, 1), stop=st.integers(-3, 6), cold=st.sampled_from([0, 500, 5_000]))
    def cool(self, which: int, stop: int, cold: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tree_module, "COLD_BYTES", cold)
            self.trees[which].cool(stop)

    @precondition(lambda self: hasattr(self, "trees"))
    @invariant()
    def sound(self) -> None:
        for tree in self.trees:
            tree.check()
        reserved = self.budget.used - sum(tree.nbytes for tree in self.trees)
        assert reserved in (0, 2_000, 1 << 20)

    def teardown(self) -> None:
        if not hasattr(self, "trees"):
            return
        for tree, model in zip(self.trees, self.models, strict=True):
            assert read(tree.flush()) == model
            tree.close()
        self.budget.reserve("dictionary", 0)
        assert (self.budget.used, self.budget.spilled) == (0, 0)
        self.budget.close()


TestTreeAgainstDict = pytest.mark.slow(TreeAgainstDict.TestCase)
TestTreeAgainstDict.settings = settings(
    derandomize=True, max_examples=60, stateful_step_count=25, deadline=None
)


def shuffled(n: int, seed: int = 1) -> list[Record]:
    rng = random.Random(seed)
    order = list(range(n))
    rng.shuffle(order)
    return [(i % 3, b"/shop/item/%06d" % i, (1, i, i, -i)) for i in order]


def fill(tree: Tree, some: list[Record], each: int = 500) -> None:
    for at in range(0, len(some), each):
        tree.insert(rows_of(some[at : at + each]))


def hexadecimal(n: int) -> list[Record]:
    """Keys of 40 bytes that hardly compress: about 2.5 MB in 20,000 rows, a fifth of it packed."""
    rng = random.Random(2)
    return [(i % 3, b"%040x" % rng.getrandbits(160), (1, i, i, -i)) for i in range(n)]


def test_a_deep_tree_under_a_low_cap(tmp_path: Path) -> None:
    some = hexadecimal(20_000)
    budget = Budget(400_000, tmp_path)
    tree = Tree(OPS, budget, Sizes(80_000, 60_000, 4))
    held = 0
    for at in range(0, len(some), 250):
        tree.insert(rows_of(some[at : at + 250]))
        held = max(held, budget.used)
    assert held <= 400_000
    assert tree.spilled_bytes > 0
    assert not list(tmp_path.iterdir()), "the spill file has no name"
    tree.check()
    expected = model_of(some)
    assert read(tree.flush()) == expected
    assert read(tree.drain(1, 2)) == within(expected, 1, 2)
    tree.check()
    assert read(tree.drain()) == {**within(expected, 0, 1), **within(expected, 2, 3)}
    assert (tree.nbytes, tree.spilled_bytes, budget.used, budget.spilled) == (0, 0, 0, 0)


def test_draining_stays_within_the_cap() -> None:
    budget = Budget(400_000)
    tree = Tree(OPS, budget)
    fill(tree, hexadecimal(20_000), 100)
    assert tree.spilled_bytes > 0
    count = 0
    for rows in tree.drain():
        count += len(rows)
        assert budget.used <= 400_000
    assert count == 20_000


def test_equal_hashes_do_not_break_a_bound() -> None:
    """Sixteen bytes chosen by an attacker: all rows have one hash, and leaves split between their keys."""
    some: list[Record] = [(0, colliding_key(i * 7919 % 5000), (1, i, i, i)) for i in range(5000)]
    budget = Budget(1 << 30)
    tree = Tree(OPS, budget, Sizes(8_000, 8_000, 4))
    fill(tree, some, 100)
    tree.check()
    assert sum(1 for _ in tree._walk()) > 50
    assert read(tree.drain()) == model_of(some)


def test_repeated_keys_stay_small() -> None:
    """Rows that fold never leave the root's buffer."""
    tree = Tree(OPS, Budget(1 << 30), Sizes(100_000, 100_000, 8))
    some: list[Record] = [(0, b"%d" % (i % 500), (1, 1, i, i)) for i in range(20_000)]
    fill(tree, some)
    assert tree.nbytes < 200_000
    assert tree._top is None
    assert read(tree.flush()) == model_of(some)


def test_many_small_inserts_are_merged_now_and_then() -> None:
    """A row takes part in a logarithmic number of merges."""
    tree = Tree(OPS, Budget(1 << 30))
    some = shuffled(3000)
    merged = 0

    def counting(runs: list[object], ops: object) -> object:
        nonlocal merged
        merged += sum(len(run) for run in runs)  # type: ignore[arg-type, misc]
        return merge(runs, ops)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("elf.cbt.root_buffer.merge", counting)
        fill(tree, some, 1)
    assert merged < 3000 * 12
    assert read(tree.drain()) == model_of(some)


def test_a_window_that_grows_is_read_from_few_runs() -> None:
    tree, some = Tree(OPS, Budget(1 << 30)), shuffled(400)
    model: Model = {}
    for start in range(0, len(some), 10):
        tree.insert(rows_of(some[start : start + 10]))
        add(model, some[start : start + 10])
        assert read(tree.flush()) == model
        assert len(tree._root.runs) <= 2 * READ_RUNS_MAX
    tree.check()


def test_a_full_disk_is_said_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(250_000)
    tree = Tree(OPS, budget, Sizes(40_000, 40_000, 4))
    some = hexadecimal(12_000)
    real = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if offset > 60_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:3000], offset)

    monkeypatch.setattr(os, "pwrite", full)
    refused = 0
    for at in range(0, len(some), 300):
        try:
            tree.insert(rows_of(some[at : at + 300]))
        except OSError as error:
            refused += error.errno == errno.ENOSPC
        tree.check()
    assert refused
    assert read(tree.flush()) == model_of(some)
    monkeypatch.setattr(os, "pwrite", real)
    budget.settle()
    assert budget.used <= budget.cap_bytes
    assert read(tree.drain()) == model_of(some)


def test_panes_in_time_order_leave_from_the_front() -> None:
    """A live agent: newer panes arrive, the oldest are drained, nothing else accumulates."""
    budget = Budget(1 << 30)
    tree = Tree(OPS, budget, Sizes(20_000, 10_000, 4))
    largest = 0
    for pane in range(100):
        some: list[Record] = [(pane, b"%d" % i, (1, i, 0, 0)) for i in range(60)]
        tree.insert(rows_of(some))
        if pane >= 20:
            assert read(tree.drain(None, pane - 19)) == model_of(
                [(pane - 20, b"%d" % i, (1, i, 0, 0)) for i in range(60)]
            )
        tree.check()
        largest = max(largest, tree.nbytes)
    assert largest < 200_000
    assert len(read(tree.flush(90, 95))) == 5 * 60
    assert list(tree.flush(95, 90)) == []
    tree.close()
    assert budget.used == 0


@pytest.mark.slow
def test_runs_larger_than_the_root_stay_under_the_cap() -> None:
    """Rows of one pane after all others, as of a log in which each line has another path: all of them go down one path."""
    from elf.cbt.rows import Op

    cap, n, rng = 16 << 20, 48_000, random.Random(1)
    budget = Budget(cap)
    tree = Tree([Op.SUM64], budget)
    tracemalloc.start()
    for at in range(40):
        keys = np.frombuffer(rng.randbytes(40 * n), dtype=np.uint8).copy()
        ends = np.arange(40, 40 * n + 1, 40, dtype=np.uint64)
        run = make_rows(at // 20, keys, ends, None, np.ones((1, n), np.int64), [Op.SUM64])
        del keys, ends
        size = run.nbytes
        tree.insert(run)
        del run
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 3 * Sizes.under(budget.cap_bytes).root_bytes
    assert most <= cap + size, most / cap
    assert sum(len(rows) for rows in tree.flush()) == 40 * n
    tree.close()
    assert budget.used == 0
    budget.close()


def test_large_chunks_are_cut() -> None:
    n = 70_000
    keys = np.arange(n, dtype=np.uint32).view(np.uint8)
    from elf.cbt.rows import Op

    tree = Tree([Op.SUM64], Budget(1 << 30))
    ends = np.arange(4, 4 * n + 1, 4, dtype=np.uint64)
    tree.insert(make_rows(0, keys, ends, None, np.ones((1, n), np.int64), [Op.SUM64]))
    for read_all in (tree.flush, tree.drain):
        chunks = [rows.nbytes for rows in read_all()]
        assert len(chunks) > 1
        assert max(chunks) < 2 * CHUNK_BYTES
    assert tree.nbytes == 0


def test_rows_that_come_late_for_a_drained_leaf_split_its_neighbour() -> None:
    """The neighbour has the range of the leaf now, below where its own began."""
    trees = TreeAgainstDict()
    trees.start(cap=3_000, root=600, node=500, fanout=2)
    none = (0, 0, 0, 0)
    one, other = colliding_key(0), colliding_key(1)
    trees.insert(
        0, [[(0, b"", none)] * 6 + [(0, one, none), (1, one, none), (1, other, none), (2, b"", none)]]
    )
    late = [(0, b"", none)] * 3 + [(0, one, none), (1, b"", none)]
    trees.insert(0, [late, [(pane, b"", none) for pane in (0, 1, 2)]])
    trees.drain_a_little(0, None, None)
    trees.drain_a_little(0, None, None)
    keys = [*[b""] * 4, b"\0", b"\0\0", one, other]
    trees.insert(0, [[*((0, key, none) for key in keys), (1, b"", none), (-1, b"", none)]])
    trees.sound()
    trees.flush(0, None, None)


def test_cold_panes_are_in_the_spill_file_and_a_read_of_a_hot_one_leaves_them_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In time order, as they come from a log: what is held then is the hot ones, and an object for each fragment of cold ones."""
    budget = Budget(1 << 30)
    tree, kept = Tree(OPS, budget), Tree(OPS, budget)
    model: Model = {}
    for pane in range(200):
        part = [(pane, b"/item/%03d" % i, (1, i, i, -i)) for i in range(50)]
        tree.insert(rows_of(part))
        kept.insert(rows_of(part))
        add(model, part)
        tree.cool(pane - 2)
    assert tree.raw_bytes == pytest.approx(kept.raw_bytes, rel=0.01)
    assert tree.buffer_bytes < 1.5 * COLD_BYTES
    assert tree.nbytes - tree.buffer_bytes < 20 * FRAGMENT_OVERHEAD_BYTES, "less than the frames"
    assert 10_000 < tree.spilled_bytes < kept.nbytes / 4
    unpacked = Mock(wraps=budget.read)
    monkeypatch.setattr(budget, "read", unpacked)
    assert read(tree.flush(198, None)) == within(model, 198, None)
    assert not unpacked.called
    assert read(tree.flush(3, 5)) == within(model, 3, 5)
    assert unpacked.call_count == 1
    late = [(3, b"/item/000", (1, 7, 7, -7)), (150, b"/late", (1, 8, 8, -8))]
    tree.insert(rows_of(late))
    add(model, late)
    assert read(tree.flush()) == model
    for pane in range(0, 200, 10):  # as retention passes
        assert read(tree.drain(None, pane)) == {
            place: model.pop(place) for place in within(model, None, pane)
        }
        tree.check()
    assert read(tree.flush()) == model
    for each in (tree, kept):
        each.close()
    assert budget.used == 0
