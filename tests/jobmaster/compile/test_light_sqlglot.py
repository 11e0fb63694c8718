"""What a first query imports, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

FIRST = """
import sys
from elf.jobmaster.compile.parse import parse
assert parse("SELECT path, count(*) AS n FROM access GROUP BY path")
print(sorted({"email", "importlib.metadata"} & set(sys.modules)))
from importlib.metadata import version
print(version("sqlglot") != "")
"""


def test_a_query_leaves_the_metadata_of_packages_alone_and_usable() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{FIRST}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\nTrue\n"
