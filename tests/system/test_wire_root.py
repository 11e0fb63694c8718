"""The benchmark of what arrives at a root still works, and keeps its promise at a size that a test can take."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.rigs import paths

SCRIPT = paths.ROOT / "benchmarks" / "mesh_root.py"


@pytest.mark.skipif(not SCRIPT.exists(), reason="the benchmarks are not part of an installed package")
def test_a_root_takes_few_bytes() -> None:
    command = [sys.executable, str(SCRIPT), "--workers", "8000", "--rounds", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(
        r"([\d.]+) MB/s into the root.*\n.* ([\d.]+) times as much\n +([\d.]+) bytes", done.stdout
    )
    assert found is not None, done.stdout
    rate, ratio, each = map(float, found.groups())
    assert rate < 2 * 8_000 / 100_000 + 0.2, "2 MB/s at 100,000 workers; rows do not grow with them"
    assert ratio > 5
    assert each < 3
