"""Features of plans: those that plans need are those that agents know, and an older agent lacks what came later."""

from __future__ import annotations

import msgspec
import pytest

from elf.agent.formats.presets import COLUMN_TYPES
from elf.errors import PeerError
from elf.jobmaster.compile.query import compile as compile_query
from elf.jobmaster.compile.reports import REPORTS
from elf.jobmaster.plan import codec
from elf.jobmaster.plan.features import HASH_BYTES, known, lacking, needed, own, packed

HEAD = "SELECT window, count(*) AS hits FROM access "
TAIL = "GROUP BY window(time, '1 minute')"


def needs_of(sql: str, **values: str) -> frozenset[str]:
    return needed(codec.encode(compile_query(sql, {"access": COLUMN_TYPES}, values)))


def test_a_plan_needs_what_it_uses() -> None:
    plain = needs_of(HEAD + TAIL)
    assert needs_of(HEAD + "WHERE upper(method) = 'GET' " + TAIL) - plain == {
        *("function upper", "function =", "node call", "node literal", "kind boolean", "kind string"),
        *("field arguments", "field value"),
    }
    assert "field parameter" in needs_of(HEAD + "WHERE status >= :least " + TAIL, least="500")
    assert "reduce sum_squares" in needs_of(HEAD.replace("count(*)", "variance(bytes)") + TAIL)
    greatest = needs_of(HEAD.replace("count(*)", "max(path)") + TAIL)
    assert {"kind greatest", "function max"} <= greatest
    assert "kind min_by" in needs_of(HEAD.replace("count(*)", "first(path)") + TAIL)
    assert "kind registers" in needs_of(HEAD.replace("count(*)", "approx_count_distinct(path)") + TAIL)


def test_no_text_of_a_query_is_a_feature() -> None:
    assert needs_of(HEAD + "WHERE path = 'function' OR path = 'node x' " + TAIL) == needs_of(
        HEAD + "WHERE path = 'a' OR path = 'b' " + TAIL
    )


@pytest.mark.parametrize("sql", REPORTS.values(), ids=REPORTS)
def test_this_version_knows_what_its_plans_need(sql: str) -> None:
    assert needed(codec.encode(compile_query(sql, {"access": COLUMN_TYPES}))) <= known()
    assert lacking(own(), needed(codec.encode(compile_query(sql, {"access": COLUMN_TYPES})))) == ()


def test_an_older_agent_lacks_what_came_later() -> None:
    older = packed(known() - {"function upper", "field having"})
    assert lacking(older, needs_of(HEAD + "WHERE upper(method) = 'GET' " + TAIL)) == (
        "field having",
        "function upper",
    )
    assert lacking(older, frozenset({"encoding 1"})) == ()


def test_features_have_different_hashes() -> None:
    assert len(own()) == HASH_BYTES * len(known())
    assert len({own()[at : at + HASH_BYTES] for at in range(0, len(own()), HASH_BYTES)}) == len(known())


def test_a_plan_of_a_later_version_can_be_read_for_its_needs_though_not_decoded() -> None:
    plan = msgspec.msgpack.decode(codec.encode(compile_query(HEAD + TAIL, {"access": COLUMN_TYPES}))[5:])
    later = plan | {
        "where": {"node": "call", "function": "soundex", "arguments": [], "type": {"kind": "boolean"}},
        "shuffle": 1,
    }
    data = codec.MAGIC + msgspec.msgpack.encode(later)
    with pytest.raises(PeerError):
        codec.decode(data)
    assert lacking(own(), needed(data)) == ("field shuffle", "function soundex")


@pytest.mark.parametrize(
    "data", [b"", b"ELFP", b"ELFP\x02abc", b"ELFP\x01\xc1", b"garbage" * 9, b"ELFP\x01" + b"\x91" * 5000]
)
def test_what_is_no_plan_of_this_encoding_needs_what_nobody_knows(data: bytes) -> None:
    assert lacking(own(), needed(data))
