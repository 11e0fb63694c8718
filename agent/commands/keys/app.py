"""The command line of `elf keys`: its arguments and options. Each command imports what it needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from elf.agent.commands.agent_line import CONFIG
from elf.agent.commands.jobs.app import Agent, ConfigFile

keys_app = typer.Typer(
    help="Keys of a mesh: make its authority, issue, renew, revoke, show.", no_args_is_help=True
)


class KeyRole(StrEnum):
    agent = "agent"
    operator = "operator"
    reader = "reader"


AuthorityDir = Annotated[
    Path,
    typer.Option("--dir", metavar="DIR", envvar="ELF_AUTHORITY", help="The authority's folder."),
]
Days = Annotated[
    int, typer.Option("--days", min=1, max=36_500, metavar="N", help="How long the keys are valid.")
]
AUTHORITY = Path("elf-authority")


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        typer.echo(line)


@keys_app.command("init")
def keys_init(folder: AuthorityDir = AUTHORITY) -> None:
    """Make a mesh authority, a folder from which keys are issued."""
    from elf.agent.commands.keys.commands import init_command

    _say(init_command(folder))


@keys_app.command("issue")
def keys_issue(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The host or the person that gets the keys.")],
    role: Annotated[KeyRole, typer.Option(help="The role of the keys.")],
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where others will reach the agent; for the seed line.")
    ] = "",
    jobs: Annotated[
        list[str] | None,
        typer.Option(
            "--jobs",
            metavar="PATTERN",
            help="Names of the jobs that an operator may change, like 'web-*'. Repeatable.",
            show_default="all jobs",
        ),
    ] = None,
    days: Days = 365,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="The bundle.", show_default="NAME.keys"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    identity: Annotated[
        Path | None,
        typer.Option(
            "--id", metavar="FILE", help="The id.secret of an agent that ran without keys; it keeps its id."
        ),
    ] = None,
    folder: AuthorityDir = AUTHORITY,
) -> None:
    """Make keys of an agent, an operator or a reader.

    Operators may sign jobs. All is in one file, the bundle, for the host it is for.
    """
    from elf.agent.commands.keys.commands import issue_command

    _say(issue_command(folder, name, role.value, address, days, out, force, tuple(jobs or ()), identity))


@keys_app.command("renew")
def keys_renew(
    bundle: Annotated[Path, typer.Argument(metavar="FILE", help="A bundle; it is replaced.")],
    days: Days = 365,
    folder: AuthorityDir = AUTHORITY,
) -> None:
    """Renew the certificate of a bundle; its keys stay the same."""
    from elf.agent.commands.keys.commands import renew_command

    _say(renew_command(folder, bundle, days))


@keys_app.command("revoke")
def keys_revoke(
    who: Annotated[
        str, typer.Argument(metavar="WHO", help="A name, a serial, or a file of revocations to pass on.")
    ],
    folder: AuthorityDir = AUTHORITY,
    agent: Agent = None,
    config: ConfigFile = Path(CONFIG),
) -> None:
    """Revoke keys for good, and announce it to the mesh.

    The agent on this host announces it; without one, copy the file that is written to a host of the mesh.
    """
    from elf.agent.commands.keys.commands import local_agent, revoke_command

    _say(revoke_command(folder, who, local_agent(agent, config, os.environ)))


@keys_app.command("show")
def keys_show(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A bundle, a file of revocations, or an authority's folder."),
    ],
) -> None:
    """Show whose keys these are, and the seed line. No secrets."""
    from elf.agent.commands.keys.commands import show_command

    _say(show_command(path))
