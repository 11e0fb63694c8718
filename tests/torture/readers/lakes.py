"""The content of lakes, read as docs/lake.md describes: of a pane's files only the highest revision counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.torture.jobs import Job
from tests.torture.oracle import Count, Group
from tests.torture.readers.publications import Publication


class Lake:
    """The lake `name` in `folder`. Files are read once: they never change."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._known: set[Path] = set()
        self._panes: dict[tuple[str, str, int], dict[tuple[Any, ...], Publication]] = {}
        """(job, version, start) -> revisions."""

    def read(self, job: Job) -> list[Publication]:
        """All revisions of all panes of that job."""
        for path in sorted(self.folder.glob(f"{job.name}/**/date=*/[!.]*.parquet")):
            if path not in self._known:
                self._read_file(path, job)
                self._known.add(path)
        return [
            each for (name, *_), panes in self._panes.items() if name == job.name for each in panes.values()
        ]

    def versions(self, job: Job) -> set[str]:
        """All versions of that job that are stored."""
        self.read(job)
        return {version for name, version, _ in self._panes if name == job.name}

    def latest(self, job: Job) -> dict[int, Publication]:
        """The last revisions, by the pane's start in seconds, without withdrawn ones. If the job has versions, of that one."""
        latest: dict[int, tuple[tuple[Any, ...], Publication]] = {}
        self.read(job)
        for (name, version, start_s), revisions in self._panes.items():
            if name == job.name and job.version in ("", version):
                latest[start_s] = max(revisions.items(), key=lambda item: item[0])
        return {start_s: pane for start_s, (_, pane) in latest.items() if pane.status != "withdrawn"}

    def _read_file(self, path: Path, job: Job) -> None:
        from pyarrow.parquet import ParquetFile

        [version] = [part.removeprefix("version=v") for part in path.parts if part.startswith("version=v")]
        for row in ParquetFile(path).read().to_pylist():
            start_s = int(row["_pane_start"].timestamp())
            revision = (row["_revision_epoch"], row["_revision_node"], row["_revision_n"])
            revisions = self._panes.setdefault((job.name, version, start_s), {})
            pane = revisions.setdefault((*revision, row["_digest"]), self._pane(row, job, start_s, path))
            if pane.where == f"lake {self.name}: {path.name}" and not row["_empty"]:
                group: Group = tuple(row[key] for key in job.keys)
                last = max(name for name in row if name.startswith("_acc"))
                pane.rows[group] = Count(row["_acc0"], int(row[last] or 0) if job.has_bytes else 0)

    def _pane(self, row: dict[str, Any], job: Job, start_s: int, path: Path) -> Publication:
        return Publication(
            where=f"lake {self.name}: {path.name}",
            job=job.name,
            start_s=start_s,
            status=row["_status"],
            revision=(row["_revision_epoch"], row["_revision_node"], row["_revision_n"]),
            reporting=row["_agents_reporting"],
            expected=row["_agents_expected"],
            lines_read=row["_lines_read"],
            lines_rejected=row["_lines_rejected"],
            lines_late=row["_lines_late"],
            is_all=True,
        )
