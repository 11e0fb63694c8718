"""Messages as bytes: encoded ones are decoded unchanged, old bytes stay readable, and arbitrary bytes do no harm."""

from __future__ import annotations

import os
import re
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from elf.cbt.frame import pack
from elf.errors import PeerError
from elf.jobmaster.log.entries import Accept, Final
from elf.jobmaster.log.log_codec import LOG
from elf.srt.codec import wire
from elf.srt.codec.wire import BY_TYPE, HEAD_BYTES, KINDS, MAGIC, VERSION, Decoder, Encoder, decode, encode
from elf.srt.messages import changes as c
from elf.srt.messages import messages as m
from elf.srt.messages import reports, sizes
from elf.srt.messages import results as r
from elf.srt.messages.messages import Message
from elf.srt.messages.partial import Part
from tests.rigs import paths
from tests.rigs.mesh_lines import part_of, plan_of
from tests.rigs.wire_values import T0, fields_of, message, same, slot

GOLDEN = paths.GOLDEN / "wire-v1.txt"
KIND_IDS = [kind.type.__name__ for kind in KINDS]
every_kind = pytest.mark.parametrize("kind", [kind.type for kind in KINDS], ids=KIND_IDS)


def all_messages() -> set[type]:
    def below(kind: Any) -> set[type]:
        found: set[type] = set()
        for each in kind.__subclasses__():
            found |= {each} | below(each)
        return found

    return {
        kind
        for kind in below(Message)
        if kind.__module__ in (c.__name__, m.__name__, r.__name__, reports.__name__)
    }


def test_every_message_has_a_kind_and_a_number_of_its_own() -> None:
    assert all_messages() == BY_TYPE.keys()
    assert len({kind.number for kind in KINDS}) == len(KINDS)


@every_kind
def test_round_trip(kind: type[Message]) -> None:
    rng = Random(f"trip {kind.__name__}")
    for _ in range(60):
        sent = message(kind, rng)
        data = encode(sent, LOG)
        came = decode(data, LOG)
        assert same(came, sent)
        assert encode(came, LOG)[:HEAD_BYTES] == data[:HEAD_BYTES]


# Golden bytes are never regenerated: ELF_GOLDEN=write adds those of new messages, and rewrites the text of decoded ones.


def golden(path: Path = GOLDEN) -> dict[str, tuple[str, bytes]]:
    """Name -> (repr, bytes)."""
    found = re.findall(r"^(\w+)\n  (.*)\n  ([0-9a-f]+)$", path.read_text(encoding="utf-8"), re.M)
    return {name: (shown, bytes.fromhex(data)) for name, shown, data in found}


def shown(value: Any) -> str:
    """A repr without what numpy versions print differently."""
    if names := fields_of(value):
        inner = ", ".join(f"{name}={shown(getattr(value, name))}" for name in names)
        return f"{type(value).__name__}({inner})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(key)}: {shown(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(shown, value)) + "]"
    return str(value.tolist()) if hasattr(value, "tolist") else repr(value)


def write_golden(path: Path, made: dict[str, tuple[str, bytes]]) -> None:
    text = "".join(f"{name}\n  {what}\n  {data.hex()}\n" for name, (what, data) in sorted(made.items()))
    path.write_text(text, encoding="utf-8")


def test_old_bytes_stay_readable() -> None:
    if os.environ.get("ELF_GOLDEN") == "write":
        made = golden() if GOLDEN.exists() else {}
        for kind in KINDS:
            name = kind.type.__name__
            sent = message(kind.type, Random(f"golden {name}"))
            data = made[name][1] if name in made else encode(sent, LOG)
            made[name] = shown(decode(data, LOG)), data
        write_golden(GOLDEN, made)
    kept = golden()
    assert kept.keys() == set(KIND_IDS)
    for name, (what, data) in kept.items():
        came = decode(data, LOG)
        assert type(came).__name__ == name
        assert shown(came) == what, name


