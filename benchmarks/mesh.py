"""A whole mesh in the simulator: shape and load of its trees, datagrams lost, masters that die, and how fast it is simulated.

    python benchmarks/mesh.py [--smoke] [--only scale,loss,deaths,load,speed]

The agents' own cores on a virtual network, one process, one thread. Every run ends when all windows are final, and each window
must equal one pass over all lines, else this exits with 1. Virtual figures are a function of the seed; only `speed`, and the
seconds told with each run, depend on the machine. The full sizes take half an hour and 5 GB.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import measure
import numpy as np

from elf.agent.commands.simulate import COLLECT
from elf.agent.simulator.fleet.fleet import CALM_US, Fleet
from elf.agent.simulator.fleet.report import FleetReport, Plan, number
from elf.agent.simulator.world.network import Weather
from elf.srt.messages.parameters import SECOND, Parameters

STORM_S, STORM_SECONDS = 6, 3
"""Datagrams are lost from this second on, for so long: by then the tree stands and commits flow."""
FLUSH_US = Parameters().flush_us
STRANGERS: list[str] = []
"""What was not exact."""


def run(plan: Plan, before: Callable[[Fleet], None] = lambda fleet: None) -> tuple[Fleet, FleetReport, float]:
    """One fleet to its end, with a line about the run itself: (it, its report, messages per second of CPU time)."""
    gc.collect()
    fleet = Fleet(plan)
    before(fleet)
    begun, cpu = time.perf_counter(), time.process_time()
    fleet.run()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    report = fleet.report()
    if not report.exact:
        STRANGERS.append(report.wrong)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    delivered = fleet.world.delivered
    print(
        f"  {plan.nodes:,} agents, {plan.jobs} jobs, {plan.seconds} s, seed {plan.seed}: {delivered:,} messages in "
        f"{seconds:.0f} s (cpu {cpu:.0f} s), {delivered / cpu:,.0f}/s of cpu, {peak:,} MiB; exact: {report.exact}",
        flush=True,
    )
    return fleet, report, delivered / cpu


def scale(smoke: bool) -> None:
    """Shape of the trees and load of the roots, without faults."""
    nodes, jobs, seconds = (20, 2, 4) if smoke else (1_000, 20, 10)
    print(f"\nTrees: {nodes:,} agents, {jobs} jobs")
    _, report, _ = run(Plan(nodes=nodes, jobs=jobs, seconds=seconds, seed=7))
    trees, root = report.trees, report.root
    print(
        measure.target("tree depth, once the trees stand", trees.depth_end, trees.depth_limit, at_most=True)
    )
    print(f"  tree depth at any moment, also while they form {trees.depth_max:7.2f}")
    print(measure.target("children of a node", trees.fan_in_max, trees.fan_in_limit, at_most=True))
    print(f"  children of a node that has any, mean          {trees.fan_in_mean:7.2f}")
    print(f"  messages to a root, /s: median, p99, max       {_spread(root.messages)}")
    share = 100 * root.messages.median / root.flat_messages
    print(
        measure.target(
            "% of a flat collection's messages, median root", share, 2 if not smoke else 100, at_most=True
        )
    )
    print(
        measure.target(
            "% of a flat collection's bytes, median root",
            100 * root.bytes.median / root.flat_bytes,
            100,
            at_most=True,
        )
    )
    print(measure.target("jobs served by one node", trees.masters_per_node_max, 4, at_most=True))


def _spread(spread: object) -> str:
    return ", ".join(number(getattr(spread, name)) for name in ("median", "p99", "max"))


def loss(smoke: bool) -> None:
    """One datagram in a hundred is lost for three seconds."""
    nodes = 20 if smoke else 10_000
    print(f"\nLoss: {nodes:,} agents, 1 % of datagrams from second {STORM_S} to {STORM_S + STORM_SECONDS}")
    begin_us, end_us = CALM_US + STORM_S * SECOND, CALM_US + (STORM_S + STORM_SECONDS) * SECOND

    def storm(fleet: Fleet) -> None:
        network = fleet.world.network
        fleet.world.at(begin_us, lambda: setattr(network, "weather", Weather(loss=0.01)))
        fleet.world.at(end_us, lambda: setattr(network, "weather", Weather()))

    plan = Plan(nodes=nodes, jobs=1, seconds=STORM_S + STORM_SECONDS + 3, seed=7)
    clean, _, _ = run(plan)
    stormy, _, _ = run(plan, storm)
    during = slice(STORM_S, STORM_S + STORM_SECONDS + 1)
    roots = [
        sum(second.root_messages[0] for second in fleet.measure.seconds[during]) for fleet in (clean, stormy)
    ]
    print(f"  messages to the root, from the loss to 1 s after {roots[1]:,}, clean {roots[0]:,}")
    print(measure.target("the root's messages / a clean run's", roots[1] / roots[0], 1.5, at_most=True))
    lags = [_lag(fleet, end_us) for fleet in (clean, stormy)]
    print(f"  flushes until all lines are seen, clean run    {lags[0]:7.2f}")
    print(measure.target("flushes until all lines are seen", lags[1], 5, at_most=True))
    print("  latency of lines, ms, by the second they were written in: median and maximum, clean | with loss")
    for second in range(STORM_S - 1, plan.seconds):
        told = " | ".join("{:.0f} {:.0f}".format(*_latency(fleet, second)) for fleet in (clean, stormy))
        print(f"    second {second:2}  {told}")


def _lag(fleet: Fleet, moment_us: int) -> float:
    """Flushes after that moment until every line that was written before it could be seen."""
    written, waited = fleet.measure.latencies()
    before = written <= moment_us
    return float((written[before] + waited[before]).max() - moment_us) / FLUSH_US


def _latency(fleet: Fleet, second: int) -> tuple[float, float]:
    written, waited = fleet.measure.latencies()
    mine = waited[(written - CALM_US) // SECOND == second] / 1_000
    return float(np.median(mine)), float(mine.max())


def deaths(smoke: bool) -> None:
    """A master dies; when is its job published again?"""
    nodes, seeds = (20, (7,)) if smoke else (1_000, (7, 8, 9))
    print(f"\nA master dies: {nodes:,} agents, {len(seeds)} times")
    slowest, detection = 0.0, 0.0
    for seed in seeds:
        _, report, _ = run(Plan(nodes=nodes, jobs=1, seconds=8, seed=seed, kill=1))
        for each in report.recoveries:
            print(f"  the master of {each.job} died at {each.at_s} s, published again after {each.seconds} s")
            slowest = max(slowest, each.seconds if each.seconds is not None else float("inf"))
        detection = report.detection_s
    print(measure.target("seconds without windows (detection + 1)", slowest, detection + 1, at_most=True))


def load(smoke: bool) -> None:
    """Messages and bytes that a node receives, by the size of the mesh."""
    sizes = (5, 20) if smoke else (100, 1_000, 10_000)
    print("\nLoad: one job, 2 lines/s at each agent, no faults; received per second, once the tree stands")
    rows = []
    for nodes in sizes:
        _, report, _ = run(Plan(nodes=nodes, jobs=1, seconds=8, seed=7))
        root = report.root
        rows.append(
            (
                f"{nodes:,}",
                *(number(value) for value in (report.node_messages.median, report.node_messages.p99)),
                *(number(value) for value in (report.node_bytes.median, report.node_bytes.p99)),
                number(root.messages.median),
                number(root.flat_messages),
                number(root.bytes.median),
                number(root.flat_bytes),
            )
        )
    print(
        "| agents | messages to a node | p99 | bytes to a node | p99 | messages to the root | flat | bytes to the root | flat |"
    )
    print("|" + " ---: |" * 9)
    for row in rows:
        print(f"| {' | '.join(row)} |")


def speed(smoke: bool) -> None:
    """How fast a mesh is simulated, with nobody who counts messages, and what dominates."""
    sizes = ((20, 1, 4),) if smoke else ((100, 1, 30), (1_000, 1, 30), (10_000, 2, 30))
    print("\nSpeed: messages delivered per second of one core")
    for nodes, jobs, seconds in sizes:
        _, _, rate = run(Plan(nodes=nodes, jobs=jobs, seconds=seconds, seed=7), _unmeasured)
        what = f"{nodes:,} agents, {jobs} jobs, {seconds} virtual seconds"
        print(measure.target(what, rate, 30_000 if not smoke else 0))
    print("  the same of 200 agents and 4 jobs under a profiler, share of the time by module")
    for module, share in profiled(Plan(nodes=5 if smoke else 200, jobs=4, seconds=5, seed=7)):
        print(f"    {module:32} {share:5.1%}")


def _unmeasured(fleet: Fleet) -> None:
    fleet.world.observers.remove(fleet.measure.observe)


def profiled(plan: Plan, most: int = 12) -> Sequence[tuple[str, float]]:
    """Modules and their own share of the time, the largest first; built-in functions count for themselves."""
    fleet = Fleet(plan)
    _unmeasured(fleet)
    profile = cProfile.Profile()
    profile.runcall(fleet.run)
    own: Counter[str] = Counter()
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, _, name), (_, _, seconds, _, _) in stats.items():
        path = Path(file)
        is_ours = "elf" in path.parts
        module = "/".join(path.parts[path.parts.index("elf") + 1 :]) if is_ours else _outside(path, name)
        own[module] += seconds
    total = sum(own.values())
    return [(module, seconds / total) for module, seconds in own.most_common(most)]


def _outside(path: Path, name: str) -> str:
    return "built-in functions of dicts, lists, numbers" if str(path) == "~" else path.name


PARTS = {"scale": scale, "loss": loss, "deaths": deaths, "load": load, "speed": speed}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="small: does it still work?")
    parser.add_argument("--only", default=",".join(PARTS), help="some of: %(default)s")
    options = parser.parse_args()
    gc.set_threshold(COLLECT, 20, 100)
    print(measure.machine())
    for name in options.only.split(","):
        PARTS[name](options.smoke)
    if STRANGERS:
        sys.exit(f"not exact: {'; '.join(STRANGERS)}")


if __name__ == "__main__":
    main()
