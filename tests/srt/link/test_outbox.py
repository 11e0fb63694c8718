"""An outbox against two plain lists: nothing is lost or torn, urgent messages overtake, the bound holds."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from elf.srt.codec.pieces import Stream
from elf.srt.codec.wire import Encoder, decode, encode, encode_parts
from elf.srt.link import outbox
from elf.srt.link.outbox import Outbox
from elf.srt.messages import messages as m
from elf.srt.messages.messages import Frame, Piece

HEAD = b"head.."


def frame(number: int, size: int) -> Frame:
    return Frame((1, 2), number, 0, 5, Piece(bytes(size)))


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.sampled_from((0, 1, 90, 250, 300, 1_000, 4_000)), st.booleans()),
            st.tuples(st.just("take"), st.just(0), st.just(False)),
        ),
        max_size=60,
    )
)
def test_stretches_contain_all_queued_messages(steps: list[Any]) -> None:
    with patch.object(outbox, "STRETCH_BYTES", 500):
        box, stream = Outbox(6_000), Stream()
        sent: list[bytes] = []
        urgent: list[bytes] = []
        came: list[bytes] = []
        waiting = 0
        for number, (what, size, is_urgent) in enumerate([*steps, *[("take", 0, False)] * 100]):
            if what == "put":
                parts = encode_parts(frame(number + 1, size))
                before = box.nbytes
                taken = box.put(parts, is_urgent=is_urgent)
                nbytes = 4 + sum(map(len, parts))
                assert taken == (not before or before + nbytes <= 6_000)
                assert box.nbytes == before + taken * nbytes
                if taken:
                    (urgent if is_urgent else sent).append(b"".join(parts))
            else:
                stretch = box.stretch(HEAD)
                assert (stretch is None) == (waiting == 0)
                if stretch is not None:
                    assert stretch.startswith(HEAD)
                    assert len(HEAD) < len(stretch) <= len(HEAD) + 500
                    came += map(bytes, stream.step(memoryview(stretch)[len(HEAD) :]))
            box.check()
            waiting = box.nbytes
        assert not box
        assert sorted(came) == sorted(sent + urgent)
        assert [each for each in came if each in sent and each not in urgent] == [
            each for each in sent if each not in urgent
        ]


def test_urgent_messages_go_first() -> None:
    box, stream = Outbox(10_000), Stream()
    slow, fast = encode(frame(1, 10)), encode(frame(2, 10))
    box.put((slow,), is_urgent=False)
    box.put((fast,), is_urgent=True)
    stretch = box.stretch(HEAD)
    assert stretch is not None
    assert stream.step(stretch[len(HEAD) :]) == [fast, slow]
    box.put((slow,), is_urgent=False)
    box.clear()
    assert box.stretch(HEAD) is None


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 62)),
    st.integers(0, 1 << 62),
    st.sampled_from(
        (0, 1, 200, 241, 242, 249, 250, 255, 256, 65_519, 65_520, 65_529, 65_530, 65_536, 300_000)
    ),
)
def test_a_frame_in_parts_is_the_frame(session: tuple[int, int], sequence: int, size: int) -> None:
    message = Frame(session, sequence, 3, 4, Piece(b"x" * size))
    joined = b"".join(encode_parts(message))
    assert joined == Encoder().encode(message)
    assert decode(joined) == message
    ping = m.Ping(m.Contact(b"i" * 16, 1), 1)
    assert encode_parts(ping) == (encode(ping),)
