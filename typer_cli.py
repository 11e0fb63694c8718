"""The `elf` command: parses arguments, calls one function of `elf.agent.commands`, and returns its exit code.

Exit codes: 0; 1 runtime, or lines were read and none parsed; 2 arguments, query or a named file; 78 configuration; 130
on Ctrl-C. Everything but typer is imported by the command that needs it, so that help is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from copy import copy
from enum import StrEnum
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main

from elf.agent.commands import agent_line
from elf.agent.commands.agent_line import CONFIG
from elf.agent.commands.exits import ended
from elf.agent.commands.jobs.alerts_app import alerts_app
from elf.agent.commands.jobs.app import (
    Agent,
    ConfigFile,
    ListOutput,
    Params,
    TableOrJson,
    TextOrJson,
    job_app,
)
from elf.agent.commands.keys.app import keys_app
from elf.agent.commands.lake.app import lake_app
from elf.agent.commands.plain_types import use_plain_types
from elf.agent.commands.run_line import FIELDS, Arguments, Color, Field

app = typer.Typer(
    name="elf",
    help="Exact windows from web server logs, old files or live ones: a question in SQL, an answer per window.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
agent_app = typer.Typer(
    help="One agent: follow sources, run jobs, until a signal stops it.", no_args_is_help=True
)
app.add_typer(agent_app, name="agent")
mesh_app = typer.Typer(help="The mesh, as the agent on this host sees it.", no_args_is_help=True)
app.add_typer(mesh_app, name="mesh")
app.add_typer(job_app, name="job")
app.add_typer(alerts_app, name="alerts")
app.add_typer(lake_app, name="lake")
app.add_typer(keys_app, name="keys")


class TreeForm(StrEnum):
    tree = "tree"
    json = "json"
    dot = "dot"


def _info(field: Field) -> Any:
    """An argument of `elf run` for typer."""
    option = field.option
    if not option.flags:
        return typer.Argument(metavar=option.metavar, help=option.help)
    shown = option.shown_default or True
    return typer.Option(*option.flags, metavar=option.metavar, help=option.help, show_default=shown)


RUN = {field.name: _info(field) for field in FIELDS}

# Arguments of other commands too.
LogFormat = Annotated[str, RUN["format"]]
Timezone = Annotated[str, RUN["timezone"]]
ColorWhen = Annotated[Color, RUN["color"]]
Quiet = Annotated[bool, RUN["quiet"]]


def _version(asked: bool) -> None:
    if asked:
        from elf.agent.commands.version import facts

        typer.echo(facts())
        raise typer.Exit


@app.callback()
def elf(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Version and build facts.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Tracebacks with errors (at any place).")] = False,
) -> None:
    del version, debug  # `ended` removes --debug first, so that it works after the command too


@app.command()
def run(**given: Any) -> None:
    """Ask a question in SQL of log files.

    elf run "SELECT status, count(*) AS hits FROM access GROUP BY status" access.log
    """
    from elf.agent.host.startup import light_imports

    light_imports()
    from elf.agent.commands.run import run_command

    many = {field.name: tuple(given[field.name] or ()) for field in FIELDS if field.is_many}
    raise typer.Exit(run_command(Arguments(**(given | many))))


def _parameter(field: Field) -> Parameter:
    default = None if field.is_many else Arguments._field_defaults[field.name]
    kind = list[str] | None if field.is_many else field.type
    return Parameter(
        field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, RUN[field.name]]
    )


run.__signature__ = Signature(list(map(_parameter, FIELDS)))  # type: ignore[attr-defined]


@app.command()
def grep(
    condition: Annotated[str, typer.Argument(metavar="CONDITION", help="As after WHERE in a query.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="As of elf run; standard input without one.")
    ] = None,
    count: Annotated[
        bool, typer.Option("--count", "-c", help="Print the number of lines of each file instead.")
    ] = False,
    invert: Annotated[
        bool, typer.Option("--invert-match", "-v", help="The other lines, also those that cannot be read.")
    ] = False,
    most: Annotated[
        int | None,
        typer.Option("--max-count", "-m", min=0, metavar="N", help="At most N lines of each file."),
    ] = None,
    no_filename: Annotated[
        bool, typer.Option("--no-filename", help="No file names before the lines of several files.")
    ] = False,
    format: LogFormat = "auto",
    since: Annotated[str | None, RUN["since"]] = None,
    until: Annotated[str | None, RUN["until"]] = None,
    timezone: Timezone = "UTC",
    param: Params = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; only the exit code.")] = False,
) -> None:
    """Print the raw lines of log files for which a condition holds.

    elf grep "status >= 500 AND path LIKE '/api/%'" access.log

    The exit code is grep's: 0 with a line, 1 without one, 2 in case of trouble.
    """
    from elf.agent.host.startup import light_imports

    light_imports()
    from elf.agent.commands.grep import Form, grep_command

    raise typer.Exit(
        grep_command(
            condition,
            files or (),
            form=Form(count, names=not no_filename, quiet=quiet),
            invert=invert,
            lines_max=most,
            format=format,
            since=since,
            until=until,
            timezone=timezone,
            params=param or (),
        )
    )


@app.command()
def parse(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A log file, or - for stdin.")],
    format: LogFormat = "auto",
    output: Annotated[TableOrJson, typer.Option(help="The records' form.")] = TableOrJson.table,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="How many records to show.")] = 10,
    timezone: Timezone = "UTC",
    color: ColorWhen = Color.auto,
) -> None:
    """Show how a log file is read, and why lines are rejected."""
    from elf.agent.commands.parse import parse_command

    raise typer.Exit(parse_command(file, format, output.value, limit, timezone, color.value))


@app.command()
def formats(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A format, for its columns.")] = None,
) -> None:
    """List the log formats, or the columns of one of them."""
    from elf.agent.commands.formats import formats_command

    formats_command(name)


@app.command()
def functions(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A function, for what it does.")
    ] = None,
) -> None:
    """List the functions of queries, or show one of them."""
    from elf.agent.commands.functions import functions_command

    functions_command(name)


@app.command("help")
def help_page(
    page: Annotated[str | None, typer.Argument(metavar="[PAGE]", help="A page, such as query.")] = None,
    section: Annotated[str | None, typer.Argument(metavar="[SECTION]", help="A section of it.")] = None,
) -> None:
    """Read the documentation: the query language, log formats, jobs."""
    from elf.agent.commands.help import help_command

    help_command(page, section)


@app.command()
def explain(
    query: Annotated[str | None, typer.Argument(metavar="[QUERY]", help="Spark SQL.")] = None,
    report: Annotated[str | None, typer.Option(metavar="NAME", help="A usual question, by name.")] = None,
    param: Params = None,
    output: Annotated[TextOrJson, typer.Option(help="The plan's form.")] = TextOrJson.text,
) -> None:
    """Show the plan of a query, without running it."""
    from elf.agent.commands.explain import explain_command

    explain_command(query, report, param or (), output.value)


@app.command()
def validate(config: ConfigFile = Path(CONFIG)) -> None:
    """Check a configuration, and print its meaning."""
    from elf.agent.commands.validate import validate_command

    validate_command(config)


@agent_app.command("run")
def agent_run(
    config: ConfigFile = Path(CONFIG),
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Overrides [agent] name.")] = None,
    state_dir: Annotated[str | None, typer.Option(metavar="DIR", help="Overrides [agent] state_dir.")] = None,
    memory_max: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Overrides [agent] memory_max.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Follow sources and run jobs until SIGTERM or Ctrl-C."""
    flags = {"name": name, "state_dir": state_dir, "memory_max": memory_max}
    given = {key: value for key, value in flags.items() if value is not None}
    raise typer.Exit(agent_line.serve(agent_line.AgentLine(str(config), given, quiet)))


