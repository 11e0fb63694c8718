"""The ledgers of one job at one agent, one for each lake that the job has there; masters see them as one.

Reports contain what all of them hold: the lowest revision of a window, and the highest fence. So if a job gets another lake here
later, that lake lacks all windows, and masters send them; a window that one lake holds already is stored in the others only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b

from elf.jobmaster.delivery.ledger import ENTRIES_KEPT, NO_REVISION, Ledger, Revision, Window
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.log.schedule import Shape, plan_of
from elf.jobmaster.windows import result
from elf.sinks.lake.layout import pane_folders
from elf.sinks.lake.parquet import ParquetSink
from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import ID_BYTES, MAKER_BYTES, JobId, NodeId
from elf.srt.messages.results import LedgerReport, LedgerRequest, Put, PutPart, PutReply


def key_of(job: JobId, lake: str) -> bytes:
    """The key under which that ledger is on disk."""
    return blake2b(job + lake.encode(), digest_size=ID_BYTES).digest()


def adopt(
    ledger: Ledger, lake: ParquetSink, spec: JobSpec, panes: Mapping[tuple[str, int], result.Revision]
) -> None:
    """Let the ledger adopt the windows that only the lake's files show, of the newest windows of versions that can still change.
    panes: the lake's. Raises OSError. O(panes); opens the files of such windows only, in the lake's process."""
    shapes = {version.digest: Shape.of(plan_of(version.plan)) for version in spec.whole if version.plan}
    windows: dict[Window, tuple[Revision, int]] = {}  # -> the lowest revision of its panes, and that pane
    for (version, pane), (epoch, node, n) in panes.items():
        if version in shapes and node.bit_length() <= 8 * MAKER_BYTES:
            window, held = (
                (version, shapes[version].stored_with(pane)),
                ((epoch, node.to_bytes(MAKER_BYTES), n), pane),
            )
            windows[window] = min(held, windows.get(window, held))
    newest = sorted(windows, key=lambda window: window[1])[-ENTRIES_KEPT:]
    known = ledger.results
    fresh = {
        each: windows[each] for each in newest if windows[each][0] > known.get(each, (NO_REVISION, 0))[0]
    }
    if not fresh:
        return
    folders = {
        (version, pane): pane_folders(
            lake.directory, spec.name, version, pane, pane + shapes[version].pane_us
        )
        for (version, _), (_, pane) in fresh.items()
    }
    withdrawn = lake.withdrawn({folder for each in folders.values() for folder in each})
    ledger.adopt(
        {
            window: (
                revision,
                any(
                    (folder, pane, panes[window[0], pane]) in withdrawn for folder in folders[window[0], pane]
                ),
            )
            for window, (revision, pane) in fresh.items()
        }
    )


def step_all(
    ledgers: Mapping[str, Ledger],
    source: NodeId,
    message: LedgerRequest | Put | PutPart,
    now: int,
    lacking: Collection[str] = (),
) -> tuple[list[Effect], list[str]]:
    """Step all ledgers, but those of sinks that still lack the window. Returns their writes and then one answer,
    and the lakes that are to store the window. O(entries)."""
    effects: list[Effect] = []
    lakes, reports, replies = list[str](), list[LedgerReport](), list[PutReply]()
    for lake, ledger in ledgers.items():
        if lake in lacking:
            continue
        for effect in ledger.step(source, message, now):
            if isinstance(effect, Send) and isinstance(effect.message, LedgerReport):
                reports.append(effect.message)
            elif isinstance(effect, Send) and isinstance(effect.message, PutReply):
                replies.append(effect.message)
            else:
                effects.append(effect)
        lakes += [lake for _ in ledger.take_accepted()]
    if reports:
        effects.append(Send(source, _held_by_all(reports)))
    elif len(replies) == len(ledgers):
        effects.append(Send(source, _lowest(replies)))
    return effects, lakes


def wanted(ledgers: Iterable[Ledger], part: PutPart) -> bool:
    """Whether some lake lacks the window, and none serves a higher ballot."""
    each = list(ledgers)
    return not each or (
        all(part.ballot >= one.fence for one in each) and any(one.wants(part) for one in each)
    )


def _held_by_all(reports: Sequence[LedgerReport]) -> LedgerReport:
    first, *others = [{window: (revision, digest) for window, revision, digest in t.entries} for t in reports]
    for other in others:
        first = {window: min(held, other[window]) for window, held in first.items() if window in other}
    fence = max(report.fence for report in reports)
    return LedgerReport(
        reports[0].job, fence, reports[0].number, tuple((w, *held) for w, held in first.items())
    )


def _lowest(replies: Sequence[PutReply]) -> PutReply:
    lowest = min(replies, key=lambda reply: reply.revision)
    fence = max(reply.fence for reply in replies)
    return PutReply(lowest.job, fence, lowest.version, lowest.start, lowest.revision)
