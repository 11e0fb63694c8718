"""Versions that differ only in the values of parameters share a plan: a spec has it once, in the last of them, and the values of
the others apart, some 100 bytes for each. Pure.

A version is (digest, plan, text) here. In place of a plan that another version has: its digest, and the values. In place of a
text that it has: "".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from elf.errors import PeerError
from elf.jobmaster.log.schedule import plan_of
from elf.jobmaster.plan.check import PARAMETERS_MAX
from elf.jobmaster.plan.codec import encode
from elf.jobmaster.plan.parameters import Value, filled, parameters

Parts = tuple[str, bytes, str]
MAGIC = b"ELFV\x01"
"""Begins values in place of a plan; the last byte is the version of the encoding."""

WHOLE_BYTES_MAX = 4 << 20
"""Bytes of all plans of a job in memory: 64 of 64 KiB. They are kept of `JOBS_MAX` jobs."""
JOBS_MAX = 8


def is_plan(data: bytes) -> bool:
    """Whether it is a plan, and not values in place of one."""
    return not data.startswith(MAGIC)


class _Values(msgspec.Struct, frozen=True, array_like=True):
    """base: the version that has the plan. values: of all its parameters, sorted by name."""

    base: Annotated[str, Meta(max_length=64)]
    values: Annotated[tuple[tuple[str, bool | int | float | str], ...], Meta(max_length=PARAMETERS_MAX)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Values)


def shared(versions: Sequence[Parts]) -> list[Parts]:
    """These versions, which have all their plans, with each plan once. O(bytes)."""
    bases: dict[bytes, Parts] = {}
    out = []
    for version in reversed(versions):
        digest, data, text = version
        bare, values = parted(data)
        base = bases.setdefault(bare, version)
        if values and text and base is not version:
            data = MAGIC + _encoder.encode(_Values(base[0], values))
            text = "" if text == base[2] else text
        out.append((digest, data, text))
    return out[::-1]


@lru_cache(maxsize=JOBS_MAX)
def whole(versions: tuple[Parts, ...]) -> tuple[Parts, ...]:
    """The same versions with all their plans. Raises PeerError for values without a plan that takes them. O(bytes)."""
    bases = {version[0]: version for version in versions}
    found = tuple(each if is_plan(each[1]) else _filled(each, bases) for each in versions)
    if sum(len(data) for _, data, _ in found) > WHOLE_BYTES_MAX:
        raise PeerError(f"directory: the plans of a job have more than {WHOLE_BYTES_MAX:,} bytes")
    return found


@lru_cache(maxsize=256)
def parted(data: bytes) -> tuple[bytes, tuple[tuple[str, bool | int | float | str], ...]]:
    """A plan without the values of its parameters, and these."""
    try:
        plan = plan_of(data)
    except PeerError:
        return data, ()
    values = {name: each.value for name, each in parameters(plan).items()}
    if not values:
        return data, ()
    bare = encode(filled(plan, dict.fromkeys(values)))
    return bare, tuple((name, value) for name, value in values.items() if value is not None)


def _filled(version: Parts, bases: dict[str, Parts]) -> Parts:
    digest, data, text = version
    try:
        held = _decoder.decode(data[len(MAGIC) :])
        _, base, base_text = bases[held.base]
        values: dict[str, Value] = dict(held.values)
        return digest, encode(filled(plan_of(base), values)), text or base_text
    except (msgspec.DecodeError, KeyError, PeerError) as error:
        raise PeerError(f"directory: version {digest[:12]!r} has values for no plan ({error})") from error
