"""`report` by both engines: without Spark, then in it. Each test of a report so compares them: output, notices, errors."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import IO, Any, BinaryIO

import pytest

from elf.errors import ElfError
from elf.sinks.report import local
from elf.sinks.report.report import report as one

Told = tuple[bytes, str, tuple[str, str] | None]


def report(
    lake: str,
    *,
    stdout: BinaryIO | None = None,
    notices: IO[str] | None = None,
    same: Callable[[bytes, bytes], bool] = bytes.__eq__,
    **named: Any,
) -> None:
    """The report in Spark. Fails if that of the engine is not the `same`."""
    own, _ = _told(lake, **named)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local, "is_small", lambda folder: False)
        in_spark, error = _told(lake, **named)
    (stdout or sys.stdout.buffer).write(in_spark[0])
    (notices or sys.stderr).write(in_spark[1])
    assert same(own[0], in_spark[0]), (own[0], in_spark[0])
    assert own[1:] == in_spark[1:]
    if error is not None:
        raise error


def _told(lake: str, **named: Any) -> tuple[Told, ElfError | None]:
    out, said = io.BytesIO(), io.StringIO()
    try:
        one(lake, stdout=out, notices=said, **named)
    except ElfError as error:
        return (out.getvalue(), said.getvalue(), (type(error).__name__, str(error))), error
    return (out.getvalue(), said.getvalue(), None), None