# Bytes from any peer.


@pytest.mark.slow
@every_kind
def test_changed_bytes_are_refused_or_a_message(kind: type[Message]) -> None:
    rng = Random(f"change {kind.__name__}")
    refused = 0
    for _ in range(150):
        data = bytearray(encode(message(kind, rng), LOG))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(HEAD_BYTES, len(data)) if len(data) > HEAD_BYTES else 0
            data[at] = rng.choice(
                [0, 0x7F, 0x80, 0x90, 0xC0, 0xC6, 0xCF, 0xD9, 0xDD, 0xFF, data[at] ^ 1 << rng.randrange(8)]
            )
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        try:
            came = decode(bytes(data), LOG)
        except PeerError:
            refused += 1
        else:
            encode(came, LOG)  # whatever is taken can be passed on
    assert refused > 10


@every_kind
def test_every_prefix_and_any_tail_is_refused(kind: type[Message]) -> None:
    data = encode(message(kind, Random(f"prefix {kind.__name__}")), LOG)
    for size in range(0, len(data), max(1, len(data) // 200)):
        with pytest.raises(PeerError):
            decode(data[:size], LOG)
    with pytest.raises(PeerError):
        decode(data + b"\0", LOG)


def test_random_bytes_are_refused() -> None:
    rng = Random(3)
    for _ in range(5_000):
        number = rng.choice(KINDS).number
        with pytest.raises(PeerError):
            decode(MAGIC + bytes((VERSION, number)) + rng.randbytes(rng.randrange(60)) + b"\xc1", LOG)
    for _ in range(500):
        with pytest.raises(PeerError):
            decode(rng.randbytes(rng.randrange(60)), LOG)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "first bytes"),
        (b"ELFR\x01\x01", "first bytes"),
        (b"ELFM\x02\x01\x90", "wire version 2, this build uses 1; upgrade"),
        (b"ELFM\x00\x01\x90", "wire version 0"),
        (b"ELFM\x01\xff\x90", "unknown kind 255"),
        (b"ELFM\x01\x01" + bytes(70_000), "65536 are allowed"),
        (b"ELFM\x01\x17" + msgspec.msgpack.encode([b"j" * 15, b"w" * 16]), "length >= 16"),
        (b"ELFM\x01\x21" + msgspec.msgpack.encode([b"j" * 16, 1, b"abc"]), "an id of 3 bytes"),
        (b"ELFM\x01\x2e" + msgspec.msgpack.encode([b"j" * 16, [1, b"abc"]]), "a ballot of 3 bytes"),
        (b"ELFM\x01\x22" + msgspec.msgpack.encode([b"j" * 16, -1, 2]), ">= 0"),
        (b"ELFM\x01\x22" + msgspec.msgpack.encode([b"j" * 16, 1 << 63, 2]), "<= 9223372036854775807"),
        (b"ELFM\x01\x14" + msgspec.msgpack.encode([b"j" * 16, b"w" * 16, 1 << 46]), "<= 70368744177663"),
        (b"ELFM\x01\x04" + msgspec.msgpack.encode([[b"a" * 16, 1, "x" * 256]]), "length <= 255"),
        (b"ELFM\x01\x04" + b"\x91\x93\xc4\x10" + b"a" * 16 + b"\x01\xa2\xff\xff", "utf-8"),
    ],
)
def test_errors_name_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(PeerError, match=f"(?i){re.escape(reason)}"):
        decode(data)


def test_a_schedule_out_of_order_is_refused() -> None:
    lines = (m.Line(2, "b", 5, b""), m.Line(1, "a", 6, b""))
    with pytest.raises(PeerError, match="out of order"):
        decode(encode(m.Control(b"j" * 16, m.NO_BALLOT, lines)))


