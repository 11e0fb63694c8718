"""Shared fixtures. One Spark session serves the whole run: starting a JVM costs seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from elf.errors import ElfError


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need Spark run in one process where several share the work, so that one session serves them."""
    for item in items:
        if item.get_closest_marker("spark") or "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The shared local Spark session (UTC, ANSI off). Skips where pyspark or Java is missing, but never in CI."""
    try:
        from elf.sinks.spark import session

        running = session(None, "elf-tests")
    except ElfError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    yield running
    running.stop()


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither read nor write the user's cache."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()
