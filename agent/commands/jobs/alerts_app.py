"""The commands `elf alerts …`."""

from __future__ import annotations

from typing import Annotated

import typer

from elf.agent.commands.jobs.app import Agent, ListOutput, prepare

alerts_app = typer.Typer(help="Alerts of jobs: their states, and tests.", no_args_is_help=True)
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
