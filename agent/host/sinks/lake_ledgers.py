"""Ledgers on disk: under which key, and what a lake's files show that its ledger lacks."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from elf.jobmaster.delivery.ledger import ENTRIES_KEPT, NO_REVISION, Ledger, Revision, Window
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.log.schedule import Shape, plan_of
from elf.jobmaster.windows import result
from elf.sinks.lake.layout import pane_folders
from elf.sinks.lake.parquet import ParquetSink
from elf.srt.messages.ids import ID_BYTES, MAKER_BYTES, JobId


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
    from_us = ledger.known_from_us
    for (version, pane), (epoch, node, n) in panes.items():
        if version in shapes and node.bit_length() <= 8 * MAKER_BYTES:
            window, held = (
                (version, shapes[version].stored_with(pane)),
                ((epoch, node.to_bytes(MAKER_BYTES), n), pane),
            )
            windows[window] = min(held, windows.get(window, held))
    newest = sorted((each for each in windows if each[1] >= from_us), key=lambda each: each[1])[
        -ENTRIES_KEPT:
    ]
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
