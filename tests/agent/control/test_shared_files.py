"""Two agents on one file are distinguished from two hosts whose files have the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from elf.agent.control import shared_files
from elf.agent.control.shared_files import boot_id, marks, shared
from elf.srt.messages.reports import FILES_MAX

ONE, OTHER = b"boot-1", b"boot-2"


def test_one_file_of_one_host_under_two_paths() -> None:
    here = marks({"access": {"/var/log/nginx/access.log": (8, 77)}}, ONE)
    there = marks({"access": {"/mnt/access.log": (8, 77), "/mnt/other.log": (8, 78)}}, ONE)
    assert shared([("web2", there), ("web1", here)]) == [
        "web1 and web2 read one file: /var/log/nginx/access.log; its lines count once for each of them"
    ]


@pytest.mark.parametrize(
    ("there", "boot"),
    [
        ({"access": {"/log": (8, 77)}}, OTHER),  # another host
        ({"access": {"/log": (9, 77)}}, ONE),  # another disk
        ({"access": {"/log": (8, 78)}}, ONE),  # another file
        ({"errors": {"/log": (8, 77)}}, ONE),  # another source, which other jobs read
        ({"access": {"/log": (8, 77)}}, b""),  # a host that does not tell
    ],
)
def test_files_not_known_to_be_one_are_not_reported(
    there: dict[str, dict[str, tuple[int, int]]], boot: bytes
) -> None:
    here = marks({"access": {"/log": (8, 77)}}, ONE)
    assert shared([("web1", here), ("web2", marks(there, boot))]) == []


def test_an_agent_that_has_a_file_twice_is_one() -> None:
    here = marks({"access": {"/log": (8, 77), "/link": (8, 77)}}, ONE)
    assert shared([("web1", here)]) == []


def test_reported_files_are_bounded() -> None:
    files = {f"/{'x' * 400}{number}": (1, number) for number in range(1_000)}
    told = marks({"access": files}, ONE)
    assert len(told) == FILES_MAX
    assert max(len(path) for _, _, path in told) == shared_files.PATH_MAX


def test_a_kernel_that_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    boot_id.cache_clear()
    monkeypatch.setattr(shared_files, "BOOT_ID", tmp_path / "none")
    assert boot_id() == b""
    boot_id.cache_clear()
