"""Each rule of the commit protocol that the design marks with a star, and how it is broken: another method in place of its own.

Of the simulations `mesh` with `seeds` at least one must fail then; with the rule in force every one must be exact. One seed is
enough, that in which it is seen soonest; where a change of the protocol hides it there, look for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from elf.agent.node.seats import SeatedNode
from elf.agent.node.term import Term
from elf.agent.node.worker import group_limit
from elf.agent.node.worker.delta_worker import DeltaWorker
from elf.agent.node.worker.reading_places import ReadingPlaces
from elf.agent.simulator.scenario.scenario import Scenario
from elf.agent.simulator.world.sources import VirtualSource
from elf.cbt import other
from elf.jobmaster.delivery import alert_outbox
from elf.jobmaster.delivery.ledger import Ledger
from elf.jobmaster.delivery.outbox import Outbox
from elf.jobmaster.delivery.watchers import Watchers
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.log.answers import Answers
from elf.jobmaster.log.job_state import JobState, Published
from elf.jobmaster.log.positions import Fit, Positions
from elf.jobmaster.log.replica import Replica
from elf.jobmaster.log.replication import Replication
from elf.jobmaster.log.succession import Succession
from elf.jobmaster.master import master as master_module
from elf.jobmaster.master import window_rule
from elf.jobmaster.master.amendments import Amendments
from elf.jobmaster.master.elsewhere import Elsewhere
from elf.jobmaster.master.intake import Intake
from elf.jobmaster.master.master import Master
from elf.jobmaster.master.proposals import Proposals
from elf.jobmaster.master.publication import Publication
from elf.jobmaster.master.roster import Roster
from elf.jobmaster.master.window_rule import Progress
from elf.jobmaster.master.window_settings import WindowSettings
from elf.srt.link.link import Link
from elf.srt.messages.bundles import OpenBundle
from elf.srt.messages.messages import (
    Commit,
    Resend,
)
from elf.srt.tree.place import Place
from elf.srt.tree.reduce import Reducer
from tests.rigs.canaries import carried, jobs, meshes
from tests.rigs.canaries.breaks import (
    always,
    announce_first,
    another_part,
    as_if_read,
    as_it_comes,
    at_once,
    bidding,
    by_epoch,
    by_stamp,
    count_only,
    from_memory,
    from_the_last_final,
    go_on,
    hung_up,
    lanes_again,
    mixed_is,
    nothing,
    only_what_was_read,
    performed,
    publish_and_log,
    raised,
    watermarks_of_all,
    whole_ones,
    with_the_promise,
)
from tests.rigs.canaries.interest import deaf, outliving, unannounced, voiding


class Canary(NamedTuple):
    """rule: as in the design. broken: what happens instead. owner, method: the rule's place."""

    rule: str
    broken: str
    owner: Any
    method: str
    instead: Any
    mesh: Callable[[int], Scenario]
    seeds: range


@contextmanager
def without(canary: Canary) -> Iterator[None]:
    """Switch the rule off in this context."""
    with patch.object(canary.owner, canary.method, canary.instead):
        yield


