"""The ledgers of one job at one agent, one for each lake that the job has there; to masters they look like one.

What is told is what all of them hold: of a window the lowest revision, and of fences the highest. So a lake that a job gets
later, beside others here, lacks all windows, and is told them; and what one lake holds already is stored in the others only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from elf.jobmaster.delivery.ledger import Ledger
from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import ID_BYTES, JobId, NodeId
from elf.srt.messages.results import LedgerReport, LedgerRequest, Put, PutPart, PutReply


def key_of(job: JobId, lake: str) -> bytes:
    """Under which that ledger is on disk."""
    return blake2b(job + lake.encode(), digest_size=ID_BYTES).digest()


def step_all(
    ledgers: dict[str, Ledger], source: NodeId, message: LedgerRequest | Put | PutPart, now: int
) -> tuple[list[Effect], list[str]]:
    """Ask all of them: one answer behind what each writes, and the lakes that are to store the window. O(entries told)."""
    effects: list[Effect] = []
    lakes, ledgers_reply, puts_reply = list[str](), list[LedgerReport](), list[PutReply]()
    for lake, ledger in ledgers.items():
        for effect in ledger.step(source, message, now):
            if isinstance(effect, Send) and isinstance(effect.message, LedgerReport):
                ledgers_reply.append(effect.message)
            elif isinstance(effect, Send) and isinstance(effect.message, PutReply):
                puts_reply.append(effect.message)
            else:
                effects.append(effect)
        lakes += [lake for _ in ledger.take_accepted()]
    if ledgers_reply:
        effects.append(Send(source, _held_by_all(ledgers_reply)))
    elif len(puts_reply) == len(ledgers):
        effects.append(Send(source, _lowest(puts_reply)))
    return effects, lakes


def wanted(ledgers: Iterable[Ledger], part: PutPart) -> bool:
    """Whether some lake lacks the window, and none serves a higher ballot."""
    each = list(ledgers)
    return not each or (
        all(part.ballot >= one.fence for one in each) and any(one.wants(part) for one in each)
    )


def _held_by_all(tells: Sequence[LedgerReport]) -> LedgerReport:
    first, *others = [{window: (revision, digest) for window, revision, digest in t.entries} for t in tells]
    for other in others:
        first = {window: min(held, other[window]) for window, held in first.items() if window in other}
    fence = max(tell.fence for tell in tells)
    return LedgerReport(tells[0].job, fence, tells[0].number, tuple((w, *held) for w, held in first.items()))


def _lowest(tells: Sequence[PutReply]) -> PutReply:
    told = min(tells, key=lambda tell: tell.revision)
    fence = max(tell.fence for tell in tells)
    return PutReply(told.job, fence, told.version, told.start, told.revision)
