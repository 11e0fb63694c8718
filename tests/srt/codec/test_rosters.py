"""Contributions by roster: all that a link carries arrives unchanged, in few bytes, and two sides that differ detect it."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.errors import PeerError
from elf.srt.codec import rosters
from elf.srt.codec.rosters import FORGET_AFTER, RosterDecoder, RosterEncoder
from elf.srt.messages.columns import (
    pack_column,
    pack_places,
    pair_hash,
    unpack_column,
    unpack_places,
    unzigzag,
    zigzag,
)
from elf.srt.messages.compression import compress
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import CLOSED, FIRST, Slot, Span
from elf.srt.messages.roster import Listed, Presence, Section
from tests.rigs.wire_values import slot

words = st.integers(0, (1 << 64) - 1)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 300), words), max_size=40))
def test_columns(values: list[int]) -> None:
    column = np.array(values, dtype=np.uint64)
    data = pack_column(column)
    assert unpack_column(data, len(values)).tolist() == values
    width = max([(v.bit_length() + 7) // 8 for v in values], default=0)
    assert len(data) == (1 + len(values) * width if values else 0)
    assert zigzag(unzigzag(column)).tolist() == values
    for wrong in (data + b"\0", data[:-1]) if values else (b"\0",):
        with pytest.raises(PeerError):
            unpack_column(wrong, len(values))


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 5_000), max_size=40))
def test_places(places: set[int]) -> None:
    ordered = np.array(sorted(places), dtype=np.int64)
    assert unpack_places(pack_places(ordered), len(places), 5_001).tolist() == sorted(places)
    if places:
        with pytest.raises(PeerError):
            unpack_places(pack_places(ordered), len(places), max(places))


def test_the_hash_is_a_sum_over_pairs() -> None:
    rng = np.random.default_rng(1)
    keys, values = rng.integers(0, 1 << 63, (2, 1_000)).astype(np.uint64)
    whole = pair_hash(keys, values)
    assert whole == (pair_hash(keys[:300], values[:300]) + pair_hash(keys[300:], values[300:])) % (1 << 64)
    order = rng.permutation(1_000)
    assert whole == pair_hash(keys[order], values[order])
    for at in range(0, 1_000, 100):
        values[at] += np.uint64(1)
        assert pair_hash(keys, values) != whole
        values[at] -= np.uint64(1)


class Fleet:
    """Workers whose contributions mostly go on where the last ones ended."""

    def __init__(self, rng: Random, count: int) -> None:
        self.rng = rng
        self.at: dict[Slot, int] = {}
        for _ in range(count):
            self.join()

    def join(self) -> None:
        self.at[slot(self.rng, self.rng.choice([0, 0, 0, 7]))] = self.rng.randrange(1 << 40)

    def bundle(self, share: float, strange: float) -> dict[Slot, Span]:
        rng, spans = self.rng, {}
        chosen = [each for each in self.at if rng.random() < share]
        rng.shuffle(chosen)
        for each in chosen:
            start = rng.randrange(1 << 41) if rng.random() < strange else self.at[each]
            flags = rng.choice([FIRST, CLOSED, FIRST | CLOSED, 4]) if rng.random() < strange else 0
            spans[each] = (start, start + rng.choice([0, rng.randrange(2_000)]), flags)
            self.at[each] = spans[each][1]
        return spans

    def lagging(self, spans: dict[Slot, Span], share: float) -> dict[NodeId, int]:
        found = {
            each[0]: self.rng.randrange(-(1 << 62), 1 << 62) for each in spans if self.rng.random() < share
        }
        if self.rng.random() < share:
            found[self.rng.randbytes(16)] = -(1 << 63)
            found[self.rng.randbytes(16)] = (1 << 63) - 1
        return found


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    count=st.sampled_from([0, 1, 5, 40, 200]),
    share=st.sampled_from([0.02, 0.5, 0.97, 1.0]),
    strange=st.sampled_from([0.0, 0.02, 0.5]),
)
def test_bundles_come_out_as_they_went_in(seed: int, count: int, share: float, strange: float) -> None:
    rng = Random(seed)
    fleets = [Fleet(rng, count) for _ in range(rng.choice([1, 1, 3]))]
    encoder, decoder = RosterEncoder(), RosterDecoder()
    sent: list[dict[Slot, Span]] = [{}]
    for _ in range(30):
        fleet = rng.choice(fleets)
        if rng.random() < 0.2:
            fleet.join()
        again = rng.random() < 0.1
        spans = rng.choice(sent) if again else fleet.bundle(share, strange)
        lagging = fleet.lagging(spans, rng.choice([0, 0, 0.3, 1]))
        sent.append(spans)
        if rng.random() < 0.2:  # however few they are
            assert decoder.decode(encoder.encode(spans, lagging, again), again) == (spans, lagging)
        else:
            assert decoder.unpack(encoder.pack(spans, lagging, again), again) == (spans, lagging)
    encoder.check()
    decoder.check()
    for number, roster in encoder.rosters.items():
        other = decoder.rosters[number]
        assert (roster.slots, roster.ends.tolist()) == (other.slots, other.ends.tolist())


def steady(rng: Random, count: int) -> tuple[RosterEncoder, dict[Slot, Span]]:
    encoder = RosterEncoder()
    spans = {slot(rng): (0, 10, 0) for _ in range(count)}
    encoder.encode(spans)
    return encoder, spans


def following(spans: dict[Slot, Span], rng: Random) -> dict[Slot, Span]:
    return {each: (span[1], span[1] + rng.randrange(10, 2_000), 0) for each, span in spans.items()}


def test_a_known_roster_costs_two_bytes_a_file() -> None:
    rng = Random(5)
    encoder, spans = steady(rng, 6_250)
    following_ = following(spans, rng)
    assert len(encoder.pack(following_)) < 2 * 6_250 + 100
    few = dict(list(following(following_, rng).items())[:6_200])
    assert len(encoder.pack(few)) < 2 * 6_250 + 300, "fifty missing ones cost little"
    one = dict(list(following(following_, rng).items())[-1:])
    assert len(encoder.pack(one)) < 80


def test_kept_bundles_again_leave_what_is_known_of_later_ones() -> None:
    rng = Random(6)
    encoder, first = steady(rng, 100)
    second = following(first, rng)
    third = following(second, rng)
    encoder.encode(second)
    encoder.encode(first, again=True)
    encoder.encode(second, again=True)
    assert encoder.encode(third).n_moved == 0


def test_bundles_of_several_children_have_rosters_of_their_own() -> None:
    rng = Random(7)
    encoder = RosterEncoder()
    fleets = [{slot(rng): (0, 10, 0) for _ in range(100)} for _ in range(5)]
    for n in range(4):
        sections = [encoder.encode(fleet) for fleet in fleets]
        assert [section.roster for section in sections] == list(range(5))
        assert n == 0 or all(section.presence is Presence.ALL for section in sections)
        fleets = [following(fleet, rng) for fleet in fleets]


def test_slots_that_are_gone_are_forgotten() -> None:
    rng = Random(8)
    spans: dict[Slot, Span] = {slot(rng): (0, 10, 0) for _ in range(20)}
    encoder, decoder = RosterEncoder(), RosterDecoder()
    decoder.decode(encoder.encode(spans))
    few = dict(list(spans.items())[:5])
    for _ in range(2 * FORGET_AFTER + 1):
        few = following(few, rng)
        assert decoder.decode(encoder.encode(few))[0] == few
    assert len(encoder.rosters[0]) == len(decoder.rosters[0]) == decoder.slots == 5
    spans = following(spans, rng)
    assert decoder.decode(encoder.encode(spans))[0] == spans
    decoder.check()


def test_more_rosters_than_allowed_take_the_place_of_those_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rosters, "LARGE", 1)
    monkeypatch.setattr(rosters, "ROSTERS_MAX", 3)
    rng = Random(9)
    encoder, decoder = RosterEncoder(), RosterDecoder()
    for _ in range(30):
        spans: dict[Slot, Span] = {slot(rng): (5, 6, 0) for _ in range(4)}
        assert decoder.decode(encoder.encode(spans))[0] == spans
        encoder.check()
        decoder.check()
    assert len(decoder.rosters) == 3


def test_a_new_encoder_begins_afresh_behind_an_old_one() -> None:
    rng = Random(10)
    _, spans = steady(rng, 10)
    decoder = RosterDecoder()
    for _ in range(3):
        encoder = RosterEncoder()
        for _ in range(2):
            assert decoder.decode(encoder.encode(spans))[0] == spans
    decoder.check()


def test_a_section_that_was_lost_is_noticed() -> None:
    for seed in range(50):
        rng = Random(seed)
        spans: dict[Slot, Span] = {slot(rng): (0, 10, 0) for _ in range(10)}
        encoder, decoder = RosterEncoder(), RosterDecoder()
        decoder.decode(encoder.encode(spans))
        lost = following(spans, rng)
        encoder.encode(lost)
        with pytest.raises(PeerError, match="differs from the sender's"):
            decoder.decode(encoder.encode(following(lost, rng)))


def test_an_unannounced_roster_is_refused() -> None:
    encoder, spans = steady(Random(11), 3)
    with pytest.raises(PeerError, match="never announced"):
        RosterDecoder().decode(encoder.encode(spans))


def test_slots_are_bounded() -> None:
    encoder = RosterEncoder()
    rng = Random(12)
    section = encoder.encode({slot(rng): (0, 0, 0) for _ in range(10)})
    with pytest.raises(PeerError, match="more files"):
        RosterDecoder().decode(section, slots_max=9)


@pytest.mark.parametrize("span", [(5, 4, 0), (-1, 4, 0), (0, 1 << 63, 0), (0, 0, 8), (0, 0, -1)])
def test_no_such_spans(span: Span) -> None:
    with pytest.raises(ValueError, match="span"):
        RosterEncoder().encode({(b"w" * 16, 1, 0): span})
    with pytest.raises(ValueError, match="span"):
        RosterEncoder().pack({(b"w" * 16, 1, 0): span})


def test_a_listed_span_that_ends_before_it_starts_is_refused() -> None:
    listed = Listed({(b"w" * 16, 1, 0): (5, 4, 0)}, {})
    with pytest.raises(PeerError, match="ends before it starts"):
        RosterDecoder().unpack(rosters.LISTED + msgspec.msgpack.encode(listed))


def test_changed_sections_are_refused_or_contributions() -> None:
    rng = Random(13)
    refused = 0
    for _ in range(1_500):
        fleet = Fleet(rng, 12)
        encoder, decoder = RosterEncoder(), RosterDecoder()
        decoder.decode(encoder.encode(fleet.bundle(0.7, 0.1)))
        spans = fleet.bundle(0.5, 0.2)
        section = encoder.encode(spans, fleet.lagging(spans, 0.3))
        changed = section
        for name in rng.sample(Section.__struct_fields__, rng.randrange(1, 3)):
            changed = msgspec.structs.replace(changed, **{name: other(getattr(changed, name), rng)})
        try:
            came, _ = decoder.unpack(compress(msgspec.msgpack.encode(changed)))
        except PeerError:
            refused += 1
        else:
            assert all(0 <= start <= end < 1 << 63 and 0 <= flags < 8 for start, end, flags in came.values())
            decoder.check()
    assert refused > 900


def other(field: object, rng: Random) -> object:
    """A field with something wrong in it."""
    if isinstance(field, bytes):
        spoiled = bytearray(field or b"\1\1")
        spoiled[rng.randrange(len(spoiled))] = rng.choice([0, 1, 2, 8, 9, 0x7F, 0x80, 0xFF])
        return bytes(spoiled) if rng.random() < 0.7 else bytes(spoiled[: rng.randrange(len(spoiled))])
    if isinstance(field, bool):
        return not field
    if isinstance(field, Presence):
        return rng.choice(list(Presence))
    if isinstance(field, int):
        return rng.choice([0, 1, field + 1, abs(field - 1), 13, 1 << 20, (1 << 63) - 1])
    return ((b"w" * 16, 1),) * rng.randrange(3)