@app.command()
def doctor(
    config: ConfigFile = Path(CONFIG),
    output: Annotated[TableOrJson, typer.Option(help="The findings' form.")] = TableOrJson.table,
) -> None:
    """Try all that an agent on this host needs, and say what to mend.

    Logs and their formats, rotation, disks, clock, ports, keys, state files, and the other agents of its mesh. The exit code is
    0 if all is well, 1 with warnings only, 2 with errors.
    """
    from elf.agent.commands.doctor.command import doctor_command

    raise typer.Exit(doctor_command(config, output.value))


@app.command()
def report(
    lake: Annotated[
        str, typer.Argument(metavar="LAKE", help="The folder that a parquet sink wrote, or its URL.")
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Built-in reports, or files NAME.sql of --reports."),
    ] = None,
    reports: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Your own reports: files of SQL.", show_default="reports"),
    ] = None,
    sql: Annotated[
        str | None, typer.Option(metavar="SQL", help="A query over the lake's jobs, as views.")
    ] = None,
    param: Params = None,
    every: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Merge windows into longer ones: 1h, 1d.")
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="A Spark master.", show_default="local")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FORM",
            help="table, json, csv, html:FILE or parquet:DIR.",
            show_default="table on a terminal, else json",
        ),
    ] = None,
    display_timezone: Annotated[str, RUN["display_timezone"]] = "UTC",
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only windows that begin then or later: ISO 8601, or 7d."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only windows that begin before then.")
    ] = None,
) -> None:
    """Report on a lake, in Spark unless it is small.

    Without --sql or a NAME: built-in reports, or with --every the stored jobs over longer windows.
    """
    from elf.agent.commands.lake.report import report_command

    report_command(
        lake, names or (), reports, sql, param or (), every, master, output, display_timezone, since, until
    )


@app.command()
def verify(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job in the lake.")],
    lake: Annotated[Path, typer.Option(metavar="LAKE", help="The folder that a parquet sink wrote.")],
    logs: Annotated[
        list[str],
        typer.Option(metavar="FILE", help="A log, or a glob of logs, from which it was made; several times."),
    ],
    since: Annotated[str | None, RUN["since"]] = None,
    until: Annotated[str | None, RUN["until"]] = None,
    format: LogFormat = "auto",
    timezone: Timezone = "UTC",
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="A Spark master.", show_default="local")
    ] = None,
) -> None:
    """Compare a job's windows in a lake with the raw logs.

    Spark runs the job's own text over the logs. The exit code is 1 if a window differs; rows that only one side has are shown.
    """
    from elf.agent.commands.lake.verify import verify_command

    raise typer.Exit(verify_command(job, lake, logs, since, until, format, timezone, master))


