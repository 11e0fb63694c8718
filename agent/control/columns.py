"""Columns beyond the canonical ones: what each agent advertises, and what a query of one source may use.

An agent's log_format may have variables of its own, a regex format named groups. Their names and types are in the agent's advert,
for each source, so that any agent can compile a query for all agents that follow the source. A column that an agent does not have
is NULL in its lines.

The lines of some formats name their values: any key may be a column (`own_keys.ANY`), and is read by the type that a job expects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice

from msgspec.structs import replace

from elf.agent.control.protocol import HeldColumn
from elf.agent.formats.fields import LATENESS_MAX_US
from elf.agent.formats.own_keys import ANY, widest
from elf.agent.formats.presets import COLUMN_TYPES, beyond
from elf.jobmaster.directory.job_spec import COLUMN_TYPES_MAX, COLUMNS_MAX, AgentAdvert, SourceColumns
from elf.jobmaster.values.sql_types import BIGINT, BOOLEAN, DOUBLE, MICROS, STRING, TIMESTAMP, SqlType

Columns = Mapping[str, SqlType]
NAME_MAX = 100
BYTES_MAX = 4096
"""Bound on the columns of one advert, since every agent holds the adverts of all agents."""
AGENTS_NAMED_MAX = 3
_TYPES = {str(type): type for type in (STRING, BIGINT, MICROS, TIMESTAMP, DOUBLE, BOOLEAN)}


def advertised(
    sources: Mapping[str, Columns], lateness_us: Mapping[str, int] = {}
) -> tuple[SourceColumns, ...]:
    """For each source with columns of its own: their names by type. Names beyond `BYTES_MAX` in all are left out. lateness_us: of
    the sources of which it is known."""
    out, left = [], BYTES_MAX
    for source, columns in sources.items():
        by_type: dict[str, list[str]] = {}
        for name, type in sorted(beyond(columns).items())[:COLUMNS_MAX]:
            left -= len(name.encode()) + 2
            if len(name) <= NAME_MAX and str(type) in _TYPES and left >= 0:
                by_type.setdefault(str(type), []).append(name)
        late = lateness_us.get(source, 0)
        if by_type or late:
            types = tuple((type, tuple(names)) for type, names in sorted(by_type.items()))
            out.append(SourceColumns(source, types[:COLUMN_TYPES_MAX], late))
    return tuple(out)


def with_columns(advert: AgentAdvert, columns: tuple[SourceColumns, ...]) -> AgentAdvert:
    """The advert with the columns that its sources have now. `since_us` grows by the one microsecond that makes this advert the
    newer one."""
    return replace(advert, columns=columns, since_us=advert.since_us + 1)


def columns_of(advert: AgentAdvert, source: str) -> dict[str, SqlType]:
    """The columns that an agent advertises for a source, without canonical names and types that this version does not know."""
    known = chain.from_iterable(each.types for each in advert.columns if each.source == source)
    return {
        name: _TYPES[type]
        for type, names in known
        if type in _TYPES
        for name in names
        if name not in COLUMN_TYPES
    }


def held_columns(adverts: Iterable[AgentAdvert], source: str) -> tuple[HeldColumn, ...]:
    """The union of the columns of all agents that follow a source, by name and type. O(agents * columns)."""
    found: dict[tuple[str, str], set[str]] = {}
    followers = sorted(
        (advert for advert in adverts if source in advert.sources and not advert.until_us),
        key=lambda advert: advert.name,
    )
    for advert in followers:
        for name, type in columns_of(advert, source).items() if advert.columns else ():
            found.setdefault((name, str(type)), set()).add(advert.name)
    return tuple(
        HeldColumn(
            name,
            type,
            len(agents),
            tuple(sorted(agents)[:AGENTS_NAMED_MAX]),
            tuple(islice((each.name for each in followers if each.name not in agents), AGENTS_NAMED_MAX)),
        )
        for (name, type), agents in sorted(found.items())
    )


def held_lateness_us(adverts: Iterable[AgentAdvert], source: str) -> int:
    """The longest lateness of the agents that follow a source; an agent that does not say may need `LATENESS_MAX_US`."""
    of_agents = (
        max((each.lateness_us for each in advert.columns if each.source == source), default=0)
        for advert in adverts
        if source in advert.sources and not advert.until_us
    )
    return max((late or LATENESS_MAX_US for late in of_agents), default=LATENESS_MAX_US)


class Schema:
    """The columns that a query of one source may use. `followers`: how many agents follow it."""

    def __init__(self, held: Iterable[HeldColumn], followers: int) -> None:
        self.followers = followers
        self._held: dict[str, list[HeldColumn]] = {}
        for column in held:
            if column.type in _TYPES and column.name not in COLUMN_TYPES:
                self._held.setdefault(column.name, []).append(column)
        self._is_keyed = sum(one.count for one in self._held.get(ANY, ())) == followers > 0
        """Whether the lines of all agents name their values."""

    @property
    def types(self) -> dict[str, SqlType]:
        """The type of each column; where agents disagree, that of most agents, or the widest if all can read it as such."""
        return COLUMN_TYPES | {name: self._type_of(held) for name, held in self._held.items()}

    def _type_of(self, held: Sequence[HeldColumn]) -> SqlType:
        if self._is_keyed:
            return widest(_TYPES[one.type] for one in held)
        return _TYPES[max(held, key=lambda one: (one.count, one.type)).type]

    def conflict(self, columns: Iterable[str]) -> str:
        """The first of these columns that does not have the same type at all agents, as a message; "" if there is none."""
        for name in columns:
            held = self._held.get(name, [])
            if len(held) > 1 and not self._is_keyed:
                ways = " and ".join(f"{one.type} at {_agents(one)}" for one in held)
                return (
                    f"column {name} is {ways}; give these agents a format in which it has one type, or give the sources of one "
                    "type another name"
                )
        return ""

    def lacking(self, columns: Iterable[str]) -> list[str]:
        """Notices for columns that some agents do not have."""
        notices = []
        for name in columns:
            held = self._held.get(name, [])
            missing = self.followers - sum(one.count for one in held)
            if name not in COLUMN_TYPES and missing > 0:
                some = named(held[0].lacking, missing) if len(held) == 1 else ""
                if not held:
                    from difflib import get_close_matches

                    near = get_close_matches(name, self._held.keys() | COLUMN_TYPES.keys(), n=3)
                    some = f"nearest: {', '.join(near)}" if near else ""
                notices.append(
                    f"{missing} of {self.followers} agents {'has' if missing == 1 else 'have'} no column {name}"
                    f"{f' ({some})' if some else ''}; in their lines it is NULL{' until one has it' if self._is_keyed else ''}"
                )
        return notices


def _agents(held: HeldColumn) -> str:
    return named(held.agents, held.count)


def named(some: Sequence[str], count: int) -> str:
    """Some of `count` agents, and how many more there are."""
    more = count - len(some)
    return ", ".join(some) + (f" and {more} more" if more > 0 else "")