def test_envelopes_are_not_nested() -> None:
    inner = m.Frame((1, 1), 1, 0, 0)
    with pytest.raises(ValueError, match="an envelope"):
        encode(m.Frame((1, 1), 1, 0, 0, inner))
    data = b"ELFM\x01\x46" + msgspec.msgpack.encode([[1, 1], 1, 0, 0, encode(inner)])
    with pytest.raises(PeerError, match="an envelope"):
        decode(data)


def test_entries_need_their_log_form() -> None:
    append = message(m.Append, Random(4))
    with pytest.raises(PeerError, match="did not request"):
        decode(encode(m.Append(*[getattr(append, name) for name in append.__struct_fields__]), LOG))


def test_fields_added_later_are_skipped_and_those_missing_have_defaults() -> None:
    job = b"j" * 16
    longer = b"ELFM\x01\x34" + msgspec.msgpack.encode([job, [1, job], 5, False, "from the future"])
    assert decode(longer) == m.Held(job, (1, job), 5)
    assert decode(b"ELFM\x01\x34" + msgspec.msgpack.encode([job, [1, job], 5])) == m.Held(job, (1, job), 5)


def test_rows_are_bounded_across_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    part = part_of(plan_of(), [(T0, key, 1) for key in range(12)])
    bundle = m.Bundle(b"j" * 16, (b"w" * 16, 1, 1), 1, {}, T0, {}, {f"v{i}": part for i in range(20)})
    data = encode(bundle)
    monkeypatch.setattr("elf.srt.codec.parts.ROWS_BYTES_MAX", 20 * part.nbytes - 1)
    with pytest.raises(PeerError, match="more than"):
        decode(data)


# What cannot be encoded.


class Unfit(dict[str, Part]):
    """Rows that raise when they become bytes; contributions come before them, so a link's rosters are ahead by then."""

    def items(self) -> Any:
        raise ZeroDivisionError


def bundles_of(job: bytes, files: int, count: int) -> list[m.Bundle]:
    """Of one subtree, one behind the other."""
    slots = [(job, file, 0) for file in range(files)]
    return [
        m.Bundle(job, (job, 1, n), 1, dict.fromkeys(slots, (10 * n, 10 * n + 10, 0)), T0, {}, {})
        for n in range(count)
    ]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_what_cannot_be_encoded_leaves_no_trace_on_its_link(before: int) -> None:
    """Neither for its job nor for others: all later messages are decoded, and the order of use is the same at both ends."""
    encoder, decoder = Encoder(LOG), Decoder(LOG)
    ours, others = bundles_of(b"j" * 16, 40, 5), bundles_of(b"o" * 16, 30, 5)
    sent: list[m.Bundle] = [*ours[:before], *others[:2]]
    assert [decoder.decode(encoder.encode(each)) for each in sent] == sent
    spoiled = msgspec.structs.replace(ours[before], contributions=ours[4].contributions, parts=Unfit())
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            encoder.encode(spoiled)
    assert list(encoder._rosters) == list(decoder._rosters)
    sent = [others[2], *ours[before:], *others[3:]]
    assert [decoder.decode(encoder.encode(each)) for each in sent] == sent
    assert list(encoder._rosters) == list(decoder._rosters)


def test_entries_that_cannot_be_encoded_leave_no_trace_either() -> None:
    """The rosters have recorded the entries before the one that fails."""
    encoder, decoder = Encoder(LOG), Decoder(LOG)
    entries = [Accept(1, each.contributions, each.watermark, {}, {}) for each in bundles_of(b"j" * 16, 40, 4)]
    appends = [m.Append(b"j" * 16, (1, b"a" * 16), n + 1, (entry,), 0) for n, entry in enumerate(entries)]
    assert same(decoder.decode(encoder.encode(appends[0])), appends[0])
    with pytest.raises(TypeError):
        encoder.encode(msgspec.structs.replace(appends[1], entries=(entries[1], entries[2], object())))
    for each in appends[1:]:
        assert same(decoder.decode(encoder.encode(each)), each)


