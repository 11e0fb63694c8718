"""A window as a master sent it, as sinks and people read it."""

from __future__ import annotations

from functools import lru_cache

from elf.errors import PeerError
from elf.jobmaster.plan.plan import Call, Column, Expression, Plan
from elf.jobmaster.values.sql_types import Kind
from elf.jobmaster.windows.reading import digest_steps
from elf.jobmaster.windows.result import ColumnInfo, Lines, Window
from elf.srt.messages.results import WITHDRAWN, Put


def window_of(job: str, put: Put, plan: Plan | None) -> Window:
    """plan: of the version; None: it is not known any more, and a withdrawn window of it has no columns. O(columns)."""
    epoch, node, n = put.revision
    is_bounded = plan is None or plan.window is not None
    return Window(
        job,
        put.version,
        put.start if is_bounded else None,
        put.end if is_bounded else None,
        put.status,
        (epoch, int.from_bytes(node), n),
        Lines(*put.lines, put.not_converted),
        columns_of(plan) if plan is not None else (),
        put.rows,
        agents_reporting=put.agents_reporting,
        agents_expected=put.agents_expected,
        left_out=put.left_out,
        others=put.others,
        is_single=plan is not None and plan.is_single,
    )


@lru_cache(maxsize=64)
def columns_of(plan: Plan) -> tuple[ColumnInfo, ...]:
    """The columns of the query's result, in its order; several may have one name."""
    return tuple(ColumnInfo(output.name, str(output.type)) for output in plan.select)


@lru_cache(maxsize=64)
def key_columns(plan: Plan) -> tuple[str, ...]:
    """The names of the columns that no aggregate decides, without the window; of several with one name the first."""
    names: dict[str, bool] = {}
    for output in plan.select:
        if output.type.kind is not Kind.WINDOW:
            names.setdefault(output.name, not _is_aggregated(output.expression))
    return tuple(name for name, is_key in names.items() if is_key)


def _is_aggregated(expression: Expression) -> bool:
    if isinstance(expression, Column):
        return expression.name.startswith("#a")
    return isinstance(expression, Call) and any(map(_is_aggregated, expression.arguments))


def check_rows(put: Put) -> None:
    """Raises PeerError for a window that has rows, and came without them. O(1)."""
    if not put.rows and put.status != WITHDRAWN:
        *_, digest = digest_steps((), Lines(*put.lines, put.not_converted))
        if digest != put.digest:
            raise PeerError(
                "its master sent no rows, since its elf knows no sink that takes rows; upgrade it"
            )
