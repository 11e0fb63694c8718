"""The commands `elf alerts …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elf.agent.commands.jobs.app import Agent, ListOutput, prepare

alerts_app = typer.Typer(help="Alerts of jobs: their states, tests and backtests.", no_args_is_help=True)
alerts_app.callback()(prepare)


@alerts_app.command("list")
def alerts_list(output: ListOutput = None, agent: Agent = None) -> None:
    """All alerts, and what is pending or firing."""
    from elf.agent.commands.jobs.alerts import list_command

    typer.echo(list_command(output.value if output else None, agent))


@alerts_app.command("test")
def alerts_test(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The alert.")],
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="Its job, if several have such an alert.")
    ] = None,
    agent: Agent = None,
) -> None:
    """Send one test notification to the sinks of an alert."""
    from elf.agent.commands.jobs.alerts import test_command

    typer.echo(test_command(name, job, agent))


@alerts_app.command("backtest")
def alerts_backtest(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The alert.")],
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="Its job, if several have such an alert.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="A job file that has it, instead of a running job."
        ),
    ] = None,
    lake: Annotated[
        Path | None, typer.Option("--lake", metavar="FOLDER", help="The lake with the windows of the job.")
    ] = None,
    logs: Annotated[
        list[str] | None,
        typer.Option("--logs", metavar="FILE", help="Logs, instead of a lake. Repeatable."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From when on: 7d, 12h, 2026-11-24T13:00.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Up to when.")] = None,
    format: Annotated[str, typer.Option("--format", metavar="NAME", help="Of the logs.")] = "auto",
    timezone: Annotated[
        str, typer.Option("--timezone", metavar="ZONE", help="Of times in logs without one.")
    ] = "UTC",
    output: ListOutput = None,
    agent: Agent = None,
) -> None:
    """Say when an alert would have fired, by a lake or by logs.

    It is judged by the windows of that time, as the master of its job would have: in their order, each once.
    """
    from elf.agent.host.startup import light_numpy

    light_numpy()
    from elf.agent.commands.jobs.backtest import backtest_command

    chosen = output.value if output else None
    about = name, job, file, lake, logs or (), since, until, format, timezone, chosen, agent
    typer.echo(backtest_command(*about))
