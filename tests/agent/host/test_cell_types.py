"""The values of cells that come from another agent: each fits its type, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from random import Random

import msgspec
import pytest

from elf.agent.host.cell_types import _fits, check_pane
from elf.agent.run.engine import RunOptions, run
from elf.errors import PeerError
from elf.jobmaster.windows.result import PaneState, StateValues
from tests.rigs.agreement import AGGREGATES
from tests.rigs.lines import NGINX_FORMAT, lines

SKETCHED = [
    "approx_count_distinct(path)", "approx_set(client_ip)", "approx_percentile(bytes, 0.9)", "mode(path)", "mode(request_time)",
    "mode(CAST(bytes AS DOUBLE))", "min(path)", "max_by(request_time, bytes)", "min_by(path, request_time)", "first(bytes)",
    "sum(CAST(bytes AS DOUBLE) / 7)", "stddev(CAST(bytes AS DOUBLE) / 7)",
]  # fmt: skip


class States:
    """A lake that checks the states of panes, as an agent does before it stores them."""

    wants_open, wants_state, pending_bytes = False, True, 0

    def __init__(self) -> None:
        self.kept: list[PaneState] = []

    def next_epoch(self, job: str) -> int:
        return 0

    def put_state(self, state: PaneState) -> None:
        check_pane(state)
        self.kept.append(state)

    def put(self, window: object) -> None:
        raise AssertionError("it takes states")

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def states(aggregate: str, log: Path) -> list[PaneState]:
    sink = States()
    query = f"SELECT window, status, {aggregate} AS a FROM access GROUP BY window(time, '1 minute'), status"
    run(RunOptions(query, (str(log),), NGINX_FORMAT), [sink])
    return sink.kept


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cells") / "access.log"
    path.write_text("\n".join(lines(200, seed=4)) + "\n")
    return path


@pytest.mark.parametrize("aggregate", [*AGGREGATES, *SKETCHED])
def test_the_state_of_every_aggregate_is_taken(log: Path, aggregate: str) -> None:
    assert len(states(aggregate, log)) > 1


@pytest.mark.parametrize(
    "aggregate", ["approx_count_distinct(path)", "approx_set(path)", "sum(CAST(bytes AS DOUBLE) / 7)"]
)
def test_other_values_in_the_place_of_sketches_and_sums_are_refused(log: Path, aggregate: str) -> None:
    state = states(aggregate, log)[0]
    for wrong in ({4096: 1}, {7: 64}, {"x": 1}, [1 << 63], ["x"], b"bytes", {3: "1.5"}, {3: "1" * 39}):
        columns: list[list[object]] = [[200], [wrong]]
        columns[1:1] = [[1]] * (len(state.columns) - 2)
        with pytest.raises(PeerError):
            check_pane(msgspec.structs.replace(state, values=Given(columns)))


class Given(StateValues):
    """The values of one part."""

    raw_bytes, digest = 0, b""

    def __init__(self, columns: list[list[object]]) -> None:
        self._part, self._width = msgspec.msgpack.encode(columns), len(columns)

    def parts(self) -> Iterator[tuple[bytes, bool]]:
        yield self._part, False

    def __len__(self) -> int:
        return self._width


def fits(text: str, precision: int, scale: int) -> bool:
    """By definition: so many digits before and after the point at most, and no exponent."""
    try:
        number = Decimal(text) if text.isascii() and "_" not in text and text == text.strip() else None
    except InvalidOperation:
        return False
    if number is None or not number.is_finite():
        return False
    exponent = number.as_tuple().exponent
    return (
        isinstance(exponent, int)
        and -scale <= exponent <= 0
        and abs(number) < Decimal(10) ** (precision - scale)
    )


def test_a_decimal_is_taken_as_its_definition_says() -> None:
    rng, taken = Random(7), 0
    for _ in range(5_000):
        text = "".join(rng.choice("01234567890123456789.-+e_ ٣N") for _ in range(rng.randrange(8)))
        precision = rng.randrange(1, 7)
        scale = rng.randrange(precision + 1)
        assert _fits(text, precision, scale) == fits(text, precision, scale), (text, precision, scale)
        taken += fits(text, precision, scale)
    assert taken > 300
