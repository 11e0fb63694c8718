"""Records as bytes on a node's disk: written ones are read back, old ones stay readable, damage is reported."""

from __future__ import annotations

import os
from random import Random
from typing import Any, get_args

import pytest

from elf.cbt.budget import Budget
from elf.errors import PeerError, StateError
from elf.jobmaster.log.entries import Accept, AnyEntry
from elf.jobmaster.log.job_log import Base, JobLog, More
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.log_codec import LOG
from elf.jobmaster.log.record_codec import KINDS, RecordDecoder, RecordEncoder
from elf.srt.codec.rosters import RosterDecoder, RosterEncoder
from elf.srt.messages.effects import Write
from elf.srt.messages.messages import Slot, Span
from elf.srt.messages.roster import SLOTS_MAX
from tests.rigs import paths
from tests.rigs.wire_values import T0, same, slot, state, struct, write
from tests.srt.codec.test_wire import golden, shown, write_golden

GOLDEN = paths.GOLDEN / "records-v1.txt"
ENTRIES = get_args(AnyEntry)
entries = pytest.mark.parametrize("kind", ENTRIES, ids=[kind.__name__ for kind in ENTRIES])


@entries
def test_entries_round_trip(kind: type[Any]) -> None:
    rng = Random(kind.__name__)
    encoder, decoder = RosterEncoder(), RosterDecoder()
    for _ in range(50):
        entry = struct(kind, rng)
        assert same(LOG.unpack_entry(LOG.pack_entry(entry, encoder), decoder, SLOTS_MAX), entry)


def test_states_round_trip() -> None:
    rng = Random(1)
    for _ in range(20):
        snapshot = state(rng)
        assert LOG.unpack_state(LOG.pack_state(snapshot)) == snapshot


@pytest.mark.parametrize("number", KINDS)
def test_records_round_trip(number: int) -> None:
    rng = Random(number)
    for _ in range(30):
        written = write(number, rng)
        data = RecordEncoder().encode(written)
        assert data[5] == number
        assert same(RecordDecoder().decode(data), written)


def test_a_disk_is_read_across_lives() -> None:
    """Records of many keys, by encoders that come and go; the decoder reads them in order."""
    rng = Random(2)
    decoder = RecordDecoder()
    jobs = [rng.randbytes(16) for _ in range(3)]
    at: dict[Slot, int] = {slot(rng): 0 for _ in range(12)}
    for _ in range(10):
        encoder = RecordEncoder()
        for n in range(20):
            spans: dict[Slot, Span] = {
                each: (start, start + n, 0) for each, start in at.items() if rng.random() < 0.8
            }
            accept = Accept(1, spans, T0, {}, {})
            at |= {each: span[1] for each, span in spans.items()}
            ballot = (1, b"M" * 16)
            record: Base | More = More(ballot, ballot, n, (accept, struct(rng.choice(ENTRIES), rng)))
            replace = rng.random() < 0.1
            if replace:
                record = Base(ballot, ballot, n, state(rng), (accept,))
            written = Write(("log", rng.choice(jobs)), record, replace)
            data = encoder.encode(written)
            if rng.random() < 0.1:
                encoder.lost(written.key)  # the disk was full
                continue
            assert same(decoder.decode(data), written)


def test_a_log_that_was_written_is_the_same_log_when_read() -> None:
    rng = Random(3)

    def new(snapshot: Any) -> JobState:
        made = JobState(b"J" * 16, "job", Budget(1 << 26))
        if snapshot is not None:
            made.restore(snapshot)
        return made

    log, again = JobLog(new, 1 << 30), JobLog(new, 1 << 30)
    encoder, decoder = RecordEncoder(), RecordDecoder()
    snapshot = state(rng)
    ballot = (2, b"M" * 16)
    workers = list(snapshot.positions.at)
    records: list[Base | More] = [log.install(ballot, ballot, snapshot.index, snapshot, ())]
    place = {each: snapshot.positions.at[each] for each in workers}
    for _ in range(30):
        spans: dict[Slot, Span] = {each: (place[each], place[each] + 50, 0) for each in workers}
        place = {each: span[1] for each, span in spans.items()}
        records.append(log.extend(ballot, ballot, log.index + 1, (Accept(1, spans, T0, {}, {}),)))
        log.commit(log.index)
    for record in records:
        data = encoder.encode(Write(("log", b"J" * 16), record, isinstance(record, Base)))
        again.restore(decoder.decode(data).record)
    again.commit(again.index)
    assert again.rank == log.rank
    assert again.image() == log.image()


