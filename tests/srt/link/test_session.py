"""A link's golden session: bundles in every form that a section takes, both ways, in pieces; old ones stay readable to their end.

In `golden/link-v1.txt` each message has a line for its name and direction, one for what it means and one for its pieces, as the
sender posted them. Bytes are never written anew: without that file ELF_GOLDEN=write makes it. What follows depends on all before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from random import Random

import pytest
from msgspec.structs import replace

from elf.jobmaster.log.log_codec import LOG
from elf.srt.codec import rosters as roster_codec
from elf.srt.codec.rosters import RosterDecoder
from elf.srt.link.coded_links import CodedLinks
from elf.srt.messages import messages as m
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import CLOSED, FIRST, GAP, Bundle, Message, Piece, Position, Slot, Span
from elf.srt.messages.roster import Presence, Section
from tests.rigs import paths
from tests.rigs.wire_values import T0, parts, same
from tests.srt.codec.test_wire import shown

GOLDEN = paths.GOLDEN / "link-v1.txt"
FRAME = 500
CHILD, PARENT = b"C" * 16, b"P" * 16
JOB, OTHER = b"J" * 16, b"O" * 16
BALLOT = (3, b"M" * 16)
FORMS = {
    "fresh", "all", "listed", "missing", "bitmap", "moved", "flagged", "removed", "added", "lagging", "strangers", "again",
    "second roster",
}  # fmt: skip


class Subtree:
    """One job's bundles: each contribution of a file begins where the last one ended, unless given otherwise."""

    def __init__(self, job: bytes, files: int, seed: int) -> None:
        self.job, self.rng, self.count = job, Random(seed), 0
        self.slots = [self._slot() for _ in range(files)]
        self.ends: dict[Slot, int] = {}

    def _slot(self) -> Slot:
        return self.rng.randbytes(16), self.rng.getrandbits(64), self.rng.choice((0, 0, 7))

    def join(self, files: int) -> list[Slot]:
        self.slots += [self._slot() for _ in range(files)]
        return self.slots[-files:]

    def bundle(
        self,
        slots: list[Slot],
        *,
        skip: int = 0,
        flags: int = 0,
        lagging: dict[NodeId, int] | None = None,
        again: bool = False,
        with_rows: bool = False,
    ) -> Bundle:
        """`skip`, `flags`: of the first five."""
        spans: dict[Slot, Span] = {}
        for place, slot in enumerate(slots):
            odd = place < 5
            start = self.ends.get(slot, self.rng.randrange(1 << 40)) + (skip if odd else 0)
            spans[slot] = (start, start + self.rng.randrange(3_000), flags if odd else 0)
            if not again:
                self.ends[slot] = spans[slot][1]
        self.count += 2
        return Bundle(
            self.job,
            (CHILD, 1, self.count),
            3,
            spans,
            T0 + self.count,
            lagging or {},
            parts(self.rng) if with_rows else {},
            again,
            BALLOT,
        )


def session() -> Iterator[tuple[str, str, Message]]:
    """Name, "up" or "down", what is sent."""
    up, down = Subtree(JOB, 80, 1), Subtree(OTHER, 10, 2)
    files = up.slots
    first = up.bundle(files, flags=FIRST, with_rows=True)
    yield "a fresh roster", "up", first
    yield "all of it goes on", "up", up.bundle(files)
    yield "its commit", "down", m.Commit(JOB, BALLOT, (first.id,))
    yield "once more what was sent", "up", replace(first, again=True)
    yield "a bitmap", "up", up.bundle(files[::2])
    yield "another job the other way", "down", down.bundle(down.slots, flags=FIRST)
    yield "all but a few", "up", up.bundle(files[3:])
    yield "a few of many", "up", up.bundle(files[20:24])
    yield "so few that they are listed", "up", up.bundle(files[:2], lagging={files[0][0]: T0 - 9})
    late = {files[0][0]: T0 - 1_000_000, files[9][0]: T0 - 5, b"S" * 16: 7}
    yield "places that moved, flags, who lags", "up", up.bundle(files[:40], skip=77, flags=GAP, lagging=late)
    yield "the other job goes on", "down", down.bundle(down.slots[:9], flags=CLOSED)
    yield "files that came", "up", up.bundle([*up.join(3), *files[:60]])
    yield "files that went", "up", up.bundle(files[:60], with_rows=True)
    yield "a second roster", "up", up.bundle(up.join(70), flags=FIRST)
    yield "the first one goes on", "up", up.bundle(files[:60])
    yield "a split", "down", m.Split(JOB, BALLOT, first.id, (), ((files[0], Position(500)),))