@app.command()
def demo(
    seconds: Annotated[
        int, typer.Option(min=20, max=3600, metavar="N", help="How long the traffic lasts.")
    ] = 30,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the traffic's mix.")] = 1,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where log, lake and report are left.")] = Path(
        "demo-out"
    ),
) -> None:
    """See it all at work, with real traffic.

    Three web servers with traffic, an agent beside each, a master that is killed, a lake, its report,
    a check of the totals.
    """
    from elf.agent.demo.play import demo_command

    raise typer.Exit(demo_command(folder, seconds, seed))


@app.command()
def simulate(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(min=1, max=100_000, metavar="N", help="Agents.")] = 100,
    jobs: Annotated[int, typer.Option(min=1, max=1_000, metavar="N", help="Jobs on all of them.")] = 1,
    seconds: Annotated[
        int, typer.Option(min=5, max=3600, metavar="N", help="Virtual seconds of traffic and faults.")
    ] = 30,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Same seed, same figures.")] = 1,
    kill: Annotated[
        int, typer.Option(min=0, metavar="N", help="Agents that crash, and restart 5 s later.")
    ] = 0,
    loss: Annotated[float, typer.Option(metavar="P", help="Fraction of datagrams that are lost.")] = 0.0,
    rate: Annotated[float, typer.Option(metavar="X", help="Lines per second at each agent.")] = 2.0,
    output: Annotated[
        TableOrJson | None,
        typer.Option(help="The figures' form.", show_default="table on a terminal, json in a pipe"),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also a page: the tree, latency, load of the roots.")
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Print a scenario that a soak kept, as a transcript, instead."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Plan a fleet: agents that die, datagrams that are lost.

    The agents' own code on a virtual network; every window is compared with one pass over all lines.
    """
    from elf.agent.commands.simulate import replay_command, simulate_command
    from elf.agent.simulator.fleet.report import Plan

    if replay is not None:
        raise typer.Exit(replay_command(replay, _given(context) - {"replay", "quiet"}))
    plan = Plan(nodes=nodes, jobs=jobs, seconds=seconds, seed=seed, kill=kill, loss=loss, lines_per_s=rate)
    raise typer.Exit(simulate_command(plan, output.value if output else None, html, quiet))


def _given(context: typer.Context) -> set[str]:
    """Names of the options given on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


@mesh_app.command("status")
def mesh_status(output: ListOutput = None, agent: Agent = None) -> None:
    """Members, their state and their problems."""
    from elf.agent.commands.mesh import status_command

    typer.echo(status_command(output.value if output else None, agent))


@mesh_app.command("tree")
def mesh_tree(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job.")],
    output: Annotated[TreeForm, typer.Option(help="Its form.")] = TreeForm.tree,
    agent: Agent = None,
) -> None:
    """The tree of a job, from its master down."""
    from elf.agent.commands.mesh import tree_command

    typer.echo(tree_command(job, output.value, agent))


@mesh_app.command("audit")
def mesh_audit(output: ListOutput = None, agent: Agent = None) -> None:
    """Who changed which job, or tried to: all agents' lists."""
    from elf.agent.commands.mesh import audit_command

    typer.echo(audit_command(output.value if output else None, agent))


@mesh_app.command("leave")
def mesh_leave(agent: Agent = None) -> None:
    """Take the agent on this host out of the mesh for good.

    It ends once the mesh has all its lines; windows wait for no more of them.
    """
    from elf.agent.commands.mesh import leave_command

    typer.echo(leave_command(agent))


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elf` with `argv` (default: the process's). Returns the exit code; errors are one line on stderr."""
    return ended(command, sys.argv[1:] if argv is None else argv)


def _narrowed(whole: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """Only the command that the first words name: typer takes 30 ms to make all of them. Where they name none, the whole."""
    name = words[0] if words else ""
    groups = [copy(group) for group in whole.registered_groups if group.name == name]
    commands = [info for info in whole.registered_commands if name == (info.name or _name_of(info))]
    if not groups and not commands:
        return whole
    for group in groups:
        assert group.typer_instance is not None
        group.typer_instance = _narrowed(group.typer_instance, words[1:])
    one = copy(whole)
    one.registered_groups, one.registered_commands = groups, commands
    return one


def _name_of(command: typer.models.CommandInfo) -> str:
    assert command.callback is not None
    return typer.main.get_command_name(command.callback.__name__)


def command(argv: list[str]) -> object:
    made = typer.main.get_command(_narrowed(app, argv))
    use_plain_types(made)
    return made(args=argv, prog_name="elf", standalone_mode=False)


if __name__ == "__main__":
    sys.exit(main())