def test_an_accept_in_a_log_costs_little() -> None:
    rng = Random(4)
    encoder = RecordEncoder()
    at: dict[Slot, int] = {slot(rng): 0 for _ in range(1_000)}
    for n in range(3):
        spans: dict[Slot, Span] = {
            each: (start, start + rng.randrange(10, 2_000), 0) for each, start in at.items()
        }
        at = {each: span[1] for each, span in spans.items()}
        accept = Accept(1, spans, T0, {}, {})
        size = len(
            encoder.encode(Write(("log", b"J" * 16), More((1, b"M" * 16), (1, b"M" * 16), n, (accept,))))
        )
    assert size < 2_200


def test_old_records_stay_readable() -> None:
    """As in test_wire: with ELF_GOLDEN=write kinds without bytes get some."""
    if os.environ.get("ELF_GOLDEN") == "write":
        made = golden(GOLDEN) if GOLDEN.exists() else {}
        for number in KINDS:
            written = write(number, Random(f"golden {number}"))
            name = f"{type(written.record).__name__}_{number}"
            data = made[name][1] if name in made else RecordEncoder().encode(written)
            made[name] = shown(RecordDecoder().decode(data)), data
        for kind in ENTRIES:
            data = made.get(kind.__name__, ("", b""))[1]
            data = data or LOG.pack_entry(struct(kind, Random(f"golden {kind.__name__}")), RosterEncoder())
            made[kind.__name__] = shown(LOG.unpack_entry(data, RosterDecoder(), SLOTS_MAX)), data
        write_golden(GOLDEN, made)
    kept = golden(GOLDEN)
    assert len(kept) == len(KINDS) + len(ENTRIES)
    for name, (what, data) in kept.items():
        record = "_" in name
        came = RecordDecoder().decode(data) if record else LOG.unpack_entry(data, RosterDecoder(), SLOTS_MAX)
        assert shown(came) == what, name


@pytest.mark.parametrize("number", KINDS)
def test_damaged_records_are_reported(number: int) -> None:
    rng = Random(number)
    refused = 0
    for _ in range(120):
        data = bytearray(RecordEncoder().encode(write(number, rng)))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(6, len(data))] = rng.choice([0, 0x7F, 0x80, 0xC0, 0xC6, 0xDD, 0xFF])
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        try:
            RecordDecoder().decode(bytes(data))
        except StateError:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "does not start"),
        (b"ELFM\x01\x01", "does not start"),
        (b"ELFD\x02\x01", "record version 2 is of another version of elf, this one reads 1"),
        (b"ELFD\x01\x63", "unknown kind 99"),
        (b"ELFD\x01\x01\xc1", "a damaged record"),
    ],
)
def test_errors_name_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(StateError, match=reason):
        RecordDecoder().decode(data)


def test_only_known_keys_are_written() -> None:
    with pytest.raises(ValueError, match="kind 'other'"):
        RecordEncoder().encode(Write(("other", b""), 1))


def test_states_with_spoiled_rows_or_plans_are_refused() -> None:
    rng = Random(5)
    snapshot = next(each for each in iter(lambda: state(rng), None) if each.panes["v1"][0])
    frame = bytearray(snapshot.panes["v1"][0][0])
    frame[-1] ^= 1
    snapshot.panes["v1"] = ((bytes(frame),), *snapshot.panes["v1"][1:])
    with pytest.raises(PeerError, match="rows frame"):
        LOG.unpack_state(LOG.pack_state(snapshot))
    snapshot.panes["v2"] = snapshot.panes.pop("v1")
    with pytest.raises(PeerError, match="a version that its schedule does not have"):
        LOG.unpack_state(LOG.pack_state(snapshot))


def test_the_state_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = LOG.pack_state(state(Random(6)))
    monkeypatch.setattr("elf.jobmaster.log.log_codec.STATE_BYTES_MAX", 100)
    with pytest.raises(PeerError, match="100 allowed"):
        LOG.unpack_state(data)


def test_each_number_has_one_type() -> None:
    assert len({kind.form for kind in KINDS.values()}) == len(KINDS)