def made() -> Iterator[tuple[str, str, Message, list[Piece]]]:
    ends = {"up": CodedLinks(FRAME, LOG), "down": CodedLinks(FRAME, LOG)}
    for name, way, message in session():
        yield name, way, message, ends[way].pieces(PARENT if way == "up" else CHILD, message)


class Forms:
    """Which forms the sections had that were decoded."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def see(self, section: Section, again: bool, rosters: int) -> None:
        kinds = {
            "fresh": section.is_fresh,
            "moved": section.n_moved,
            "flagged": section.n_flagged,
            "removed": section.n_removed,
            "added": section.n_added and not section.is_fresh,
            "lagging": section.n_lagging,
            "strangers": section.strangers,
            "again": again,
            "second roster": rosters > 1 and not section.is_fresh,
        }
        self.found |= {name for name, is_so in kinds.items() if is_so}
        self.found.add(Presence(section.presence).name.lower())


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> Forms:
    seen, decode = Forms(), RosterDecoder.decode

    def seeing(
        self: RosterDecoder, section: Section, again: bool = False, slots_max: int = 1 << 20
    ) -> object:
        came = decode(self, section, again, slots_max)
        seen.see(section, again, len(self.rosters))
        return came

    monkeypatch.setattr(RosterDecoder, "decode", seeing)
    # What is removed when is the encoder's choice; a session of sixty bundles would prove no more.
    monkeypatch.setattr(roster_codec, "FORGET_AFTER", 3)
    return seen


class Reader:
    """Both ends of the link, taking what the other one sent."""

    def __init__(self) -> None:
        self.ends = {"up": CodedLinks(FRAME, LOG), "down": CodedLinks(FRAME, LOG)}

    def take(self, way: str, pieces: list[Piece]) -> Message:
        peer = CHILD if way == "up" else PARENT
        *before, last = pieces
        assert all(len(piece.payload) <= FRAME for piece in pieces)
        assert all(self.ends[way].take(peer, piece) == [] for piece in before)
        (message,) = self.ends[way].take(peer, last)
        return message


def test_a_session_arrives_in_every_form(forms: Forms) -> None:
    reader = Reader()
    counts = []
    for name, way, message, pieces in made():
        assert same(reader.take(way, pieces), message), name
        counts.append(len(pieces))
    assert forms.found == FORMS
    assert min(counts) == 1
    assert max(counts) > 3


def as_text() -> str:
    """A session made now, and what a reader takes it for."""
    reader, lines = Reader(), list[str]()
    for name, way, _, pieces in made():
        came = shown(reader.take(way, pieces))
        lines += [f"{way}: {name}", f"  {came}", f"  {' '.join(piece.payload.hex() for piece in pieces)}"]
    return "\n".join(lines) + "\n"


def test_an_old_session_stays_readable(forms: Forms) -> None:
    if os.environ.get("ELF_GOLDEN") == "write" and not GOLDEN.exists():
        GOLDEN.write_text(as_text(), encoding="utf-8")
        forms.found.clear()
    kept = re.findall(r"^(up|down): (.*)\n  (.*)\n  ([0-9a-f ]+)$", GOLDEN.read_text(encoding="utf-8"), re.M)
    assert [(way, name) for way, name, _, _ in kept] == [(way, name) for name, way, _ in session()]
    reader = Reader()
    for way, name, what, data in kept:
        came = reader.take(way, [Piece(bytes.fromhex(each)) for each in data.split()])
        assert shown(came) == what, name
    assert forms.found == FORMS