CANARIES = (
    Canary(
        "Limits: which groups stay is decided by their hashes",
        "by arrival: each agent keeps those of which it has cut most",
        *(group_limit, "_sampled", jobs.by_arrival),
        *(meshes.limited, range(4)),
    ),
    Canary(
        "Limits: the highest level of a pane holds for the whole pane",
        "each part of it has a level of its own",
        *(other, "_levels", jobs.own_level),
        *(meshes.limited, range(4)),
    ),
    Canary(
        "2: spans of a file join only where they meet",
        "they join with a hole, or twice",
        *(OpenBundle, "meets", always(True)),
        *(meshes.stopped, range(29, 30)),
    ),
    Canary(
        "2: watermarks count only in contributions, empty ones included",
        "files without new lines are not named",
        *(ReadingPlaces, "covered", only_what_was_read),
        *(meshes.rebuilt, range(3, 4)),
    ),
    Canary(
        "2: watermarks count only inside accepted contributions",
        "those of bundles that were not accepted count, too",
        *(Intake, "_judge", watermarks_of_all),
        *(meshes.takeovers, range(15, 16)),
    ),
    Canary(
        "2: a promise for times in which no line was parsed is a gap",
        "it is an ordinary promise",
        *(DeltaWorker, "_keep", as_if_read),
        *(meshes.unread, range(1)),
    ),
    Canary(
        "2: the time of which no line could be parsed comes with these lines",
        "it comes only with the promise for that time",
        *(DeltaWorker, "_keep", with_the_promise),
        *(meshes.read_anew, range(407, 408)),
    ),
    Canary(
        "3: a link is strictly FIFO",
        "messages are delivered as they arrive, each once",
        *(Link, "_deliverable", as_it_comes),
        *(meshes.in_pieces, range(54, 55)),
    ),
    Canary(
        "4: a mixed bundle is split",
        "it is accepted",
        *(Positions, "_classify", mixed_is(Fit.FITS)),
        *(meshes.takeovers, range(3, 4)),
    ),
    Canary(
        "4: a mixed bundle is split",
        "it is dropped, and reported as committed",
        *(Positions, "_classify", mixed_is(Fit.BEHIND)),
        *(meshes.takeovers, range(3, 4)),
    ),
    Canary(
        "4: the sender of a bundle is asked to split it",
        "no Split is sent",
        *(Intake, "_send_split", nothing),
        *(meshes.brisk, range(5, 6)),
    ),
    Canary(
        "4: a split has the children resend what they fed",
        "it is reported to them as committed",
        *(Reducer, "_verdict", always(Commit)),
        *(meshes.rough, range(4, 5)),
    ),
    Canary(
        "4: a split continues below, recursively",
        "children send the bundle again unsplit",
        *(Reducer, "_verdict", always(Resend)),
        *(meshes.brisk, range(10, 11)),
    ),
    Canary(
        "4: a lone worker re-reads",
        "it continues at its position",
        *(DeltaWorker, "_rewind", go_on),
        *(meshes.takeovers, range(2, 3)),
    ),
    Canary(
        "4: a file that is not known is ahead, unless it begins",
        "it may begin anywhere",
        *(Positions, "may_open", always(True)),
        *(meshes.takeovers, range(15, 16)),
    ),
    Canary(
        "6: a replica acknowledges only prefixes",
        "it accepts entries after a gap",
        *(Replica, "continues", always(True)),
        *(meshes.takeovers, range(1, 2)),
    ),
    Canary(
        "6: an entry is committed when all replicas hold it",
        "the own disk is enough",
        *(Replication, "everywhere", lambda self: self.durable),
        *(meshes.takeovers, range(1)),
    ),
    Canary(
        "6: nothing is acknowledged before",
        "answers do not wait for the log",
        *(Proposals, "when_committed", at_once),
        *(meshes.takeovers, range(1)),
    ),
    Canary(
        "7: ballots are compared in order",
        "by epoch only",
        *(Replica, "outranks", staticmethod(by_epoch)),
        *(meshes.takeovers, range(35, 36)),
    ),
    Canary(
        "7: the highest ballot seen is kept on disk",
        "in memory only",
        *(Replica, "promise", from_memory),
        *(meshes.restarts, range(5, 6)),
    ),
    Canary(
        "7: every refusal carries the refuser's ballot",
        "the refused node does not get it",
        *(Replica, "refuse", always([])),
        *(meshes.deposed, range(14, 15)),
    ),
    Canary(
        "7: the highest (ballot, index) is taken",
        "the closest node takes its own",
        *(Answers, "best", lambda self, own: self._me),
        *(meshes.bare, range(1, 2)),
    ),
    Canary(
        "8: a rebuild resumes at the oldest retained pane",
        "at the last final one",
        *(master_module, "first_entry", from_the_last_final),
        *(meshes.rebuilt, range(2)),
    ),
    Canary(
        "8: a window that was final is published again only if all replayed it",
        "also by fewer, when no more agents will come",
        *(Outbox, "is_worse", always(False)),
        *(meshes.rebuilt_with_less, range(1)),
    ),
    Canary(
        "8: agents that may still come are waited for, for windows that were final before a rebuild",
        "only as long as for other windows",
        *(Progress, "is_settled", always(True)),
        *(meshes.late_comers, range(1, 2)),
    ),
    Canary(
        "Roster: a node accepts a new job only from a node that holds adverts of the same agents",
        "from any node",
        *(Directory, "_acceptable", lambda self, message: message.items),
        *(meshes.unknown_sender, range(5, 6)),
    ),
    Canary(
        "10: a closed file continues where it was closed",
        "it never does",
        *(Positions, "may_reopen", always(False)),
        *(meshes.twins, range(3, 4)),
    ),
    Canary(
        "10: a closed file continues where it was closed",
        "also from earlier positions",
        *(Positions, "may_reopen", lambda self, start, length: start <= length),
        *(meshes.twins, range(1)),
    ),
    Canary(
        "10: no log begins another part of a file",
        "lines past the position where one closed it are another file, for all logs",
        *(VirtualSource, "read", another_part),
        *(meshes.one_behind, range(10, 11)),
    ),
    Canary(
        "Windows: the roster starts from the directory",
        "from the agents that report",
        *(Roster, "adverts", nothing),
        *(meshes.silent, range(1)),
    ),
    Canary(
        "Windows: with agents missing only by a master to which more than half have reported",
        "by any master",
        *(Roster, "has_majority", always(True)),
        *(meshes.divided, range(1)),
    ),
    Canary(
        "Windows: more than half have promised, whatever lines they lost",
        "only agents with all their lines count",
        *(Progress, "has_majority", whole_ones),
        *(meshes.bereft, range(6284922, 6284923)),
    ),
    Canary(
        "Windows: FINAL is replicated before it is published",
        "published at once",
        *(Master, "log_final", publish_and_log),
        *(meshes.sinks, range(1, 2)),
    ),
    Canary(
        "Windows: revisions are compared in order",
        "they count without the ballot",
        *(Publication, "next_revision", count_only),
        *(meshes.takeovers, range(5, 6)),
    ),
    Canary(
        "Windows: revisions are compared in order",
        "a sink takes the last one to arrive",
        *(Ledger, "_is_newer", always(True)),
        *(meshes.rough, range(1)),
    ),
    Canary(
        "Changing: CONTROL is replicated before it is multicast",
        "multicast at once",
        *(Amendments, "announce", announce_first),
        *(meshes.changes, range(1)),
    ),
    Canary(
        "Changing: a row's version is the schedule's for its time",
        "any version is taken",
        *(Positions, "rows_belong", always(True)),
        *(meshes.changes, range(2, 3)),
    ),
    Canary(
        "Changing: CONTROL discards rows that lanes will bring again",
        "rows stay",
        *(JobState, "_drop_lane_rows", nothing),
        *(meshes.hasty, range(7, 8)),
    ),
    Canary(
        "Changing: rows change hands where the new version counts alike",
        "they are lost",
        *(JobState, "_keep_rows", nothing),
        *(meshes.shown, range(3)),
    ),
    Canary(
        "Changing: lanes are accepted once",
        "each time they come",
        *(Positions, "place", lanes_again),
        *(meshes.changes, range(2, 3)),
    ),
    Canary(
        "Changing: lanes are cut again if the schedule changes again",
        "the earlier one is forgotten",
        *(Amendments, "reread_from", lambda self, line_us: line_us),
        *(meshes.revoked_meanwhile, range(1, 2)),
    ),
    Canary(
        "Changing: no pane is final while a lane is open",
        "as soon as all watermarks have passed",
        *(window_rule, "lanes_open", always([])),
        *(meshes.hasty, range(1, 2)),
    ),
    Canary(
        "Changing: of two specs with one number the digest decides",
        "the one that was there first stays",
        *(Directory, "_is_newer", by_stamp),
        *(meshes.rivals, range(1, 2)),
    ),
    Canary(
        "6: a state in pieces is taken when all of them are there",
        "with the first one",
        *(Replica, "is_whole", always(True)),
        *(meshes.in_pieces, range(1, 2)),
    ),
    Canary(
        "Sinks: the ledger refuses lower ballots",
        "it takes them",
        *(Ledger, "_is_fenced_off", always(False)),
        *(meshes.deaf, range(1, 2)),
    ),
    Canary(
        "Sinks: a sink gets the windows of the log that its ledger lacks",
        "it gets those that are published from then on",
        *(Outbox, "lacks", nothing),
        *(meshes.sinks, range(1, 2)),
    ),
    Canary(
        "Moving: the next agent records what the one before has delivered",
        "it records nothing",
        *(Ledger, "_take_over", carried.unrecorded),
        *(meshes.carried, range(9, 10)),
    ),
    Canary(
        "Moving: a master knows what was delivered when a sink moves",
        "it forgets that",
        *(Outbox, "_served", staticmethod(carried.forgotten)),
        *(meshes.carried, range(6, 7)),
    ),
    Canary(
        "Moving: changes of alerts go on after the last one delivered",
        "they go on after the last one that this agent knows",
        *(alert_outbox, "_Sink", carried.from_its_own_cursor),
        *(carried.alerted, range(5, 6)),
    ),
    Canary(
        "Alone: a sink gets its windows whatever another one of its node takes",
        "a node's windows are sent to one sink after another",
        *(Outbox, "_next", jobs.one_after_another),
        *(meshes.beside, range(1)),
    ),
    Canary(
        "Final: a revision has one status at all masters",
        "a window that is sent again is sent as final",
        *(Published, "status", property(always("final"))),
        *(meshes.watched, range(1, 2)),
    ),
    Canary(
        "Final: a window that readers may have as final is revised",
        "each log starts with final windows",
        *(Publication, "_first_status", always("final")),
        *(meshes.moved, range(1)),
    ),
    Canary(
        "Final: a window that another master may have published as final is revised",
        "workers' promises to other masters do not count",
        *(Elsewhere, "may_have", always(False)),
        *(meshes.moved, range(3, 4)),
    ),
    Canary(
        "7: a ballot is raised to take over, once",
        "by a serving master, repeatedly",
        *(Succession, "tick", bidding),
        *(meshes.bare, range(1)),
    ),
    Canary(
        "Seats: a job's failure affects that job only",
        "the exception propagates",
        *(SeatedNode, "_failed", raised),
        *(meshes.bugs, range(1)),
    ),
    Canary(
        "Seats: neighbours learn of it by a message of that job",
        "the links are reset",
        *(SeatedNode, "_announce_away", hung_up),
        *(meshes.bugs, range(1, 2)),
    ),
    Canary(
        "Interest: what the root knows is announced at once, and again",
        "the announcement that is kept goes out",
        *(Place, "watch", unannounced),
        *(meshes.visited, range(1)),
    ),
    Canary(
        "Interest: what a parent announces holds for its child, and for those below",
        "it is lost when it begins",
        *(Place, "follow", deaf),
        *(meshes.stayed, range(1)),
    ),
    Canary(
        "Interest: it ends with the last watcher",
        "it outlives it",
        *(Watchers, "_forget", outliving),
        *(meshes.visited, range(1)),
    ),
    Canary(
        "Interest: a change of the beat leaves the reading as it is",
        "it voids it, and the window that closes meanwhile",
        *(DeltaWorker, "_hurry", voiding),
        *(meshes.visited, range(1)),
    ),
    Canary(
        "Seats: nothing of a call that raised is performed",
        "all of it is performed",
        *(SeatedNode, "_failed", performed),
        *(meshes.bugs, range(4, 5)),
    ),
    Canary(
        "Seats: a new seat starts with all records of the former one",
        "with those durable by then",
        *(SeatedNode, "_is_written", always(True)),
        *(meshes.bugs_of_slow_disks, range(23, 24)),
    ),
    Canary(
        "Settings: a window has those in force at the first time that it covers",
        "those in force when it is published",
        *(WindowSettings, "of", jobs.of_the_newest),
        *(meshes.tuned, range(1)),
    ),
    Canary(
        "Trials: those who work are those who are expected",
        "all agents with the source are expected",
        *(JobItems, "agents", jobs.of_all_names),
        *(meshes.tried, range(1)),
    ),
    Canary(
        "Trials: each node ends a trial at its time",
        "no node does",
        *(Term, "__init__", jobs.endless),
        *(meshes.tried, range(1)),
    ),
)
