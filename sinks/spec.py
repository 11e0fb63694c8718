"""What a sink is called on the command line and in the configuration: `console`, or `parquet:DIR`."""

from __future__ import annotations

from pathlib import Path

import msgspec

EXPECTED = '"console" or "parquet:DIR"'


class SinkSpec(msgspec.Struct, frozen=True):
    """kind: "console" or "parquet". folder: where a parquet sink writes."""

    kind: str
    folder: Path | None = None

    def __str__(self) -> str:
        return self.kind if self.folder is None else f"{self.kind}:{self.folder}"


def parse(text: str, base: Path = Path()) -> SinkSpec:
    """A sink by its text; a relative folder is meant from `base`. Raises ValueError that says what was expected."""
    kind, colon, rest = text.partition(":")
    if kind == "console" and not colon:
        return SinkSpec("console")
    if kind == "parquet" and rest:
        return SinkSpec("parquet", base / rest)
    raise ValueError(EXPECTED)
