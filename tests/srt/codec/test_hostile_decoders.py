"""Every decoder of foreign bytes: arbitrary bytes, and altered valid ones, give a value or the one documented error."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.agent.control.protocol import JobGet, MeshStatus, frame, request_of
from elf.agent.host.cell_types import check_pane
from elf.cbt.frame import unpack
from elf.errors import ElfError, PeerError, StateError
from elf.jobmaster.delivery.states import PackedValues
from elf.jobmaster.directory.audit import Audited, decode_audited
from elf.jobmaster.directory.job_spec import (
    AgentAdvert,
    Change,
    Lost,
    ballot_item,
    ballot_of,
    decode_agent,
    decode_job,
    decode_lost,
    jobs_of,
    lost_item,
)
from elf.jobmaster.directory.known_schedule import decode_schedule, schedule_item
from elf.jobmaster.log.log_codec import LOG
from elf.jobmaster.log.record_codec import RecordDecoder, RecordEncoder
from elf.jobmaster.plan.codec import decode as decode_plan
from elf.jobmaster.plan.codec import encode as encode_plan
from elf.jobmaster.windows.result import Lines, PaneState, StateColumn, encode_part
from elf.srt.codec.parts import pack_parts
from elf.srt.codec.pieces import LinkCodec
from elf.srt.codec.rosters import RosterDecoder, RosterEncoder
from elf.srt.codec.rows import WireRows, pack_rows, unpack_rows
from elf.srt.codec.wire import KINDS, decode, encode
from elf.srt.messages.addresses import parse_address
from elf.srt.messages.ids import node_id
from elf.srt.messages.messages import Item, Line, Piece, StateRequest
from elf.srt.messages.typed import parse
from elf.srt.security.certificates import Authority, Trust, parse_proof
from elf.srt.security.items import sign_item, signer_of
from elf.srt.transport import handshake
from tests.rigs import wire_values
from tests.rigs.master_rig import spec_of
from tests.rigs.mesh_lines import plan_of

NOW_S = 1_790_000_000
AUTHORITY = Authority(bytes(range(32)))
KEYS = AUTHORITY.issue("web1", "agent", NOW_S)
OPERATOR = AUTHORITY.issue("ann", "operator", NOW_S)
RNG = Random(11)
COLUMNS = (
    StateColumn("path", "string", "key"),
    StateColumn("_acc0", "bigint", "sum"),
    StateColumn("_acc1", "decimal(38,2)", "sum"),
    StateColumn("_fam0", "map<int,bigint>", "buckets"),
    StateColumn("_fam1", "array<struct<_0:string,_1:decimal(10,1)>>", "distinct"),
)
GOOD: list[list[Any]] = [["/a", None], [1, 2], ["1.50", "-3"], [{1: 2}, {}], [[["x", "0.5"]], []]]


class Case(NamedTuple):
    """good: what honest others send. error: all that reading may raise."""

    good: list[bytes]
    read: Callable[[bytes], Any]
    error: type[Exception] | tuple[type[Exception], ...] = PeerError


def records() -> list[bytes]:
    return [RecordEncoder().encode(wire_values.write(number, RNG)) for number in range(1, 8)]


def part(columns: list[list[Any]]) -> bytes:
    return encode_part([msgspec.msgpack.encode(column) for column in columns])


def pane(data: bytes, start: int = 0, end: int = 1_000_000) -> PaneState:
    packed = zstandard.ZstdCompressor().compress(data)
    values = PackedValues(((packed, False),), len(COLUMNS))
    return PaneState("hits", "v1", start, end, "final", (1, 1, 1), Lines(), COLUMNS, values, b"")


def piece(data: bytes) -> Any:
    return LinkCodec(1 << 19, LOG).take(Piece(data))


def item(kind: str, body: bytes, stamp: tuple[int, ...] = (1, 2)) -> Item:
    return Item(kind, node_id(KEYS.curve_public), stamp, body)


def read_ballot(data: bytes) -> Any:
    """The stamp of a ballot item contains all of it."""
    whole = data[: len(data) // 8 * 8]
    ballot = ballot_of(item("ballot", b"", struct.unpack(f">{len(whole) // 8}Q", whole)))
    return encode(StateRequest(b"J" * 16, ballot)) and decode(encode(StateRequest(b"J" * 16, ballot)))


CASES: dict[str, Case] = {
    "message": Case(
        [encode(wire_values.message(kind.type, RNG), LOG) for kind in KINDS], lambda d: decode(d, LOG)
    ),
    "piece of a link": Case(
        [
            LinkCodec(1 << 19, LOG).pieces(wire_values.message(kind, RNG))[0].payload
            for kind in wire_values.LINK_MESSAGES[:5]
        ],
        piece,
    ),
    "head of a packet": Case(
        [handshake.pack(handshake.PROOF, handshake.Proof(1, 1, "", bytes(32)))], handshake.kind_of
    ),
    "proof of a connection": Case(
        [handshake.pack(handshake.PROOF, handshake.Proof(5, 6, "h:1", KEYS.curve_public, KEYS.proof))],
        handshake.proof_of,
    ),
    "refusal": Case(
        [handshake.pack(handshake.REFUSAL, handshake.Refusal("proof", "no"))], handshake.refusal_of
    ),
    "certificate": Case([KEYS.proof, OPERATOR.proof], parse_proof),
    "trusted certificate": Case([KEYS.proof], lambda d: Trust(AUTHORITY.public).check(d, NOW_S)),
    "address": Case([b"10.0.0.1:7400", b"[::1]:1"], lambda d: parse_address(d.decode("latin-1")), ElfError),
    "signature of an item": Case(
        [sign_item(KEYS, item("agent", b"x"), NOW_S).signature],
        lambda d: signer_of(
            Trust(AUTHORITY.public), msgspec.structs.replace(item("agent", b"x"), signature=d), NOW_S, jobs_of
        ),
    ),
    "body of a job": Case(
        [spec_of(plan_of()).item().body],
        lambda d: decode_job(msgspec.structs.replace(spec_of(plan_of()).item(), body=d)),
    ),
    "body of an advert": Case(
        [AgentAdvert("web1", ("access",), 5).encode()], lambda d: decode_agent(item("agent", d, (5, 0)))
    ),
    "ballot": Case([struct.pack(">4Q", *ballot_item(b"J" * 16, (3, b"M" * 16)).stamp)], read_ballot),
    "schedule": Case(
        [
            schedule_item(
                b"J" * 16, (3, b"M" * 16), (1, b"d"), (Line(1, "v", 5, b""), Line(2, "w", 9, b""))
            ).body
        ],
        lambda d: decode_schedule(item("schedule", d, (3, 4, 5, 6, 7))),
    ),
    "lost changes": Case(
        [lost_item(b"J" * 16, 2, Lost((Change(1, "v", "split", 5),))).body],
        lambda d: decode_lost(item("lost", d, (2, 1))),
    ),
    "audit": Case(
        [msgspec.msgpack.encode(Audited("set", "visits", 7, "v", "refused", "no", "ann", bytes(16)))],
        lambda d: decode_audited(Item("audit", bytes(17), (1,), d)),
    ),
    "plan": Case([encode_plan(plan_of())], decode_plan),
    "rows": Case(
        [
            data
            for _, frames in pack_parts(wire_values.parts(Random(4)) or wire_values.parts(Random(5)))
            for data in frames
        ],
        unpack,
    ),
    "roster": Case(
        [RosterEncoder().pack({wire_values.slot(RNG): wire_values.span(RNG) for _ in range(4)}, {}, False)],
        lambda d: RosterDecoder().unpack(d, False, 1_000),
    ),
    "rows of a window": Case(
        [msgspec.msgpack.encode(pack_rows([(1, "a", [2.5, None], (3, 4))]))],
        lambda d: unpack_rows(msgspec.msgpack.decode(d, type=WireRows)),
        (
            PeerError,
            msgspec.MsgspecError,
            UnicodeDecodeError,
        ),  # the latter two are those of the message around it
    ),
    "entry of a log": Case(
        [LOG.pack_entry(wire_values.entry(Random(n)), RosterEncoder()) for n in range(12)],
        lambda d: LOG.unpack_entry(d, RosterDecoder(), 1_000),
    ),
    "state of a log": Case([LOG.pack_state(wire_values.state(Random(3)))], LOG.unpack_state),
    "record of a journal": Case(records(), lambda d: RecordDecoder().decode(d), StateError),
    "request of a command": Case(
        [frame(MeshStatus())[4:], frame(JobGet("hits"))[4:]],
        request_of,
        (msgspec.MsgspecError, UnicodeDecodeError, PeerError),
    ),
    "values of a pane": Case([part(GOOD)], lambda d: check_pane(pane(d))),
}
each = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def tried(case: Case, data: bytes) -> bool:
    """Whether it could be read."""
    try:
        case.read(data)
    except case.error:
        return False
    return True


@each
def test_good_bytes_are_read(case: Case) -> None:
    assert all(tried(case, data) for data in case.good)


@each
@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes(case: Case, data: bytes) -> None:
    tried(case, data)


@pytest.mark.slow
@each
@settings(derandomize=True, max_examples=120, deadline=None)
@given(
    which=st.integers(0, 99),
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4),
    cut=st.one_of(st.none(), st.integers(0, 1 << 16)),
    tail=st.binary(max_size=4),
)
def test_good_bytes_that_were_changed(
    case: Case, which: int, changes: list[tuple[int, int]], cut: int | None, tail: bytes
) -> None:
    data = bytearray(case.good[which % len(case.good)])
    for at, value in changes:
        data[at % len(data)] = value
    if cut is not None:
        del data[cut % len(data) :]
    tried(case, bytes(data) + tail)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (0, ["/a", 5]),
        (1, [1, 1 << 63]),
        (1, [1, "2"]),
        (2, ["1.505", "1"]),
        (2, ["1" * 37, "1"]),
        (2, ["NaN", "1"]),
        (2, ["1_0", "1"]),
        (3, [{1: "2"}, {}]),
        (3, [{1 << 31: 2}, {}]),
        (4, [[["x", "0.55"]], []]),
        (4, [[["x"]], []]),
        (4, [[["x", 1.5]], []]),
        (0, ["/a"]),
    ],
)
def test_values_that_a_lake_could_not_store_are_refused(column: int, values: list[Any]) -> None:
    """The lake's writer would fail again and again, with all that waits beside them."""
    check_pane(pane(part(GOOD)))
    bad = [*GOOD]
    bad[column] = values
    with pytest.raises(PeerError):
        check_pane(pane(part(bad)))


def test_panes_of_no_time_are_refused() -> None:
    for start, end in ((1 << 62, (1 << 62) + 1), (-(1 << 62), 0), (5, 4)):
        with pytest.raises(PeerError, match="not within the years"):
            check_pane(pane(part(GOOD), start, end))
    with pytest.raises(PeerError):
        check_pane(pane(part([*GOOD, [1, 2]])))
    with pytest.raises(PeerError):
        parse(b"\xc1", handshake.Proof)
