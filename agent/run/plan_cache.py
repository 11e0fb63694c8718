"""A cache of compiled queries: a repeated query does not load the SQL compiler, which is half of the start-up.

One small file per query in the user's cache folder, named by the digest of everything that it depends on. A cached plan is
validated like a plan from the network, and if the folder cannot be used the query is compiled.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from elf.errors import PeerError
from elf.jobmaster.plan import codec as plans
from elf.jobmaster.plan.plan import Plan, RowPlan
from elf.jobmaster.values.sql_types import SqlType

PLANS_MAX = 256
"""Files kept, of a few kilobytes each; the oldest go first."""
_ROOMS = ("values", "plan", "compile")
"""The folders of the jobmaster whose code decides what a plan is."""


def compiled(
    query: str, sources: Mapping[str, Mapping[str, SqlType]], values: Mapping[str, str] | None = None
) -> Plan | RowPlan:
    """The plan of the query from the cache, else from `elf.jobmaster.compile.query.compile_for_run`. Raises QueryError."""
    path = _folder() / _name(query, sources, values or {})
    with suppress(OSError, PeerError):
        return plans.decode_any(path.read_bytes())
    from elf.jobmaster.compile.query import compile_for_run

    plan = compile_for_run(query, sources, values)
    with suppress(OSError):
        _keep(path, plans.encode_any(plan))
    return plan


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elf" / "plans"


def _name(query: str, sources: Mapping[str, Mapping[str, SqlType]], values: Mapping[str, str]) -> str:
    """A digest of the query, its columns and values, and of the compiler, whose files have other sizes or times in another
    version."""
    code = sorted(
        (entry.name, entry.stat().st_mtime_ns, entry.stat().st_size)
        for room in _ROOMS
        for entry in os.scandir(Path(plans.__file__).parent.parent / room)
        if entry.name.endswith(".py")
    )
    columns = [(name, sorted((c, str(t)) for c, t in schema.items())) for name, schema in sources.items()]
    return hashlib.blake2b(
        repr((query, columns, sorted(values.items()), code)).encode(), digest_size=16
    ).hexdigest()


def _keep(path: Path, encoded: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime)
    for one in known[: max(0, len(known) - PLANS_MAX + 1)]:
        one.unlink()
    import tempfile

    descriptor, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(encoded)
    os.replace(name, path)
