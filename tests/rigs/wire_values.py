"""Random messages, entries and records, made by their types: a new field is tested without a change here."""

from __future__ import annotations

import types
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from elf.cbt.budget import Budget
from elf.cbt.frame import pack
from elf.jobmaster.log import entries as e
from elf.jobmaster.log.entries import Accept, AnyEntry
from elf.jobmaster.log.job_log import Base, More, Promise, Rows, Whole
from elf.jobmaster.log.job_state import JobState, StateSnapshot
from elf.jobmaster.log.state_rows import RowPiece
from elf.jobmaster.plan.codec import encode as encode_plan
from elf.srt.messages import messages as m
from elf.srt.messages import results as r
from elf.srt.messages.effects import Write
from elf.srt.messages.ids import MAKER_BYTES
from elf.srt.messages.messages import Bundle, Line, Message, Schedule, Slot, Span
from elf.srt.messages.partial import Part
from tests.rigs.mesh_lines import part_of, plan_of

T0 = 1_700_000_000_000_000
STATUSES = {m.News: ("alive", "suspect", "dead", "left"), r.Put: ("open", "final", "revised", "withdrawn")}
PLANS = [encode_plan(plan_of(window)) for window in ("10 seconds", "20 seconds/10 seconds")]
ROUTED: tuple[type[Message], ...] = (m.Hello, m.TreeJoin, m.JoinMesh)
LINK_MESSAGES: tuple[type[Message], ...] = (m.Bundle, m.Commit, m.Split, m.Append, m.Install, m.Piece)


def slot(rng: Random, lane: int = 0) -> Slot:
    return rng.randbytes(16), rng.choice([0, rng.getrandbits(63), rng.getrandbits(64)]), lane


def span(rng: Random) -> Span:
    start = rng.choice([0, rng.randrange(1 << 40), (1 << 63) - 1 - (1 << 20)])
    return (
        start,
        start + rng.choice([0, rng.randrange(3_000), rng.randrange(1 << 20)]),
        rng.choice([0] * 5 + [1, 2, 7]),
    )


def parts(rng: Random) -> dict[str, Part]:
    return {
        rng.randbytes(6).hex(): part_of(
            plan_of(),
            [
                (T0 + rng.randrange(30_000_000), rng.randrange(12), rng.randrange(5_000))
                for _ in range(rng.randrange(1, 9))
            ],
        )
        for _ in range(rng.choice([0, 1, 1, 2]))
    }


def schedule(rng: Random) -> Schedule:
    return tuple(
        Line(3 * n + rng.randrange(3), f"v{n}", T0 + 1_000_000 * n, rng.choice(PLANS))
        for n in range(rng.randrange(3))
    )


def cell(rng: Random, depth: int = 0) -> Any:
    nested = [cell(rng, depth + 1) for _ in range(rng.randrange(3))] if depth < 3 else []
    return rng.choice(
        [
            None,
            True,
            rng.getrandbits(63),
            -5,
            rng.random(),
            "/ü",
            Decimal("-12.500"),
            Decimal("1E+20"),
            tuple(nested),
            nested,
        ]
    )


def state(rng: Random) -> StateSnapshot:
    """A state that some entries made."""
    made = JobState(b"J" * 16, "job", Budget(1 << 26))
    line = Line(1, "v1", 0, PLANS[0])
    made.apply(1, e.Begin((1, b"M" * 16), T0 - 100_000_000, (line,), (1, b"spec")))
    workers = [rng.randbytes(16) for _ in range(3)]
    made.apply(2, e.Add(tuple(workers), T0))
    for index in range(3, 3 + rng.randrange(4)):
        contributions: dict[Slot, Span] = {(w, 7, 0): (index * 100, index * 100 + 100, 1) for w in workers}
        part = part_of(plan_of(), [(T0 + index * 1_000_000, index, 100)])
        made.apply(index, Accept(1, contributions, T0 + index, {workers[0]: T0}, {"v1": part}))
    snapshot = made.snapshot()
    made.close()
    return snapshot


def frame(rng: Random) -> bytes:
    """Rows of groups."""
    part = part_of(plan_of(), [(T0 + n * 1_000_000, rng.randrange(12), 100) for n in range(5)])
    return pack(part.rows[0], part.ops[0])


def entry(rng: Random) -> AnyEntry:
    kind = rng.choice(get_args(AnyEntry))
    made: AnyEntry = value(kind, rng)
    return made


def message(kind: type[Message], rng: Random) -> Message:
    made: Message = value(kind, rng)
    return made