def test_rosters_give_way_at_both_ends_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a message that failed would have replaced some."""
    monkeypatch.setattr(wire, "JOBS_MAX", 3)
    encoder, decoder = Encoder(LOG), Decoder(LOG)
    jobs = {name: bundles_of(name * 16, 8, 6) for name in (b"a", b"b", b"c", b"d")}
    for n, names in enumerate(([b"a", b"b", b"c"], [b"d", b"a", b"b"], [b"c", b"c", b"d"])):
        for name in names:
            unfit = msgspec.structs.replace(jobs[b"d"][5], parts=Unfit())
            with pytest.raises(ZeroDivisionError):
                encoder.encode(unfit)
            sent = jobs[name][n]
            assert decoder.decode(encoder.encode(sent)) == sent
            assert list(encoder._rosters) == list(decoder._rosters)


# Sizes.


def steady(count: int, groups: int, rounds: int = 3) -> tuple[m.Bundle, int]:
    """A bundle of a subtree of that size whose roster is known, and its bytes."""
    rng = Random(count)
    slots = [slot(rng) for _ in range(count)]
    at = [rng.randrange(1 << 30) for _ in slots]
    encoder = Encoder()
    for n in range(rounds):
        grown = [rng.choice([0, rng.randrange(10, 2_000)]) for _ in slots]
        spans = {each: (a, a + g, 0) for each, a, g in zip(slots, at, grown, strict=True)}
        at = [a + g for a, g in zip(at, grown, strict=True)]
        part = part_of(plan_of(), [(T0, key % 12, 100 + key) for key in range(groups)])
        bundle = m.Bundle(b"j" * 16, (b"w" * 16, 1, n), 1, spans, T0, {}, {"0123456789ab": part})
        size = len(encoder.encode(bundle))
    return bundle, size


LINKED = (m.Path, m.Adopt, m.Size, m.Hold, m.Bundle, m.Commit, m.Split, m.Append, m.Held)
JOB, ME = b"j" * 16, b"a" * 16
BALLOT: m.Ballot = (3, ME)
RNG = Random(20)


def contact() -> m.Contact:
    return m.Contact(RNG.randbytes(16), 3, "10.1.2.3:7400")


def item(kind: str, size: int) -> m.Item:
    return m.Item(kind, RNG.randbytes(16), (3, T0), RNG.randbytes(size), RNG.randbytes(64))


def typical_rows(groups: int) -> dict[str, Part]:
    return {"0123456789ab": part_of(plan_of(), [(T0, key, 2_000 + key) for key in range(groups)])}


TYPICAL: dict[str, Message] = {
    "Ping": m.Ping(contact(), 17_000, (), 1 << 63),
    "Ping with six claims": m.Ping(
        contact(), 17_000, tuple(m.News(contact(), "alive") for _ in range(6)), 1 << 63
    ),
    "Pong": m.Pong(contact(), 17_000, ME, (), 1 << 63),
    "LeavesReport of 16": m.LeavesReport(contact(), tuple(contact() for _ in range(16))),
    "JoinReply of 40": m.JoinReply(contact(), tuple(contact() for _ in range(40))),
    "GossipDigest": m.GossipDigest(1 << 63),
    "GossipDigest of 64 buckets": m.GossipDigest(1 << 63, tuple(RNG.getrandbits(64) for _ in range(64))),
    "GossipItems of an agent": m.GossipItems(5, (item("agent", 40),)),
    "GossipItems of a job": m.GossipItems(5, (item("job", 1_500),)),
    "Hello, routed": m.Routed(JOB, ME, m.Hello(JOB, ME, 3), 2),
    "Welcome": m.Welcome(
        JOB, BALLOT, 3, (m.Line(1, "0123456789ab", 0, bytes(700)),), T0, ((slot(RNG), m.Position(1 << 30)),)
    ),
    "TreeJoin, routed": m.Routed(JOB, ME, m.TreeJoin(JOB, ME, 3, 2, 60, 2), 1),
    "Path of three": m.Path(JOB, (ME, b"b" * 16, b"c" * 16), BALLOT, True, 1_000),
    "Adopt": m.Adopt(JOB, 2, (ME, b"b" * 16), BALLOT, True, 1_000),
    "Size": m.Size(JOB, 60, 2),
    "Hold": m.Hold(JOB, True),
    "Bundle of a worker, three groups": m.Bundle(
        JOB, (ME, 2, 4_711), 7, {slot(RNG): (1 << 30, (1 << 30) + 700, 0)}, T0, {}, typical_rows(3)
    ),
    "Bundle of a worker, idle": m.Bundle(
        JOB, (ME, 2, 4_711), 7, {slot(RNG): (1 << 30, 1 << 30, 0)}, T0, {}, {}
    ),
    "Commit of two": m.Commit(JOB, BALLOT, ((b"w" * 16, 2, 4_711), (b"x" * 16, 2, 911))),
    "Split, 20 files": m.Split(
        JOB, BALLOT, (b"w" * 16, 2, 9), (), tuple((slot(RNG), m.Position(1 << 30)) for _ in range(20))
    ),
    "Append of a Final": m.Append(
        JOB,
        BALLOT,
        99,
        (Final("0123456789ab", T0, (3, ME, 5), 1 << 63, 900, 1_000, 98, (T0, T0)),),
        98,
        BALLOT,
    ),
    "Held": m.Held(JOB, BALLOT, 12_345),
    "StateReport": m.StateReport(JOB, BALLOT, BALLOT, BALLOT, 12_345),
    "Put of 20 rows": r.Put(
        JOB,
        BALLOT,
        "0123456789ab",
        T0,
        T0 + 10_000_000,
        (T0, T0 + 10_000_000),
        "final",
        (3, ME, 9),
        1 << 63,
        1_000,
        1_000,
        (90_000, 90_000, 0, 0),
        tuple(((T0, T0 + 10_000_000), f"/page/{i}", i, 2_000 * i) for i in range(20)),
    ),
    "PutReply": r.PutReply(JOB, BALLOT, "0123456789ab", T0, (3, ME, 9)),
}


def wire_bytes(sent: Message) -> int:
    """On a link within a frame; of a datagram as it is."""
    if isinstance(sent, LINKED):
        return len(encode(m.Frame((3 << 16, 5 << 16), 100_000, 100_000, 4 << 20, sent), LOG))
    return len(encode(sent, LOG))


@pytest.mark.parametrize("name", TYPICAL)
def test_sizes_of_typical_messages_are_known(name: str) -> None:
    """Within a factor of two, frame around it included."""
    sent = TYPICAL[name]
    real = wire_bytes(sent)
    assert real / 2 <= sizes.size_of(sent) <= 2 * real, real


@pytest.mark.parametrize(("count", "groups"), [(1, 3), (16, 12), (250, 12), (6_250, 12)])
def test_sizes_of_bundles_are_known(count: int, groups: int) -> None:
    bundle, size = steady(count, groups)
    assert size / 2 <= sizes.size_of(bundle) <= 2 * size, size


def test_a_few_rows_are_small() -> None:
    part = part_of(plan_of(), [(T0, key, 2_000 + key) for key in range(3)])
    assert len(pack(part.rows[0], part.ops[0])) < 120
    assert len(pack(part.rows[1], part.ops[1])) < 60


def test_a_decoder_of_a_link_follows_its_encoder() -> None:
    rng = Random(9)
    encoder, decoder = Encoder(LOG), Decoder(LOG)
    kinds: list[type[Message]] = [m.Bundle, m.Append, m.Commit]
    for _ in range(200):
        sent = message(rng.choice(kinds), rng)
        assert same(decoder.decode(encoder.encode(sent)), sent)
