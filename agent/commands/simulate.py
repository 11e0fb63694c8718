"""`elf simulate`: a whole fleet on one virtual network, for an operator who plans one."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from elf.agent.commands.process.signals import Stop, stop_on_signals
from elf.agent.commands.process.streams import notices
from elf.agent.run.progress import ProgressBar, percent_text
from elf.errors import UsageError

if TYPE_CHECKING:
    from elf.agent.simulator.fleet.fleet import Fleet
    from elf.agent.simulator.fleet.report import Plan

LOSS_MAX = 0.3
"""With more loss, failure detection declares half of the fleet dead, as it should: the run would show nothing."""
RATE_MAX = 10_000
LINES_MAX = 50_000_000
"""Lines are made before the run, at 40 bytes each: 2 GB."""
COLLECT = 1_000_000
"""New objects between two collections of garbage: millions live, hardly any is part of a cycle."""


def simulate_command(plan: Plan, output: str | None, html: Path | None, quiet: bool) -> int:
    """Run the fleet and print its figures; with `html` write the page too. Returns 0, 1 if a window was wrong, 130 when stopped.

    Raises `UsageError` for a plan that is not valid, or a file that cannot be written.
    """
    _check(plan, html)
    from elf.agent.simulator.fleet.fleet import Fleet
    from elf.agent.simulator.fleet.report import as_json, as_table

    begun = time.perf_counter()
    fleet = Fleet(plan)
    with stop_on_signals() as stop:
        _run(fleet, stop, quiet)
    report = fleet.report()
    as_lines = output == "table" or (output is None and sys.stdout.isatty())
    print("\n".join(as_table(report)) if as_lines else as_json(report), flush=True)
    if html is not None:
        from elf.agent.simulator.fleet.page import fleet_page

        html.write_text(fleet_page(fleet, report), encoding="utf-8")
    seconds = time.perf_counter() - begun
    messages = fleet.world.delivered
    notices(quiet)(f"{messages:,} messages in {seconds:,.1f} s: {messages / seconds:,.0f} messages/s")
    return stop.exit_code or (0 if report.exact else 1)


def replay_command(file: Path, others: Collection[str] = ()) -> int:
    """Run a scenario that the tests or a soak kept, and print its events. Returns 0, or 1 if it fails again.

    others: options of a fleet that were given too. Raises `UsageError` for any of them, and for a file that is no scenario.
    """
    if others:
        named = ", ".join(f"--{name}" for name in sorted(others))
        raise UsageError(f"--replay: the scenario in {file} defines its whole fleet; leave out {named}")
    from msgspec import MsgspecError

    from elf.agent.simulator.scenario.scenario import decode
    from elf.agent.simulator.transcript import transcript

    try:
        scenario = decode(file.read_bytes())
    except OSError as error:
        raise UsageError(f"--replay: {file}: {error.strerror or error}") from error
    except (MsgspecError, ValueError) as error:
        raise UsageError(f"--replay: {file}: no scenario of a soak ({error})") from error
    outcome, text = transcript(scenario)
    print(text, end="", flush=True)
    return 0 if outcome.is_exact else 1


def _check(plan: Plan, html: Path | None) -> None:
    if plan.kill >= plan.nodes:
        raise UsageError(
            f"--kill: expected less than --nodes ({plan.nodes}), found {plan.kill}; one agent must be left"
        )
    if not 0 <= plan.loss <= LOSS_MAX:
        raise UsageError(f"--loss: expected a probability from 0 to {LOSS_MAX:g}, found {plan.loss:g}")
    if not 0 < plan.lines_per_s <= RATE_MAX:
        raise UsageError(
            f"--rate: expected lines per second, above 0 to {RATE_MAX:,}, found {plan.lines_per_s:g}"
        )
    if plan.nodes * plan.seconds * plan.lines_per_s > LINES_MAX:
        raise UsageError(f"more than {LINES_MAX:,} lines; reduce --nodes, --seconds or --rate")
    if html is not None and not html.parent.is_dir():
        raise UsageError(f"--html: no folder {str(html.parent)!r}; make it, or name a file elsewhere")
    if html is not None:
        _check_page(html)


def _check_page(html: Path) -> None:
    """Check before the run, which may take an hour, that the file can be written. A present file stays until then."""
    is_new = not html.exists()
    try:
        html.open("ab").close()
        if is_new:
            html.unlink()
    except OSError as error:
        raise UsageError(f"--html: {html}: {error.strerror or error}; name a file to write") from error


def _run(fleet: Fleet, stop: Stop, quiet: bool) -> None:
    bar = ProgressBar(time.perf_counter)

    def progress(now_us: int, end_us: int, messages: int) -> bool:
        if not quiet:
            bar.draw(lambda seconds: _progress_text(now_us, end_us, messages, seconds))
        return not stop.event.is_set()

    threshold = gc.get_threshold()
    gc.set_threshold(COLLECT, 20, 100)
    try:
        fleet.run(progress)
    finally:
        gc.set_threshold(*threshold)
        bar.clear()


def _progress_text(now_us: int, end_us: int, messages: int, seconds: float) -> str:
    """`██████····  42%  12.6 of 30 s  31,000 messages/s  0:40 left`, then the state that the run waits for."""
    rate = f"{messages / seconds if seconds else 0:,.0f} messages/s"
    if not end_us:
        return f"{now_us / 1e6:.1f} s, waiting for the last windows  {rate}"
    return percent_text(now_us / end_us, [f"{now_us / 1e6:.1f} of {end_us / 1e6:.0f} s", rate], seconds)