_SPECIAL: dict[tuple[type, str], Callable[[Random], Any]] = {
    (m.Routed, "message"): lambda rng: message(rng.choice(ROUTED), rng),
    (m.Frame, "message"): lambda rng: rng.choice([None, message(rng.choice(LINK_MESSAGES), rng)]),
    (m.Append, "entries"): lambda rng: tuple(entry(rng) for _ in range(rng.randrange(4))),
    (m.Install, "tail"): lambda rng: tuple(entry(rng) for _ in range(rng.randrange(3))),
    (m.Install, "state"): state,
    (m.StatePiece, "frame"): frame,
    (r.Put, "rows"): lambda rng: tuple((cell(rng), cell(rng)) for _ in range(rng.randrange(4))),
    (r.Shown, "put"): lambda rng: message(r.Put, rng),
    (m.Bundle, "parts"): parts,
    (Accept, "parts"): parts,
    (Base, "index"): lambda rng: rng.getrandbits(40),
    (More, "first"): lambda rng: rng.getrandbits(40),
    (More, "committed"): lambda rng: rng.getrandbits(40),
    (Base, "state"): state,
    (Base, "number"): lambda rng: 0,
    (Base, "tail"): lambda rng: tuple(entry(rng) for _ in range(rng.randrange(3))),
    (More, "entries"): lambda rng: tuple(entry(rng) for _ in range(rng.randrange(3))),
    (Line, "plan"): lambda rng: rng.choice(PLANS),
}


def value(hint: Any, rng: Random) -> Any:
    """A value of that type, within its bounds."""
    if hint == Schedule:
        return schedule(rng)
    if hint == Span:
        return span(rng)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return bounded(arguments[0], arguments[1], rng)
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple(value(arguments[0], rng) for _ in range(rng.randrange(4)))
    if origin is tuple:
        return tuple(value(each, rng) for each in arguments)
    if origin is dict:
        return {value(arguments[0], rng): value(arguments[1], rng) for _ in range(rng.randrange(5))}
    if origin is Literal:
        return rng.choice(arguments)
    if origin in (Union, types.UnionType):
        return value(rng.choice(arguments), rng)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return struct(hint, rng)
    return {
        int: rng.choice([0, 1, -1, rng.getrandbits(40)]),
        bool: rng.random() < 0.5,
        bytes: rng.randbytes(rng.choice([0, 3, 300])),
        str: rng.choice(["", "v1", "ü" * 20]),
        type(None): None,
    }[hint]


def bounded(base: Any, meta: msgspec.Meta, rng: Random) -> Any:
    if base is int:
        low = meta.ge or 0
        high = meta.le if meta.le is not None else meta.lt - 1 if meta.lt is not None else (1 << 64) - 1
        return rng.choice([low, high, max(low, 0), min(high, 7), rng.randrange(int(high) + 1)])
    if base is bytes and meta.max_length == MAKER_BYTES:
        return rng.choice([b"", rng.randbytes(16), rng.randbytes(MAKER_BYTES)])
    if base is bytes and meta.max_length == 16:
        return rng.randbytes(16) if meta.min_length or rng.random() < 0.8 else b""
    if base is bytes:  # a change of settings is rare
        return rng.randbytes(rng.choice([3, 300])) if rng.random() < 0.2 else b""
    if get_origin(base) is tuple:
        return value(base, rng)[: meta.max_length]
    assert base is str
    return "ü" * (meta.max_length or 4) if rng.random() < 0.1 else rng.choice(["", "v1", "10.0.0.1:7000"])


def struct(kind: type[msgspec.Struct], rng: Random) -> Any:
    fields = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        special = _SPECIAL.get((kind, name))
        if special is not None:
            fields[name] = special(rng)
        elif name == "status" and kind in STATUSES:
            fields[name] = rng.choice(STATUSES[kind])
        else:
            fields[name] = value(hint, rng)
    if kind in (Bundle, Accept) and fields["contributions"] and rng.random() < 0.7:
        fields["lagging"] |= {each[0]: T0 - rng.getrandbits(30) for each in list(fields["contributions"])[:2]}
    return kind(**fields)


def write(number: int, rng: Random) -> Write:
    """A record of that number (`record_codec`)."""
    job = rng.randbytes(16)
    made: dict[int, Callable[[], Write]] = {
        1: lambda: Write(("node", b""), rng.getrandbits(20), True),
        2: lambda: Write(("directory", b""), value(tuple[m.Item, ...], rng), rng.random() < 0.5),
        3: lambda: Write(("ballot", job), struct(Promise, rng), True),
        4: lambda: Write(("log", job), struct(Base, rng), True),
        5: lambda: Write(("log", job), struct(More, rng)),
        6: lambda: Write(("ledger", job), (value(m.Ballot, rng), value(TOLD, rng))),
        7: lambda: Write(("log", job), struct(Promise, rng), True),
        8: lambda: Write(("log", job), replace(struct(Base, rng), number=1 + rng.getrandbits(8))),
        9: lambda: Write(("log", job), Rows(1, rng.getrandbits(8), RowPiece("v1", 0, frame(rng)))),
        10: lambda: Write(("log", job), Whole(1, rng.getrandbits(8))),
    }
    return made[number]()


TOLD = tuple[tuple[tuple[m.ShortText, m.Micros], m.Revision, m.Digest, bool], ...]


def fields_of(value: object) -> tuple[str, ...]:
    """The names of the fields of a message, or of a part of it."""
    return ("ops", "rows") if isinstance(value, Part) else getattr(value, "__struct_fields__", ())


def same(one: Any, other: Any) -> bool:
    """Equality that looks into arrays."""
    if names := fields_of(one):
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name)) for name in names
        )
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(one[k], other[k]) for k in one)
        )
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "dtype"):
        return bool(one.dtype == other.dtype and one.shape == other.shape and (one == other).all())
    return type(one) is type(other) and bool(one == other)
