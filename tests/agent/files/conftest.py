from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.source_rig import Log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path)
    yield log
    log.close()
