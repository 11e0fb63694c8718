"""The text that names a sink on the command line and in the configuration: `console`, `console:json`, or `parquet:DIR`."""

from __future__ import annotations

from pathlib import Path

import msgspec

EXPECTED = '"console", "console:table" (or json, csv), or "parquet:DIR"'
FORMS = ("table", "json", "csv")


class SinkSpec(msgspec.Struct, frozen=True):
    """kind: "console" or "parquet". folder: where a parquet sink writes. output: the console's format; "auto": by its stream."""

    kind: str
    folder: Path | None = None
    output: str = "auto"

    def __str__(self) -> str:
        if self.folder is not None:
            return f"{self.kind}:{self.folder}"
        return self.kind if self.output == "auto" else f"{self.kind}:{self.output}"


def parse(text: str, base: Path = Path()) -> SinkSpec:
    """The sink that `text` names; a relative folder is relative to `base`. Raises ValueError, which says what is expected."""
    kind, colon, rest = text.partition(":")
    if kind == "console" and not colon:
        return SinkSpec("console")
    if kind == "console" and rest in FORMS:
        return SinkSpec("console", output=rest)
    if kind == "parquet" and rest:
        return SinkSpec("parquet", base / rest)
    raise ValueError(EXPECTED)
