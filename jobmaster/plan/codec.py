"""Plans as bytes: canonical MessagePack, so equal plans are equal bytes and a digest of them names a version of a job.

Bytes from elsewhere are validated before any code uses them (`elf.jobmaster.plan.check`).
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from elf.errors import PeerError
from elf.jobmaster.plan.plan import Plan, RowPlan

MAGIC = b"ELFP\x01"
"""Begins every encoded plan; the last byte is the version of the encoding."""
ROWS_MAGIC = b"ELFR\x01"
"""Begins every encoded plan whose rows are lines, in the cache of compiled queries, or rows of results: conditions of alerts."""
PLAN_BYTES_MAX = 4 << 20
"""Twice what 20,000 operations of about 100 bytes each take."""

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(Plan)
_row_decoder = msgspec.msgpack.Decoder(RowPlan)


def encode(plan: Plan) -> bytes:
    """The canonical bytes of `plan`: equal plans are equal bytes."""
    return MAGIC + _encoder.encode(plan)


def decode(data: bytes) -> Plan:
    """The plan in `data`, validated as a whole: it is safe to evaluate, whichever peer sent it.

    Raises PeerError for bytes that are not the encoding of a plan that the compiler can make: other bytes, unknown types and
    functions, operands of a wrong type, indices out of range, sizes beyond the bounds of `check`. O(size of the data).
    """
    if len(data) > PLAN_BYTES_MAX:
        raise PeerError(f"a plan of {len(data):,} bytes was refused; the limit is {PLAN_BYTES_MAX:,}")
    if not data.startswith(MAGIC):
        raise PeerError("a plan was refused: its first bytes are not those of a plan of this version of elf")
    from elf.jobmaster.plan.check import problem

    try:
        plan = _decoder.decode(memoryview(data)[len(MAGIC) :])
        wrong = problem(plan)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        # The error may quote a text of the peer: one line of bounded length, without control characters.
        reason = str(error)[:200].encode("unicode_escape").decode()
        raise PeerError(f"a plan was refused: {reason}") from None
    if wrong:
        raise PeerError(f"a plan was refused: {wrong}")
    return plan


def encode_any(plan: Plan | RowPlan) -> bytes:
    """As `encode`, also for a plan whose rows are lines."""
    return encode(plan) if isinstance(plan, Plan) else ROWS_MAGIC + _encoder.encode(plan)


def decode_any(data: bytes) -> Plan | RowPlan:
    """As `decode`, also for what `encode_any` made of a plan whose rows are lines."""
    if not data.startswith(ROWS_MAGIC):
        return decode(data)
    from elf.jobmaster.plan.check import row_problem

    try:
        plan = _row_decoder.decode(memoryview(data)[len(ROWS_MAGIC) :])
        wrong = row_problem(plan)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(f"a plan was refused: {type(error).__name__}") from None
    if wrong:
        raise PeerError(f"a plan was refused: {wrong}")
    return plan


def digest(plan: Plan) -> str:
    """The version of a job that this plan is: 12 hex digits of BLAKE2b over its canonical bytes."""
    return blake2b(encode(plan), digest_size=6).hexdigest()
