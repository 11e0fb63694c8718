"""Failure detection of one node, claim by claim; and the rules that keep a live node in."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from elf.srt.messages.effects import Effect, Send, Write
from elf.srt.messages.ids import NodeId, node_id
from elf.srt.messages.messages import Contact, JoinReply, LeavesReport, Message, News, Ping, Pong, ProbeFor
from elf.srt.messages.parameters import MS, SECOND, Parameters
from elf.srt.overlay.membership import CALM_PERIODS, GRAVES_MAX, Membership
from elf.srt.overlay.overlay import Overlay
from elf.srt.overlay.rounds import SOON_TRIES
from tests.rigs.overlay_rig import is_alive

TIMES = Parameters()
ME = Contact(node_id(b"me"), 7, "here")
OTHERS = [Contact(node_id(bytes([number])), 3, f"there-{number}") for number in range(8)]
A, B = OTHERS[0], OTHERS[1]


def overlay(*known: Contact) -> Overlay:
    node = Overlay(ME, TIMES, Random(4))
    node.warm(known or OTHERS, 0)
    return node


def sent(effects: list[Effect], kind: type[Message]) -> list[tuple[NodeId, Message]]:
    return [
        (each.to, each.message)
        for each in effects
        if isinstance(each, Send) and isinstance(each.message, kind)
    ]


def claim(node: Overlay, contact: Contact, status: str, now: int = 0) -> list[Effect]:
    """B says so on a ping."""
    return node.step(B.id, Ping(B, 1, (News(contact, status),)), now)


def version(contact: Contact, incarnation: int, refuted: int = 0) -> Contact:
    return Contact(contact.id, incarnation, contact.address, refuted)


def run(node: Overlay, until: int, answering: set[NodeId], now: int = 0) -> list[Effect]:
    """Tick at each deadline; those of `answering` answer pings at once, for themselves and as indirect probers."""
    produced: list[Effect] = []
    while (deadline := node.deadline) is not None and deadline <= until:
        now = max(now, deadline)
        queue = node.tick(now)
        while queue:
            effect = queue.pop(0)
            produced.append(effect)
            if not isinstance(effect, Send) or effect.to not in answering:
                continue
            contact = next(other for other in OTHERS if other.id == effect.to)
            if isinstance(effect.message, Ping) and effect.message.number:
                queue += node.step(effect.to, Pong(contact, effect.message.number, effect.to), now)
            elif isinstance(effect.message, ProbeFor) and effect.message.target.id in answering:
                about = effect.message.target
                queue += node.step(effect.to, Pong(contact, effect.message.number, about.id), now)
        node.check()
    return produced


# The table of `membership`, row by row.

ROWS = [
    ([("suspect", 3, 0)], ["suspect"], "suspect"),
    ([("suspect", 2, 0)], [], "alive"),
    ([("suspect", 3, 0), ("suspect", 3, 0)], ["suspect"], "suspect"),
    ([("suspect", 3, 0), ("alive", 3, 0)], ["suspect"], "suspect"),
    ([("suspect", 3, 0), ("alive", 3, 1)], ["suspect", "alive"], "alive"),
    ([("suspect", 3, 0), ("alive", 3, 1), ("suspect", 3, 0)], ["suspect", "alive"], "alive"),
    ([("suspect", 3, 0), ("dead", 3, 0)], ["suspect", "dead"], "gone"),
    ([("suspect", 3, 0), ("alive", 4, 0)], ["suspect", "dead", "joined"], "alive"),
    ([("alive", 3, 1)], [], "alive"),
    ([("alive", 4, 0)], ["dead", "joined"], "alive"),
    ([("alive", 2, 9)], [], "alive"),
    ([("dead", 3, 0)], ["dead"], "gone"),
    ([("dead", 2, 9)], [], "alive"),
    ([("left", 3, 0)], ["left"], "gone"),
    ([("dead", 3, 0), ("alive", 3, 0)], ["dead"], "gone"),
    ([("dead", 3, 0), ("suspect", 3, 0)], ["dead"], "gone"),
    ([("dead", 3, 0), ("alive", 3, 1)], ["dead", "joined"], "alive"),
    ([("left", 3, 0), ("alive", 4, 0)], ["left", "joined"], "alive"),
    ([("nonsense", 9, 9)], [], "alive"),
    # Its process is gone: that life, or one that nobody here has heard of yet; not one before.
    ([("gone", 3, 0)], ["dead"], "gone"),
    ([("gone", 4, 0)], ["dead"], "gone"),
    ([("gone", 2, 0)], [], "alive"),
    ([("gone", 3, 0), ("gone", 3, 0)], ["dead"], "gone"),
    ([("suspect", 3, 0), ("gone", 3, 0)], ["suspect", "dead"], "gone"),
    ([("gone", 3, 0), ("suspect", 3, 0)], ["dead"], "gone"),
    ([("gone", 3, 0), ("dead", 3, 0)], ["dead"], "gone"),
    ([("gone", 3, 0), ("alive", 3, 0)], ["dead"], "gone"),
    ([("gone", 3, 0), ("alive", 3, 1)], ["dead", "joined"], "alive"),
    ([("gone", 3, 0), ("alive", 4, 0)], ["dead", "joined"], "alive"),
    ([("gone", 3, 0), ("back", 4, 0)], ["dead", "joined"], "alive"),
    ([("gone", 4, 0), ("alive", 3, 5)], ["dead"], "gone"),
    ([("alive", 4, 0), ("gone", 3, 0)], ["dead", "joined"], "alive"),
    # A later life answers where the connection to the earlier one was lost.
    ([("back", 4, 0)], ["dead", "joined"], "alive"),
    ([("back", 3, 0)], [], "alive"),
    ([("back", 4, 0), ("gone", 3, 0)], ["dead", "joined"], "alive"),
]


def happens(node: Overlay, status: str, about: Contact) -> list[Effect]:
    """A claim of B, or an event of the connection to that node."""
    if status == "gone":
        return node.process_gone(about.id, about.incarnation, 0)
    return node.restarted(about, 0) if status == "back" else claim(node, about, status)


@pytest.mark.parametrize(("claims", "changes", "end"), ROWS)
def test_claims_are_weighed_by_version(
    claims: list[tuple[str, int, int]], changes: list[str], end: str
) -> None:
    node = overlay()
    for status, incarnation, refuted in claims:
        about = version(A, incarnation, refuted)
        for to, ping in sent(happens(node, status, about), Ping):
            if status == "alive" and to == A.id and isinstance(ping, Ping):
                node.step(A.id, Pong(about, ping.number, A.id), 0)
        node.check()
    produced = node.take_changes()
    assert [what for what, contact in produced if contact.id == A.id] == changes
    assert [contact.id for _, contact in produced] == [A.id] * len(produced)
    assert is_alive(node, A.id) == (end == "alive")
    assert (A.id in {contact.id for contact in node.leaves()}) == (end != "gone")
    assert node.take_changes() == []


@pytest.mark.parametrize(
    "report",
    [Ping(B, 1, (News(OTHERS[7], "alive"),)), LeavesReport(B, (OTHERS[7],)), JoinReply(B, (OTHERS[7],))],
)
def test_only_nodes_that_were_heard_enter_the_leaf_set(report: Message) -> None:
    node = overlay(*OTHERS[:7])
    produced = sent(node.step(B.id, report, 0), Ping)
    assert [to for to, _ in produced] == [OTHERS[7].id]
    assert OTHERS[7] not in node.leaves()
    ping = produced[0][1]
    assert isinstance(ping, Ping)
    node.step(OTHERS[7].id, Pong(OTHERS[7], ping.number, OTHERS[7].id), 0)
    assert OTHERS[7] in node.leaves()
    assert ("joined", OTHERS[7]) in node.take_changes()
    node.check()


def test_a_node_that_is_reported_alive_is_probed_a_few_times() -> None:
    node = overlay(*OTHERS[:7])
    produced = node.step(B.id, Ping(B, 1, (News(OTHERS[7], "alive"),)), 0)
    produced += run(node, 5 * SECOND, {other.id for other in OTHERS[:7]})
    assert [to for to, _ in sent(produced, Ping)].count(OTHERS[7].id) == SOON_TRIES
    assert OTHERS[7] not in node.leaves()


def test_news_is_forwarded_and_claims_about_the_addressee_go_first() -> None:
    node = overlay()
    for other in OTHERS[2:7]:
        claim(node, other, "suspect")
    effects = node.step(A.id, Ping(A, 5, (News(OTHERS[7], "suspect"),)), 0)
    (_, pong), *_ = sent(effects, Pong)
    assert isinstance(pong, Pong)
    assert 1 <= len(pong.news) <= TIMES.news_max
    effects = node.step(OTHERS[7].id, Ping(OTHERS[7], 6), 0)
    (_, pong), *_ = sent(effects, Pong)
    assert isinstance(pong, Pong)
    assert pong.news[0] == News(OTHERS[7], "suspect")


def test_a_claim_is_sent_news_repeats_times() -> None:
    members = Membership(ME, TIMES, Random(1))
    members.spread(News(A, "alive"))
    produced = [members.news_for(B.id) for _ in range(TIMES.news_repeats + 3)]
    assert produced == [(News(A, "alive"),)] * TIMES.news_repeats + [()] * 3


# Probes.


def test_silence_leads_to_indirect_probes_then_suspicion_then_death() -> None:
    node = overlay()
    answering = {other.id for other in OTHERS} - {A.id}
    produced = run(node, 12 * SECOND, answering)
    kinds = [type(message).__name__ for to, message in _about(produced, A)]
    first = kinds.index("ProbeFor")
    assert kinds[:first] == ["Ping", "Ping"]
    assert kinds[first : first + TIMES.indirect_probes] == ["ProbeFor"] * TIMES.indirect_probes
    assert "suspect" in {
        news.status for _, ping in _about(produced, A) if isinstance(ping, Ping) for news in ping.news
    }
    assert [what for what, contact in node.take_changes()] == ["suspect", "dead"]
    assert A.id not in node.closest(A.id, 9)


def _about(effects: list[Effect], contact: Contact) -> list[tuple[NodeId, Message]]:
    return [
        (each.to, each.message)
        for each in effects
        if isinstance(each, Send)
        and (
            each.to == contact.id
            or (isinstance(each.message, ProbeFor) and each.message.target.id == contact.id)
        )
    ]


def test_others_hear_of_a_process_that_is_gone_as_a_suspicion_and_itself_as_of_its_death() -> None:
    node = overlay()
    node.process_gone(A.id, A.incarnation, 0)
    (pong,) = [answer for _, answer in sent(claim(node, B, "alive"), Pong)]
    assert isinstance(pong, Pong)
    assert News(A, "suspect") in pong.news
    # If it lives after all, its next word is answered with what is believed of it, and it refutes that.
    (answer,) = [answer for _, answer in sent(node.step(A.id, Ping(A, 5), 0), Pong)]
    assert isinstance(answer, Pong)
    assert answer.news[0] == News(A, "dead")
    node.step(A.id, Ping(version(A, 3, 1), 6), 0)
    assert is_alive(node, A.id)


def test_no_member_is_kept_for_a_stranger_whose_process_is_gone() -> None:
    node = overlay(A)
    assert node.process_gone(B.id, B.incarnation, 0) == []
    assert node.take_changes() == []
    node.check()


def test_a_node_that_is_reached_through_others_is_not_suspected() -> None:
    node = overlay()
    others = {other.id for other in OTHERS} - {A.id}
    now = 0
    for _ in range(200):
        now = max(now, node.deadline or 0)
        queue = node.tick(now)
        while queue:
            effect = queue.pop(0)
            if not isinstance(effect, Send) or effect.to not in others:
                continue
            contact = next(other for other in OTHERS if other.id == effect.to)
            message = effect.message
            if isinstance(message, Ping) and message.number:
                queue += node.step(effect.to, Pong(contact, message.number, effect.to), now)
            elif isinstance(message, ProbeFor):
                queue += node.step(effect.to, Pong(contact, message.number, message.target.id), now)
    assert now > 10 * SECOND
    assert node.take_changes() == []


def test_doubt_probes_at_once_directly_and_indirectly_and_only_once() -> None:
    node = overlay()
    effects = node.probe_now(A.id, 0)
    assert [to for to, _ in sent(effects, Ping)] == [A.id]
    assert len(sent(effects, ProbeFor)) == TIMES.indirect_probes
    assert node.probe_now(A.id, 0) == []
    assert node.probe_now(node_id(b"unknown"), 0) == []
    run(node, TIMES.probe_us + TIMES.suspect_us, {other.id for other in OTHERS} - {A.id})
    assert [what for what, _ in node.take_changes()] == ["suspect", "dead"]


def test_an_indirect_probe_is_answered_with_the_targets_version() -> None:
    node = overlay()
    asked = node.step(B.id, ProbeFor(B, 41, A), 0)
    ((to, ping),) = sent(asked, Ping)
    assert to == A.id
    assert isinstance(ping, Ping)
    refuted = version(A, 3, 2)
    ((to, pong),) = sent(node.step(A.id, Pong(refuted, ping.number, A.id), 1_000), Pong)
    assert to == B.id
    assert isinstance(pong, Pong)
    assert (pong.number, pong.about, pong.news) == (41, A.id, (News(refuted, "alive"),))
    assert node.step(A.id, Pong(refuted, ping.number, A.id), 1_000) == []


def test_a_watched_stranger_is_probed_and_given_up_like_others() -> None:
    node = overlay()
    stranger = node_id(b"child")
    node.watch(stranger)
    node.watch(stranger)
    node.check()
    assert node.member(stranger) == Contact(stranger, 0)
    produced = run(node, 1 * SECOND, {other.id for other in OTHERS})
    assert stranger in {to for to, _ in sent(produced, Ping)}
    run(node, 6 * SECOND, {other.id for other in OTHERS}, SECOND)
    assert [(what, contact.id) for what, contact in node.take_changes()] == [
        ("suspect", stranger),
        ("dead", stranger),
    ]
    node.unwatch(stranger)
    node.unwatch(stranger)
    node.unwatch(stranger)
    node.check()


def test_a_watched_leaf_is_probed_a_quarter_as_often_again_and_a_node_that_watches_none_is_calm() -> None:
    """All leaves hear of its death from any of them; and where no tree needs it, turns come half as often."""
    everybody = {other.id for other in OTHERS}

    def pings(is_watched: bool) -> Counter[NodeId]:
        node = overlay()
        if is_watched:
            node.watch(A.id)
        return Counter(to for to, _ in sent(run(node, 64 * SECOND, everybody), Ping))

    alone, watched = pings(False), pings(True)
    assert watched[A.id] - watched[B.id] == pytest.approx(128 // 4, abs=6)
    assert watched[B.id] == pytest.approx(2 * alone[B.id], abs=6)


def test_a_watched_stranger_that_answers_is_known() -> None:
    node = overlay()
    child = Contact(node_id(b"child"), 4, "below")
    node.watch(child.id)
    node.step(child.id, Ping(child, 1), 0)
    assert node.take_changes() == [("joined", child)]
    assert is_alive(node, child.id)
    assert node.member(child.id) == child
    assert node.address_of(child.id) == "below"
    node.check()


# Claims about myself.


def test_a_suspect_refutes_to_the_reporter_and_to_all() -> None:
    node = overlay()
    effects = claim(node, ME, "suspect")
    assert node.me == Contact(ME.id, 7, "here", 1)
    assert not any(isinstance(each, Write) for each in effects)
    produced = [message for to, message in sent(effects, Ping) if to == B.id]
    assert [message.sender for message in produced if isinstance(message, Ping)] == [node.me]
    _, pong = sent(effects, Pong)[0]
    assert isinstance(pong, Pong)
    assert pong.sender == node.me
    assert News(node.me, "alive") in pong.news
    claim(node, ME, "dead")
    assert node.me.refuted == 1, "that claim is older than my answer to it"
    claim(node, version(ME, 7, 1), "dead")
    assert node.me.refuted == 2


@pytest.mark.parametrize("status", ["alive", "suspect", "dead"])
def test_a_claim_of_a_later_life_than_mine_cannot_be_refuted_in_this_one(status: str) -> None:
    """Links and the advert would stay below it: the whole node restarts above it."""
    node = overlay()
    claim(node, later := version(ME, 12, 3), status)
    assert node.me == ME
    assert node.take_outlived() == later
    assert node.take_outlived() is None
    assert node.take_changes() == []


def test_a_table_with_my_former_life_is_noticed_too() -> None:
    node = overlay()
    node.step(B.id, LeavesReport(B, (later := version(ME, 9), A)), 0)
    assert node.take_outlived() == later


def test_another_process_in_my_own_life_is_noticed_too() -> None:
    me, other = replace(ME, instance=1), replace(ME, instance=2)
    node = Overlay(me, TIMES, Random(1))
    node.warm(OTHERS, 0)
    claim(node, me, "alive")
    assert node.take_outlived() is None
    claim(node, other, "alive")
    assert node.take_outlived() == other


ONE, OTHER = replace(A, instance=1), replace(version(A, 5), instance=2)


def with_two_of_a() -> Overlay:
    """A node that knows the one process, and gets a claim about the other, in a later life of the same node."""
    node = Overlay(ME, TIMES, Random(1))
    node.warm([ONE, B], 0)
    return node


def test_a_claim_that_another_process_has_a_members_place_is_rejected_while_the_member_answers() -> None:
    node = with_two_of_a()
    ((to, ping),) = sent(node.step(B.id, Ping(B, 0, (News(OTHER, "alive"),)), 0), Ping)
    assert to == A.id
    assert isinstance(ping, Ping)
    assert sent(node.step(B.id, Ping(B, 0, (News(OTHER, "alive"),)), 0), Ping) == []
    node.step(A.id, Pong(ONE, ping.number, A.id), 1_000)
    node.tick(TIMES.probe_us)
    assert node.member(A.id) == ONE
    assert node.take_changes() == []


def test_it_is_believed_when_the_member_does_not_answer() -> None:
    node = with_two_of_a()
    node.step(B.id, Ping(B, 0, (News(OTHER, "alive"),)), 0)
    for tick in range(1, 5):
        node.tick(tick * TIMES.probe_us)
    assert node.member(A.id) == OTHER
    assert node.take_changes()[:2] == [("dead", ONE), ("joined", OTHER)]


def test_a_member_that_reports_itself_has_been_admitted() -> None:
    node = with_two_of_a()
    node.step(A.id, Ping(OTHER, 0), 0)
    assert node.member(A.id) == OTHER


def test_an_earlier_life_that_has_come_through_the_door_hears_above_what_it_must_be() -> None:
    node = Overlay(ME, TIMES, Random(1))
    node.warm([OTHER, B], 0)
    ((to, ping),) = sent(node.step(A.id, Ping(ONE, 0), 0), Ping)
    assert to == A.id
    assert isinstance(ping, Ping)
    assert ping.news == (News(OTHER, "alive"),)


@pytest.mark.parametrize("status", ["suspect", "dead", "left"])
def test_the_death_of_another_process_is_not_the_members(status: str) -> None:
    node = with_two_of_a()
    claim(node, OTHER, status)
    assert is_alive(node, A.id)
    assert node.take_changes() == []


def test_a_node_that_leaves_announces_it_and_does_not_refute() -> None:
    node = overlay()
    node.watch(A.id)
    produced = sent(node.left(0), Ping)
    assert {to for to, _ in produced} == {other.id for other in OTHERS}
    assert all(isinstance(ping, Ping) and ping.news == (News(ME, "left"),) for _, ping in produced)
    claim(node, ME, "left")
    assert node.me == ME
    other = Overlay(B, TIMES, Random(1))
    other.warm([ME, A], 0)
    assert sent(other.step(ME.id, produced[0][1], 0), Pong) == []
    assert other.take_changes() == [("left", ME)]
    assert not is_alive(other, ME.id)


# Time.


def test_a_clock_step_and_a_paused_process_make_no_suspects() -> None:
    node = overlay()
    everyone = {other.id for other in OTHERS}
    run(node, 5 * SECOND, everyone)
    node.tick(3_600 * SECOND)
    run(node, 3_605 * SECOND, everyone, 3_600 * SECOND)
    node.tick(10 * SECOND)
    assert (node.deadline or 0) <= 10 * SECOND + CALM_PERIODS * TIMES.probe_us
    produced = run(node, 20 * SECOND, everyone, 10 * SECOND)
    assert len(sent(produced, Ping)) >= 10
    assert node.take_changes() == []


def test_the_deadline_is_never_more_than_a_probe_period_ahead_and_tick_has_work_then() -> None:
    node = overlay()
    now = 0
    for _ in range(100):
        deadline = node.deadline
        assert deadline is not None
        assert now < deadline <= now + TIMES.probe_us
        assert node.tick(deadline - 1) == []
        now = deadline
        node.tick(now)


# Bounds.


def test_the_dead_are_remembered_up_to_a_bound_and_for_a_while() -> None:
    members = Membership(ME, TIMES, Random(1))
    members.live(0)
    crowd = [Contact(node_id(number.to_bytes(2)), 1) for number in range(3 * GRAVES_MAX)]
    for contact in crowd:
        members.admit(contact)
        assert members.bury(contact, "dead", "dead")
        members.check()
    assert list(members.graves) == [contact.id for contact in crowd[-GRAVES_MAX:]]
    assert members.next_grave() == crowd[-GRAVES_MAX]
    for step in range(2 * TIMES.dead_us // TIMES.probe_us):
        members.live(step * TIMES.probe_us)
    assert members.next_grave() is None
    assert members.graves == {}


def test_claims_of_others_do_not_pass_for_ones_own() -> None:
    node = overlay()
    assert node.step(B.id, Ping(A, 1, (News(A, "left"),)), 0) == []
    assert node.step(B.id, Pong(A, 1, A.id), 0) == []
    assert node.step(B.id, ProbeFor(A, 1, OTHERS[3]), 0) == []
    assert node.take_changes() == []


def test_a_flood_of_strangers_fills_no_memory() -> None:
    node = overlay()
    crowd = tuple(Contact(node_id(number.to_bytes(3)), 1, "x") for number in range(3_000))
    node.step(B.id, JoinReply(B, crowd), 0)
    for number, contact in enumerate(crowd):
        node.step(contact.id, Ping(contact, number), 0)
        node.step(contact.id, ProbeFor(contact, number, crowd[number - 1]), 0)
    node.check()
    assert len(node.leaves()) == TIMES.leaves
    run(node, 10 * MS, set())
