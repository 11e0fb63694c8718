"""The command line of `elf lake`: its arguments and options. Each command imports what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

lake_app = typer.Typer(help="The lake's files and its Delta logs.", no_args_is_help=True)
Lake = Annotated[Path, typer.Argument(metavar="LAKE", help="The folder that a parquet sink wrote.")]
OneJob = Annotated[str | None, typer.Argument(metavar="[JOB]", help="Only this job.")]


@lake_app.command("show")
def lake_show(
    lake: Lake,
    job: OneJob = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FORM", help="table, json or csv.", show_default="table on a terminal, else json"
        ),
    ] = None,
) -> None:
    """List what a lake holds, by version of a job.

    Windows and those that lack an agent, superseded copies, files, their rows and bytes, the version of the Delta log.
    """
    from elf.agent.commands.lake.lake import show_command

    show_command(lake, job, output)


@lake_app.command("view")
def lake_view(
    lake: Lake,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job in it.")],
    reader: Annotated[str, typer.Option("--for", metavar="READER", help="duckdb or pandas.")] = "duckdb",
) -> None:
    """Print a query for readers of plain Parquet.

    It gives the newest revision of each window, once, as the lake's Delta logs do.
    """
    from elf.agent.commands.lake.lake import view_command

    typer.echo(view_command(lake, job, reader))


@lake_app.command("compact")
def lake_compact(
    lake: Lake,
    job: OneJob = None,
    after: Annotated[
        str, typer.Option(metavar="SPAN", help="Leave hours and days alone that ended later than that ago.")
    ] = "1d",
    coarsen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEVEL", help="Merge old windows into longer ones: '1 minute after 7 days'. Repeatable."
        ),
    ] = None,
) -> None:
    """Merge the small files of a lake into one for each day.

    Only the newest revisions are kept, so travel in time to the merged files ends. Agents do it for their lakes each hour.
    With --coarsen windows of old days become longer ones, exactly and for good. Exits with 1 if a file cannot be read.
    """
    from elf.agent.commands.lake.lake import compact_command

    raise typer.Exit(compact_command(lake, job, after, coarsen or ()))


@lake_app.command("copy")
def lake_copy(
    lake: Lake,
    to: Annotated[Path, typer.Argument(metavar="DEST", help="The folder of the copy.")],
    job: OneJob = None,
) -> None:
    """Copy the newest revisions of a lake, or of one of its jobs.

    What was written is compared with what was read. Repeat it after an interruption, or to bring what is new. The exit code is 1
    if a file cannot be read.
    """
    from elf.agent.commands.lake.lake import copy_command

    raise typer.Exit(copy_command(lake, to, job))


@lake_app.command("expire")
def lake_expire(
    lake: Lake,
    older_than: Annotated[
        str,
        typer.Option(metavar="SPAN", help="Remove days that ended that long ago: 13 months, 90 days, 36h."),
    ],
    job: OneJob = None,
) -> None:
    """Remove the days of a lake that are older than that, for good.

    Later revisions of their windows are not stored any more. Travel in time to the days ends, too. Agents do it for a
    [[sink]] with `keep`.
    """
    from elf.agent.commands.lake.lake import expire_command

    expire_command(lake, job, older_than)


@lake_app.command("verify")
def lake_verify(
    lake: Lake,
    repair: Annotated[bool, typer.Option("--repair", help="Make the logs again from the files.")] = False,
) -> None:
    """Compare the lake's Delta logs with its files.

    The exit code is 0 if each log shows what the files hold, or does so after --repair, else 1.
    """
    from elf.agent.commands.lake.lake import verify_command

    raise typer.Exit(verify_command(lake, repair))
